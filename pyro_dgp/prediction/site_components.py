"""Components of a prediction at any site of a model: observations, function values, computed values, latent values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro import distributions as dist
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Size, Tensor

from pyro_dgp.guides.guide_pass import SiteRecord
from pyro_dgp.internal.distributions import parameters_of
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.likelihoods.units import plain
from pyro_dgp.prediction.joining import counted_components, flattened
from pyro_dgp.prediction.mixture import Mixture
from pyro_dgp.prediction.point_values import PointValues
from pyro_dgp.processes import FunctionMarginal

#: A site of a trace of Pyro.
Site = dict[str, Any]

#: Rows and components of the two small passes that show how the shape of a site follows them: numbers that no other axis has.
PROBES = ((2, 3), (5, 7))


def sites_of(trace: Trace) -> dict[str, Site]:
    """Return the sites of a trace that can be predicted, by name.

    The distribution of a GP is the marginal of its posterior, not yet carried. A GP inside an observation has its process
    key, ``y/f``, as its name.
    """
    found: dict[str, Site] = {}
    for name, site in trace.nodes.items():
        if site["type"] != "sample" or site_is_subsample(site):
            continue
        record, fn = SiteRecord.of(site), site["fn"]
        found[name] = site if record is None or record.marginal is None else {**site, "fn": record.marginal}
        if isinstance(fn, CollapsedObservation):
            for gp, marginal in fn.marginals.items():
                key = process_key(name, gp)
                found[key] = {**site, "name": key, "fn": marginal, "infer": {}}
    return found


def components_at(site: Site, *, drawn: bool = False) -> Any:
    """Return the distribution of single values at a site, in whatever shape the pass gives it.

    :param site: one of :func:`sites_of`. A GP of a single output has no axis of outputs here.
    :param drawn: whether the value of the site is itself a draw of the posterior, as that of a hyperparameter.
    """
    fn = site["fn"]
    if isinstance(fn, FunctionMarginal):
        mean, variance = fn.mean, fn.variance
        if mean.shape[-1] == 1:
            mean, variance = mean.squeeze(-1), variance.squeeze(-1)
        return dist.Normal(mean, variance.sqrt(), validate_args=False)
    if isinstance(fn, CollapsedObservation):
        return fn.components()
    if drawn or is_computed(site):
        return PointValues(site["value"], site["name"])
    return plain(fn)


def is_computed(site: Site) -> bool:
    """Tell whether a site is a ``pyro.deterministic``."""
    return bool(site["infer"].get("_deterministic"))


@dataclass(frozen=True)
class SiteLayout:
    """The axes of the components at a site.

    :ivar carried: whether the components of a propagation lead.
    :ivar by_row: whether there is a value for each row of the batch; otherwise all rows share one.
    :ivar event_shape: ``()`` or ``(D_out,)``, the values of a row.
    :ivar groups: axes of groups in front of the rows.
    """

    carried: bool
    by_row: bool
    event_shape: Size = Size()
    groups: Size = Size()

    @classmethod
    def of(cls, name: str, probes: Sequence[Any], groups: Size = Size()) -> SiteLayout:
        """Read the layout from the components in the two passes of :data:`PROBES`.

        :param groups: those of the fit.
        :raises ValueError: for more than one axis besides those of rows, and for one value of all rows that depends on
            which rows are in the batch.
        """
        (rows, count), (other_rows, other_count) = PROBES
        first, second = (tuple(each.batch_shape + each.event_shape) for each in probes)
        sizes = list(zip(first, second, strict=False))
        carried = sizes[:1] == [(count, other_count)]
        lead = carried + len(groups)
        if not groups or first[carried:lead] != groups or sizes[lead:][:1] != [(rows, other_rows)]:
            groups, lead = Size(), int(carried)
        by_row = sizes[lead:][:1] == [(rows, other_rows)]
        if by_row:
            require_rows_apart(name, probes[0], lead)
        rest = first[lead + by_row :]
        if len(first) != len(second) or len(rest) > 1 or rest != second[lead + by_row :]:
            raise ValueError(
                f"the site {name!r} has shape {second[carried:]} for {other_rows} rows and {first[carried:]} for {rows}: a prediction "
                "has one value, or one vector, for each row"
            )
        if not by_row and not _are_equal(*probes):
            raise ValueError(
                f"the site {name!r} has one value for all rows together, which depends on the rows of the batch: predict the "
                "values of single rows, and put them together from prediction.sample"
            )
        return cls(carried, by_row, Size(rest), groups)

    def mixture(self, components: Any, log_weights: Tensor, *, rows: int, observation: Any = None) -> Mixture:
        """Return the mixture for a batch of rows.

        :param observation: the collapsed observation that the components come from, if they do.
        """
        observations = [] if observation is None else [observation]
        if self.groups:  # the rows of all groups, one behind another
            start = int(self.carried)
            components = flattened(components, start, start + len(self.groups) + 1)
        elif self.by_row and (found := components.batch_shape[int(self.carried)]) != rows:
            raise ValueError(
                f"the model gives {found} values for {rows} rows of the inputs: pass every argument that goes with the rows with one value for each"
            )
        if self.carried:
            return Mixture(*counted_components(components, log_weights), observations)
        lead = (1,) if self.by_row else (1, rows)
        return Mixture(components.expand((*lead, *components.batch_shape)), log_weights.new_zeros(1), observations)


def require_rows_apart(name: str, components: Any, lead: int) -> None:
    """Raise where the rows, behind so many leading axes, are an event of the distribution, as those of a ``MultivariateNormal`` over the rows."""
    if lead >= len(components.batch_shape):
        raise ValueError(
            f"the site {name!r} has one distribution of all rows together, and a prediction has one for each row: predict the function values, by site=, in its "
            "place"
        )


def _are_equal(first: Any, second: Any) -> bool:
    parameters, others = parameters_of(first), parameters_of(second)
    if parameters is None or others is None:
        return _drawn(first).equal(_drawn(second))
    return all(
        value.shape == others[name].shape and torch.equal(value, others[name]) for name, value in parameters.items()
    )


def _drawn(components: Any) -> Tensor:
    """Return a draw of a distribution, the same for the same distribution."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        draw: Tensor = components.sample()
        return draw


def probed_layout(name: str, rows: int, components: Callable[[Tensor, int], Any], groups: Size = Size()) -> SiteLayout:
    """Return the layout of a site, from two small passes.

    :param groups: those of the fit.
    :param rows: number of rows to choose those of the passes from.
    :param components: from numbers of rows and a number of components to what :func:`components_at` gives.
    """
    numbers = [torch.arange(PROBES[0][0]) % rows, rows - 1 - torch.arange(PROBES[1][0]) % rows]
    return SiteLayout.of(
        name, [components(each, count) for each, (_, count) in zip(numbers, PROBES, strict=True)], groups
    )


def require_follows_rows(name: str, layout: SiteLayout, *, asked: str | None) -> None:
    """Raise where nobody asked for the site, and its values are the same whatever the rows are, as those of a model that does not use its inputs.

    :param asked: the site that a user asked for.
    """
    if asked is None and not layout.by_row and layout.event_shape:
        raise ValueError(
            f"the site {name!r} has values of shape {tuple(layout.event_shape)} that are the same whatever the test inputs are, as where the model does not use "
            f"its inputs, or a poutine.do gives function values of other rows: let the model use x, or pass site={name!r} to have these values repeated for each row"
        )


def one_name(sites: Mapping[str, Site], wanted: str | None, observed: Sequence[str]) -> str:
    """Return the site to predict: the wanted one, else the only observation, else the only GP.

    :param sites: those that can be predicted, see :func:`sites_of`.
    :param observed: names of the observations among them.
    """
    names = list(sites)
    functions = [name for name, site in sites.items() if isinstance(site["fn"], FunctionMarginal)]
    if wanted is not None and wanted not in names:
        raise ValueError(f"there is no site {wanted!r}: the model has {names}")
    if wanted is not None:
        return wanted
    if len(observed) > 1 or (not observed and len(functions) != 1):
        what = (
            f"{len(observed)} observation sites, {list(observed)}" if observed else f"no observation site, and {names}"
        )
        raise ValueError(f"the model has {what}: name one with site=")
    return (observed or functions)[0]


def require_reparameterised(latent: Iterable[Site]) -> None:
    """Raise where gradients in the inputs would leave out a path, through a latent site without reparameterised draws."""
    for site in latent:
        if not site["fn"].has_rsample:
            raise ValueError(
                f"the latent site {site['name']!r} has no reparameterised draws, through which gradients in the inputs would pass: "
                "give predict inputs without gradients, x.detach()"
            )


def warn_of_prior(name: str, posterior: str) -> None:
    """Say that a latent value of each row is drawn from its prior, where that is what a user asks for.

    :param posterior: the expression that has its values at the training rows.
    """
    warn_user(
        f"the latent site {name!r} has a value for each row, and predictions draw those of all rows from its prior, as those of new rows: "
        f"its values at the training rows are {posterior}"
    )
