"""Terms of an observed site for each component and each row of the data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import Site, SiteRecord, WeightedTrace
from pyro_dgp.internal import linalg
from pyro_dgp.internal.recording import report_invalid
from pyro_dgp.internal.rows import num_rows
from pyro_dgp.likelihoods import CollapsedObservation, RowObservation, check_target
from pyro_dgp.likelihoods.observation import Observation
from pyro_dgp.losses.slopes import require_slope


def row_terms(
    site: Site,
    weighted: WeightedTrace,
    collapsed: Callable[[CollapsedObservation, Tensor], Tensor],
    plain: Callable[[Any, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Return the terms of an observed site, ``(S, rows)``, and the log weights of its components, ``(S,)``.

    Several values of a row have one term, their sum, whether they are outputs of an event or stand in a plate of their own. Each group is a row by itself.

    :param collapsed: gives the terms of a :class:`CollapsedObservation`, ``(..., N)``.
    :param plain: gives the terms of any other distribution p(y | f), in the shape of its ``log_prob``. The distribution
        is that at the components' values of f.
    """
    fn, value = site["fn"], site["value"]
    terms = collapsed(fn, value) if isinstance(fn, CollapsedObservation) else _plain_terms(site, weighted, plain)
    if not weighted.record(site).carried:
        return terms.reshape(1, -1), terms.new_zeros(1)
    require_slope(site, weighted.trace, terms)
    if isinstance(fn, CollapsedObservation) and len(terms) != len(fn.moments.mean):
        raise ValueError(
            f"the likelihood of {site['name']!r} has a parameter that depends on a hidden layer, and the propagation carries it as {len(terms)} "
            f"values beside {len(fn.moments.mean)} of the function: carry the layer by MonteCarlo(10)"
        )
    return weighted.counted(terms).reshape(len(weighted.log_weights), -1), weighted.log_weights


def _plain_terms(site: Site, weighted: WeightedTrace, plain: Callable[[Any, Tensor], Tensor]) -> Tensor:
    """Return the terms of a distribution p(y | f), which ends in the rows or in the plates of the site: one for each row and group."""
    fn, value = site["fn"], site["value"]
    frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
    report_invalid(lambda: fn.support.check(value))
    is_event, of_rows = _places_of_rows(fn, frames, weighted)
    if frames and not (is_event or of_rows):
        return unmasked(plain(fn, value), site)  # nothing is known of the rows
    kept = of_rows | _of_groups(frames, of_rows, weighted)
    within = [frame.dim for frame in frames if frame.name not in kept]
    if not is_event:
        terms = unmasked(plain(fn, value), site)
        return terms.sum(within) if within else terms  # the sum over no axes would be the sum over all
    if isinstance(fn, RowObservation):
        fn.require(value)
    elif not frames:
        check_target(value, fn.event_shape, value)
    terms = plain(fn.base_dist, value)
    outputs = tuple(range(-fn.reinterpreted_batch_ndims + 1, 0))
    terms = terms.sum(outputs) if outputs else terms
    if isinstance(site["mask"], Tensor) and frames:
        terms = torch.where(site["mask"].unsqueeze(-1), terms, 0.0)
    within = [dim - 1 for dim in within]  # the rows are the last axis
    return terms.sum(within) if within else terms


def _places_of_rows(fn: Any, frames: Sequence[Any], weighted: WeightedTrace) -> tuple[bool, set[str]]:
    """Return whether the first axis of an event holds the rows of the data, and the names of the plates that hold them otherwise.

    Plates that follow the rows are known. In the place of a plate of a fixed number stands the axis that is as long as the inputs of the first Gaussian process.
    """
    is_independent = isinstance(fn, torch.distributions.Independent)
    known = {frame.name for frame in frames} & set(weighted.data_plates or ())
    if known or not frames:
        return is_independent and not known, known
    rows = rows_of_functions(weighted.trace.nodes.values())
    if is_independent and fn.event_shape[0] == rows:
        return True, set()
    as_long = {frame.name for frame in frames if frame.size == rows and frame.name not in weighted.group_plates}
    return is_independent and not as_long and weighted.data_plates is not None, as_long


def rows_of_functions(sites: Iterable[Site]) -> int | None:
    """Return the number of rows of the first Gaussian process among the sites of a pass."""
    priors = (record.prior for site in sites if (record := SiteRecord.of(site)) is not None)
    gps = (gp for each in priors for gp in (each.priors.values() if isinstance(each, Observation) else [each]))
    return next((num_rows(gp.x) for gp in gps if isinstance(gp, FunctionPrior)), None)


def _of_groups(frames: Sequence[Any], of_rows: Collection[str], weighted: WeightedTrace) -> set[str]:
    """Return the names of the plates of groups: those around Gaussian processes, or else the outermost ones, where they are as large as the axes in front of the inputs."""
    known = {frame.name for frame in frames} & set(weighted.group_plates)
    others = sorted((frame for frame in frames if frame.name not in of_rows), key=lambda frame: frame.dim)
    outermost = others[: len(weighted.groups)]
    if known or Size(frame.size for frame in outermost) != weighted.groups:
        return known
    return {frame.name for frame in outermost}


def unmasked(terms: Tensor, site: Site) -> Tensor:
    """Return the terms of a site, with zero for each that ``poutine.mask`` hides."""
    mask = site["mask"]
    if not isinstance(mask, Tensor):
        return terms
    if not linalg.fits(mask, terms):
        raise ValueError(
            f"the site {site['name']!r} has a mask of shape {tuple(mask.shape)} and terms of shape {tuple(terms.shape)}: "
            "give a mask of the site's own shape"
        )
    return torch.where(mask, terms, 0.0)


def log_prob(distribution: Any, value: Tensor) -> Tensor:
    """Return ``log p(y | f)``, the plain term of most losses."""
    result: Tensor = distribution.log_prob(value)
    return result
