"""Terms of an observed site for each component and each row of the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.guides.guide_pass import Site, WeightedTrace
from pyro_dgp.internal import linalg
from pyro_dgp.internal.recording import report_invalid
from pyro_dgp.likelihoods import CollapsedObservation, RowObservation, check_target
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
    plates = {frame.name: frame.dim for frame in frames}
    report_invalid(lambda: fn.support.check(value))
    known = weighted.data_plates or ()
    of_rows = {each.name for each in frames if each.name in known or each.full_size not in (None, each.size)}
    is_event = isinstance(fn, torch.distributions.Independent) and not of_rows
    if plates and not (of_rows or (is_event and weighted.data_plates is not None)):
        return unmasked(plain(fn, value), site)  # nothing is known of the rows
    within = [dim for name, dim in plates.items() if name not in of_rows and name not in weighted.group_plates]
    if not is_event:
        terms = unmasked(plain(fn, value), site)
        return terms.sum(within) if within else terms  # the sum over no axes would be the sum over all
    if isinstance(fn, RowObservation):
        fn.require(value)
    elif not plates:
        check_target(value, fn.event_shape, value)
    terms = plain(fn.base_dist, value)
    outputs = tuple(range(-fn.reinterpreted_batch_ndims + 1, 0))
    terms = terms.sum(outputs) if outputs else terms
    if isinstance(site["mask"], Tensor) and plates:
        terms = torch.where(site["mask"].unsqueeze(-1), terms, 0.0)
    within = [dim - 1 for dim in within]  # the rows are the last axis
    return terms.sum(within) if within else terms


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
