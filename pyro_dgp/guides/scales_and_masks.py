"""Checks of ``poutine.scale``, ``poutine.mask`` and plates that subsample, around the sites of a model."""

from __future__ import annotations

import math

import torch
from pyro.infer.util import torch_item
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_dgp.guides.sites import Message


def require_scaled_subsamples(trace: Trace) -> None:
    """Raise for a plate that takes some of its rows at random with no site inside: nothing is scaled up to all rows."""
    sites = trace.nodes.values()
    inside = {frame.name for site in sites if site["type"] == "sample" for frame in site["cond_indep_stack"]}
    for site in (each for each in sites if each["type"] == "sample" and site_is_subsample(each)):
        some, all_ = site["fn"].subsample_size, site["fn"].size
        if some is not None and some < all_ and site["name"] not in inside:
            raise ValueError(
                f"the plate {site['name']!r} takes {some} of {all_} rows and no site stands inside, so that the likelihood would count {some} rows, and the prior all: pass the "
                f"rows of a step, as fit(..., batch_size={some}) does, or observe inside, as in with plate as rows: pyro.sample('y', Normal(f, 0.1), obs=y[rows])"
            )


def require_rows_unmasked(site: Message) -> None:
    """Raise for a mask over the rows of a site whose rows are one event.

    Such a site has one term for all rows, which the mask would multiply.
    """
    mask = site["mask"]
    if isinstance(mask, Tensor) and mask.dim():
        groups = {frame.size for frame in site["cond_indep_stack"] if frame.vectorized}
        if mask.shape[-1] in groups and mask.shape[-1] != site["fn"].event_shape[0]:
            raise ValueError(
                f"the site {site['name']!r} stands in a mask over groups, of shape {tuple(mask.shape)}, and all groups have functions: write "
                "f = pyro.sample('f', gp(x)) before the mask, and pyro.sample('y', ..., obs=y) with a distribution of f in it"
            )
        raise ValueError(
            f"the site {site['name']!r}, whose rows are one event, has a mask of shape {tuple(mask.shape)}: leave the masked "
            "rows out, or write pyro.plate over the data and one normal (or other) distribution for each row"
        )


def require_scale_fits(site: Message, log_prob: Tensor) -> None:
    """Raise for a ``poutine.scale`` of more entries than a site has log densities, which would count each of these several times."""
    scale = site["scale"]
    if isinstance(scale, Tensor) and torch.broadcast_shapes(scale.shape, log_prob.shape) != log_prob.shape:
        raise ValueError(
            f"the site {site['name']!r} stands in a poutine.scale of shape {tuple(scale.shape)}, and has log densities of shape {tuple(log_prob.shape)}, each of which would count "
            "several times: write pyro.plate over the rows and one distribution for each of them"
        )


def scale_beyond_plates(site: Message) -> float:
    """Return the scale of a site besides that of plates which take some of their elements."""
    return float(torch_item(site["scale"])) / scale_of_plates(site)


def scale_of_plates(site: Message) -> float:
    """Return the scale of a site that its plates have which take some of their elements."""
    shares = ((frame.full_size or frame.size) / max(frame.size, 1) for frame in site["cond_indep_stack"])
    return math.prod(shares, start=1.0)


def require_one_scale(site: Message) -> None:
    """Raise for a ``poutine.scale`` with an entry for each row, where a loss multiplies a site by one number."""
    scale = site["scale"]
    if isinstance(scale, Tensor) and scale.numel() > 1:
        raise ValueError(
            f"the site {site['name']!r} stands in a poutine.scale of shape {tuple(scale.shape)}, and a loss multiplies a site by one number: give a number, repeat rows of the "
            "data in the place of their weights, or run MCMC, where the rows of a pyro.plate have weights of their own"
        )


def require_unscaled(site: Message) -> None:
    """Raise for ``poutine.scale`` around function values that a sampler whitens: their prior would be scaled too."""
    if _is_scaled(site):
        raise ValueError(
            f"the function values at {site['name']!r} stand in a poutine.scale, which would scale their prior too: put the scale around the "
            "statement of a plain observed site, pyro.sample('y', ..., obs=y), alone"
        )


def require_prior_unmasked(site: Message) -> None:
    """Raise for a ``poutine.mask`` that hides function values which a sampler whitens: their prior would be hidden too."""
    if _is_hidden(site):
        raise ValueError(
            f"the function values at {site['name']!r} stand in a poutine.mask that is false, and a sampler cannot leave their prior out: write "
            "f = pyro.sample('f', gp(x)) before the mask, and pyro.sample('y', likelihood.given(f), obs=y), or another distribution of f, in it"
        )


def _is_hidden(site: Message) -> bool:
    """Tell whether a mask of one entry hides a whole site."""
    mask = site["mask"]
    return mask is not None and not bool(mask)


def _is_scaled(site: Message) -> bool:
    scale = site["scale"]
    if isinstance(scale, Tensor) and scale.numel() > 1:
        return True  # ones too: one density is multiplied by the sum of the entries
    return not (isinstance(scale, int | float) and scale == 1) and not bool((torch.as_tensor(scale) == 1).all())


def require_as_written(site: Message) -> None:
    """Raise for a mask or a scale on an observation that is conditioned on in closed form, which would leave it out."""
    require_rows_unmasked(site)
    if _is_hidden(site) or _is_scaled(site):
        raise ValueError(
            f"the site {site['name']!r} has a mask or a scale, and the closed form of exact regression has no place for either: take such rows out, "
            "or give the model a guide and a loss"
        )
