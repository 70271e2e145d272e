"""Observations that a prediction draws because another site is made from them, as ``y1`` in ``pyro.sample("y2", Normal(2 * y1, 0.1))``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pyro.distributions import Unit, constraints
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor

from pyro_dgp.guides.served_sites import is_discrete
from pyro_dgp.guides.sites import is_random
from pyro_dgp.prediction.site_components import Site, components_at, sites_of
from pyro_dgp.processes import FunctionMarginal

#: Rows at which the site is looked at, and other draws that are tried.
ROWS, TRIES = 50, 3


class _Moved(Messenger):
    """Puts other values in the place of those that some sites are drawn at."""

    def __init__(self, names: Collection[str], seed: int) -> None:
        super().__init__()
        self.names, self.seed = names, seed

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"] in self.names and not msg["is_observed"]:
            with torch.random.fork_rng():
                torch.manual_seed(self.seed)
                msg["value"] = _another(msg, self.seed)


def _another(site: Site, step: int) -> Tensor:
    """Return another value of a site: a draw, values far out, and of classes those that differ."""
    kind, value = components_at(site), site["value"]
    if kind.event_shape or (step == 1 and not is_discrete(kind)):
        return site["fn"].sample()  # type: ignore[no-any-return]
    if kind.has_enumerate_support:
        known = kind.enumerate_support(expand=False).reshape(-1)
        at = (value.unsqueeze(-1) == known).to(torch.uint8).argmax(-1)
        return known[(at + step) % len(known)].to(value.dtype)
    if is_discrete(kind):
        return (value + 1, torch.zeros_like(value), 10 * value + 100)[step - 1]
    size = 10 * (value - site["fn"].sample()).abs() + value.abs()
    far = value + size if step == 2 else value - size
    return torch.where(_support_of(kind).check(far), far, value / 10)


def _support_of(kind: Any) -> Any:
    """Return the support of a distribution; all real numbers for one that does not say."""
    try:
        return kind.support
    except (AttributeError, NotImplementedError):
        return constraints.real


def require_no_observation_of_draws(
    run: Callable[[Tensor], Trace], rows: int, name: str, *, drawn: Sequence[str]
) -> None:
    """Raise where new rows bring an observation of what a prediction draws at them without regard to it, such as a noisy measurement of a hidden layer.

    :param run: from numbers of rows to a trace of the model at these.
    :param name: the site to predict.
    :param drawn: sites whose values there are drawn.
    """
    nodes = run(torch.zeros(2).long()).nodes  # one row twice
    met = list(nodes)
    for site in _observed_with_rows(run, nodes) if drawn else ():
        for other in drawn:
            is_before = other in nodes and met.index(other) < met.index(site)
            if site == name or not (is_before and depends_on_draws(run, rows, site, others=[other])):
                continue
            if other == name or depends_on_draws(run, rows, name, others=[other]):
                is_function = isinstance(nodes[other]["fn"], FunctionMarginal)
                network = f", or fit a guide that looks at them, Variational(..., networks={{{other!r}: network}})"
                raise ValueError(
                    f"the site {site!r} is observed at the new rows and depends on {other!r}, whose values there are drawn without regard to it, so that the prediction "
                    f"of {name!r} would not know of the observation: leave its values out of the call, as in obs=z if self.training else None"
                    + ("" if is_function else network)
                )


def _observed_with_rows(run: Callable[[Tensor], Trace], nodes: Mapping[str, Site]) -> list[str]:
    """Return the observed sites that follow the number of new rows. A factor observes nothing, and what a mask hides is not observed."""
    observed = [
        name
        for name, node in nodes.items()
        if is_random(node) and node["is_observed"] and not (isinstance(node["fn"], Unit) or _is_hidden(node))
    ]
    if not observed:
        return []
    of_one = run(torch.zeros(1).long()).nodes
    return [name for name in observed if name not in of_one or of_one[name]["fn"].shape() != nodes[name]["fn"].shape()]


def _is_hidden(site: Site) -> bool:
    """Tell whether masks hide all of a site."""
    inner = site["fn"]
    masks = [site["mask"]]
    while hasattr(inner, "base_dist"):
        masks.append(getattr(inner, "_mask", None))
        inner = inner.base_dist
    return any(mask is not None and not bool(torch.as_tensor(mask).any()) for mask in masks)


def depends_on_draws(
    run: Callable[[Tensor], Trace], rows: int, name: str, *, others: Collection[str], drawn: bool = False
) -> bool:
    """Tell whether the distribution of a site depends on the values at which others are drawn.

    The model runs several times at the same random numbers, with other values of these sites.

    :param run: from numbers of rows to a trace of the model at these.
    :param rows: number of rows to choose from.
    :param drawn: whether the value of the site is itself a draw of the posterior.
    """
    if not others:
        return False
    at = torch.linspace(0, rows - 1, min(rows, ROWS)).long()

    def looked(around: AbstractContextManager[Any]) -> tuple[Any, Tensor]:
        torch.manual_seed(0)
        with around:
            site = sites_of(run(at))[name]
        return components_at(site, drawn=drawn), site["value"]

    with torch.no_grad(), torch.random.fork_rng():
        first, value = looked(nullcontext())
        return any(_differ(first, value, *looked(_Moved(others, seed))) for seed in range(1, TRIES + 1))


def _differ(first: Any, value: Tensor, other: Any, moved: Tensor) -> bool:
    """Tell whether two distributions differ, by a draw of each at the same random numbers and by the densities of one value."""
    if value.shape != moved.shape or not torch.equal(value, moved):
        return True
    try:
        return not torch.equal(first.log_prob(value), other.log_prob(value))
    except (NotImplementedError, ValueError):  # a computed value, which has no density
        return False
