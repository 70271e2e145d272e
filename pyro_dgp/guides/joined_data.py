"""Search for models of which a row of the data depends on function values at other rows, by runs on some of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.row_dependence import RowDependence
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.internal.plates import known_groups
from pyro_dgp.internal.rows import RowArguments
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.likelihoods import Observation

#: Standard deviations around their mean that function values are put at.
_SPREAD = 0.5
#: Rows that are looked at: a mean over few of them moves far where some are left out.
_ROWS = 64
#: Other pairs of halves beside the first: two of few rows may differ by as much by chance.
_OTHERS = 4


class _Totals(SiteHandler, Messenger):
    """Handler that runs a model at functions that are the same in all runs, and adds up what it meets over the rows.

    :ivar totals: by name, the sum of the log densities of a plain site, and of a random function of the inputs of a GP, each with the sum of the sizes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.totals: dict[str, tuple[Tensor, Tensor]] = {}

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set function values to those of a function of the inputs."""
        self._note(f"inputs of {msg['name']}", self._waves(prior, 1))
        if not msg["is_observed"]:
            mean = prior.mean
            msg["value"] = mean + _SPREAD * prior.variance.sqrt() * self._waves(prior, mean.shape[-1])

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Set an observation to zeros, since its values do not matter."""
        for gp, prior in observation.priors.items():
            self._note(f"inputs of {process_key(msg['name'], gp)}", self._waves(prior, 1))
        if msg["value"] is None:
            msg["value"] = next(iter(observation.priors.values())).mean.new_zeros(
                observation.batch_shape + observation.event_shape
            )

    def at_other(self, msg: Message) -> None:
        """Set a latent value to its mean."""
        if not msg["is_observed"]:
            msg["value"] = msg["fn"].mean

    def _pyro_post_sample(self, msg: Message) -> None:
        fn = msg["fn"]
        if site_is_subsample(msg) or isinstance(fn, FunctionPrior | Observation):
            return
        while isinstance(fn, Independent):
            fn = fn.base_dist
        self._note(msg["name"], fn.log_prob(msg["value"]))

    def _note(self, name: str, terms: Tensor) -> None:
        terms = terms.double().nan_to_num(0.0, 0.0, 0.0)
        self.totals[name] = terms.sum(), terms.abs().sum()

    @staticmethod
    def _waves(prior: FunctionPrior, outputs: int) -> Tensor:
        """Return numbers between -1 and 1 for each row of a GP's inputs, ``(..., N, outputs)``, that its inputs alone decide."""
        places = torch.arange(1, prior.x.shape[-1] * outputs + 1).reshape(prior.x.shape[-1], outputs)
        return (prior.x @ (1.7 * places.to(prior.x).cos()) + 0.4).sin()


@torch.no_grad()
def joins_data_rows(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], dependence: RowDependence
) -> bool:
    """Tell whether a row of the data depends on function values at other rows, in a model that joins some rows of its Gaussian processes.

    Both ends of a pair are joined, and belong to one row of the data, so that a batch of pairs is a batch. Sums over the rows of the data are other ones in
    a batch. Where no rows of the data are joined, what is met at some rows is the sum of what is met at two halves of them, up to what does not depend on the rows: the difference is
    the same for any halves. A model that cannot be run on some of the rows is taken for one that joins them.
    """
    if dependence.inputs is None:
        return True
    inputs = args[dependence.inputs] if isinstance(dependence.inputs, int) else kwargs[dependence.inputs]
    rows = RowArguments(args, dict(kwargs), x=inputs, groups=dependence.groups)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        order = torch.randperm(len(rows))[:_ROWS].to(inputs.device)
        others = [order[torch.randperm(len(order)).to(inputs.device)] for _ in range(_OTHERS)]
        try:
            one, *splits = [_of_halves(model, rows, each, dependence) for each in (order, *others)]
        except (RuntimeError, ValueError, IndexError, AssertionError, KeyError, TypeError, NotImplementedError):
            return True
    return any(
        one.keys() != other.keys() or not all(_are_level(one[name], other[name]) for name in one) for other in splits
    )


def _of_halves(
    model: Callable[..., Any], rows: RowArguments, order: Tensor, dependence: RowDependence
) -> dict[str, tuple[float, float]]:
    """Return how much more is met at some rows than at two halves of them together, by name, with the sum of the sizes."""
    half = len(order) // 2
    parts = [each.sort().values for each in (order, order[:half], order[half:])]
    whole, *halves = (_run(model, rows[part], dependence) for part in parts)
    return {
        name: (float(total - sum(each[name][0] for each in halves)), float(size))
        for name, (total, size) in whole.items()
    }


def _run(
    model: Callable[..., Any], call: tuple[tuple[Any, ...], dict[str, Any]], dependence: RowDependence
) -> dict[str, tuple[Tensor, Tensor]]:
    args, kwargs = call
    with _Totals() as handler, known_groups(dependence.group_plates):
        model(*args, **kwargs)
    return handler.totals


def _are_level(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return abs(one[0] - other[0]) <= 1e-4 * max(one[1], other[1]) + 1e-12
