"""Scales and masks around latent sites, which change their prior and not the guide."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import Site, SiteRecord
from pyro_dgp.guides.scales_and_masks import scale_beyond_plates
from pyro_dgp.internal.recording import require_all
from pyro_dgp.likelihoods import CollapsedObservation


def common_scale(sites: Sequence[Site]) -> float:
    """Return the scale that all of several sites have besides those of plates, which is one of the units of the loss; one where they differ."""
    scales = [scale_beyond_plates(site) for site in sites]
    return scales[0] if len(scales) > 1 and math.isclose(min(scales), max(scales), rel_tol=1e-5) else 1.0


def require_function_priors_unscaled(sites: Sequence[Site]) -> None:
    """Raise for ``poutine.scale`` around function values, or an observation that integrates them out, unless it is around all of several sites."""
    common = common_scale(sites)
    with_prior = [site for site in sites if isinstance(site["fn"], CollapsedObservation) or _has_function_values(site)]
    scaled = [site for site in with_prior if not math.isclose(scale_beyond_plates(site), common, rel_tol=1e-5)]
    if scaled:
        raise ValueError(
            f"the function values at {scaled[0]['name']!r} stand in a poutine.scale, which would scale their prior too, so that the posterior is none of the model: write "
            "f = pyro.sample('f', gp(x)) before the scale, and pyro.sample('y', likelihood.given(f), obs=y) alone in it; a scale around the whole model "
            "changes the units of the loss alone, and can be left out"
        )


def require_priors_visible(sites: Sequence[Site]) -> None:
    """Raise for a ``poutine.mask`` that hides the prior of latent values and not every observation.

    The guide's density of such values is hidden with the prior, so that nothing would keep them from shrinking to a point. Where all observations
    are hidden too, as in padded rows, nothing depends on the values.
    """
    masked = [site for site in sites if site["mask"] is not None and not site["is_observed"]]
    for site in masked:
        for other in (each for each in sites if each["is_observed"]):
            require_all(
                ~_shown_beside(other, torch.as_tensor(site["mask"])),
                f"the latent site {site['name']!r} stands in a poutine.mask that hides its prior, and the observation {other['name']!r}, which is not hidden, may depend on "
                "it: for a flat prior mask the distribution itself, as in Normal(0.0, 1.0).mask(False); hide rows to leave out at the observation too",
            )


def _shown_beside(observed: Site, shown: Tensor) -> Tensor:
    """Return where a latent site is hidden and an observed one is not; where the latter is not known, everywhere that the former is hidden."""
    mask = torch.as_tensor(True if observed["mask"] is None else observed["mask"])
    try:
        return mask & ~shown
    except RuntimeError:  # of shapes that do not fit
        return ~shown


def _has_function_values(site: Site) -> bool:
    """Tell whether a site holds latent function values."""
    record = SiteRecord.of(site)
    return record is not None and isinstance(record.prior, FunctionPrior) and not site["is_observed"]
