"""Terms of an observed site for each component and each row of the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions.torch_distribution import MaskedDistribution
from torch import Tensor

from pyro_dgp.guides.guide_pass import Site, WeightedTrace
from pyro_dgp.internal import linalg
from pyro_dgp.internal.recording import report_invalid
from pyro_dgp.likelihoods import CollapsedObservation, RowObservation, check_target
from pyro_dgp.losses.row_axes import row_axes
from pyro_dgp.losses.slopes import require_slope

#: Terms of a site whose function values are integrated out, ``(..., N)``.
Collapsed = Callable[[CollapsedObservation, Tensor], Tensor]
#: Terms of any other distribution p(y | f), in the shape of its ``log_prob``. The distribution is that at the components' values of f.
Plain = Callable[[Any, Tensor], Tensor]


def row_terms(site: Site, weighted: WeightedTrace, collapsed: Collapsed, plain: Plain) -> tuple[Tensor, Tensor]:
    """Return the terms of an observed site, ``(S, rows)``, and the log weights of its components, ``(S,)``.

    Several values of a row have one term, their sum, whether they are outputs of an event, stand in a plate of their own or are declared by nothing. Each group is a row by itself.

    :raises ValueError: where the axis of the rows cannot be told.
    """
    if isinstance(site["fn"], CollapsedObservation):
        return component_terms(site, weighted, collapsed, plain)
    terms, events = _plain_terms(site, plain)
    leading = int(weighted.record(site).carried)
    axes = row_axes(site, weighted, terms.shape[leading:], events)
    return _of_components(axes.summed(terms, leading), site, weighted)


def component_terms(site: Site, weighted: WeightedTrace, collapsed: Collapsed, plain: Plain) -> tuple[Tensor, Tensor]:
    """Return the terms of an observed site, ``(S, values)``, and the log weights of its components, ``(S,)``, for a loss that adds all values of a component."""
    fn = site["fn"]
    terms = collapsed(fn, site["value"]) if isinstance(fn, CollapsedObservation) else _plain_terms(site, plain)[0]
    return _of_components(terms, site, weighted)


def rows_observed(site: Site, weighted: WeightedTrace) -> tuple[int, int] | None:
    """Return the number of rows of an observed site that have a term, in each group, and that of all rows of a plate which takes these; ``None`` where the distribution joins them."""
    fn = site["fn"]
    if isinstance(fn, CollapsedObservation):
        return int(fn.event_shape[0]), int(fn.event_shape[0])
    leading = int(weighted.record(site).carried)
    independent, events = events_of(fn)
    shape = independent.batch_shape + independent.event_shape[:events]
    axes = row_axes(site, weighted, shape[leading:], events).rows
    if not axes:
        return None
    frames = {frame.dim - events: frame for frame in site["cond_indep_stack"] if frame.vectorized}
    full = [frames[axis].full_size or frames[axis].size if axis in frames else shape[axis] for axis in axes]
    return torch.Size(shape[axis] for axis in axes).numel(), torch.Size(full).numel()


def _of_components(terms: Tensor, site: Site, weighted: WeightedTrace) -> tuple[Tensor, Tensor]:
    fn = site["fn"]
    if not weighted.record(site).carried:
        return terms.reshape(1, -1), terms.new_zeros(1)
    require_slope(site, weighted.trace, terms)
    if isinstance(fn, CollapsedObservation) and len(terms) != len(fn.moments.mean):
        raise ValueError(
            f"the likelihood of {site['name']!r} has a parameter that depends on a hidden layer, and the propagation carries it as {len(terms)} "
            f"values beside {len(fn.moments.mean)} of the function: carry the layer by MonteCarlo(10)"
        )
    return weighted.counted(terms).reshape(len(weighted.log_weights), -1), weighted.log_weights


def _plain_terms(site: Site, plain: Plain) -> tuple[Tensor, int]:
    """Return the terms of a distribution p(y | f), one for each value of an event of independent ones, and the number of axes of that event."""
    fn, value = site["fn"], site["value"]
    report_invalid(lambda: fn.support.check(value))
    independent, events = events_of(fn)
    if isinstance(independent, RowObservation):
        independent.require(value)
    elif events and not any(frame.vectorized for frame in site["cond_indep_stack"]):
        check_target(value, independent.event_shape, value)
    terms = plain(independent.base_dist if events else fn, value)
    for mask in (site["mask"], None if independent is fn else fn._mask):
        terms = unmasked(terms, site["name"], mask, events)
    return terms, events


def events_of(fn: Any) -> tuple[Any, int]:
    """Return a distribution without a mask around its event, and the number of axes of the event over which it is independent."""
    inner = fn.base_dist if isinstance(fn, MaskedDistribution) else fn
    if isinstance(inner, torch.distributions.Independent):
        return inner, inner.reinterpreted_batch_ndims
    return fn, 0


def unmasked(terms: Tensor, name: str, mask: Any, events: int = 0) -> Tensor:
    """Return the terms of a site, with zero for each that a mask hides.

    :param mask: of the axes before those of the event, or a number, or nothing.
    :param events: number of axes at the end that are those of an event.
    """
    if not isinstance(mask, Tensor):
        return torch.zeros_like(terms) if mask is False else terms
    mask = mask.reshape(mask.shape + (1,) * events)
    if not linalg.fits(mask, terms):
        raise ValueError(
            f"the site {name!r} has a mask of shape {tuple(mask.shape)} and terms of shape {tuple(terms.shape)}: "
            "give a mask of the site's own shape"
        )
    return torch.where(mask, terms, 0.0)


def log_prob(distribution: Any, value: Tensor) -> Tensor:
    """Return ``log p(y | f)``, the plain term of most losses."""
    result: Tensor = distribution.log_prob(value)
    return result
