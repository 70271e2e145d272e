"""Scales and masks around latent sites, which change their prior and not the guide."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import Site, SiteRecord
from pyro_dgp.guides.scales_and_masks import require_one_scale, scale_beyond_plates, scale_of_plates
from pyro_dgp.internal.recording import require_all
from pyro_dgp.likelihoods import CollapsedObservation


def checked_scale(sites: Sequence[Site]) -> float:
    """Return the common scale of all sites, see :func:`common_scale`; raise for a mask that hides a prior, and for a scale with an entry for each row."""
    require_priors_visible(sites)
    for site in sites:
        require_one_scale(site)
    return common_scale(sites)


def common_scale(sites: Sequence[Site]) -> float:
    """Return the scale that all of several sites have besides those of plates, which is one of the units of the loss; one where they differ.

    The scales are read only where a prior has one, since a program that is compiled cannot read those of tensors.
    """
    if all(_is_plain(site) for site in sites if _has_prior(site)):
        return 1.0
    scales = [scale_beyond_plates(site) for site in sites]
    return scales[0] if len(scales) > 1 and math.isclose(min(scales), max(scales), rel_tol=1e-5) else 1.0


def require_function_priors_unscaled(sites: Sequence[Site], common: float) -> None:
    """Raise for ``poutine.scale`` around function values, or an observation that integrates them out, unless it is around all of several sites.

    :param common: scale of all sites, see :func:`common_scale`.
    """
    functions = [site for site in sites if _has_functions(site) and not (common == 1.0 and _is_plain(site))]
    scaled = [site for site in functions if not math.isclose(scale_beyond_plates(site), common, rel_tol=1e-5)]
    if scaled:
        raise ValueError(
            f"the function values at {scaled[0]['name']!r} stand in a poutine.scale, which would scale their prior too, so that the posterior is none of the model: write "
            "f = pyro.sample('f', gp(x)) before the scale, and pyro.sample('y', likelihood.given(f), obs=y) alone in it; a scale around the whole model "
            "changes the units of the loss alone, and can be left out"
        )


def power_of_prior(site: Site, common: float) -> float | Tensor:
    """Return the power of the prior of a latent site: its scale, less that of plates and the common one of all sites."""
    if not isinstance(site["scale"], Tensor):
        return scale_beyond_plates(site) / common
    power: Tensor = site["scale"] / (common * scale_of_plates(site))
    return power


def require_priors_visible(sites: Sequence[Site]) -> None:
    """Raise for a ``poutine.mask`` that hides the prior of latent values and not every later observation.

    The guide's density of such values is hidden with the prior, so that nothing would keep them from shrinking to a point. Where all observations
    are hidden too, as in padded rows, nothing depends on the values.
    """
    for number, site in enumerate(sites):
        if site["mask"] is None or site["is_observed"]:
            continue
        for other in (each for each in sites[number + 1 :] if each["is_observed"]):
            require_all(
                ~_shown_beside(other, site),
                f"the latent site {site['name']!r} stands in a poutine.mask that hides its prior, and the observation {other['name']!r}, which is not hidden, may depend on "
                "it: for a flat prior mask the distribution itself, as in Normal(0.0, 1.0).mask(False); put padded rows of both in one mask; leave the mask out where "
                "hidden values are not used",
            )


def _shown_beside(observed: Site, latent: Site) -> Tensor:
    """Return where a latent site is hidden and an observed one may be shown.

    Their masks are compared entry by entry where the observed site stands in all plates of the latent one.
    """
    shown = torch.as_tensor(latent["mask"])
    mask = torch.as_tensor(True if observed["mask"] is None else observed["mask"])
    plates, others = ({f.name for f in site["cond_indep_stack"] if f.vectorized} for site in (latent, observed))
    if mask.dim() and shown.dim() and not plates <= others:
        mask = mask.any()
    try:
        return mask & ~shown
    except RuntimeError:  # of shapes that do not fit
        return ~shown


def _is_plain(site: Site) -> bool:
    """Tell without reading a tensor whether no scale besides that of plates multiplies a site."""
    return not isinstance(site["scale"], Tensor) and math.isclose(scale_beyond_plates(site), 1.0, rel_tol=1e-5)


def _has_prior(site: Site) -> bool:
    """Tell whether a scale around a site would change a prior."""
    return not site["is_observed"] or isinstance(site["fn"], CollapsedObservation)


def _has_functions(site: Site) -> bool:
    """Tell whether a site holds latent function values, or integrates them out."""
    record = SiteRecord.of(site)
    is_latent = record is not None and isinstance(record.prior, FunctionPrior) and not site["is_observed"]
    return is_latent or isinstance(site["fn"], CollapsedObservation)
