"""Likelihoods that are step functions of drawn function values: their loss has no gradient in the functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_dgp.guides.guide_pass import SiteRecord
from pyro_dgp.processes import FunctionMarginal


def require_slope(site: dict[str, Any], trace: Any, terms: Tensor) -> None:
    """Raise for terms of an observed site that depend on drawn function values and have no gradient, where these have one.

    :param site: an observed site of the trace that is carried through drawn functions.
    :param trace: trace of the guide's pass.
    :param terms: log densities of the site.
    """
    if terms.requires_grad or not torch.is_grad_enabled():
        return
    drawn = [node["name"] for node in trace.nodes.values() if _is_drawn_function(node) and node["value"].requires_grad]
    if drawn:
        raise ValueError(
            f"the density of the site {site['name']!r} has no gradient in the function values that the model draws at {drawn[-1]!r}, as one of an argmax, a rounding or a comparison "
            "has none, so that the loss would train nothing: take a smooth density, such as Softmax, or a likelihood that integrates the functions out, "
            f"as in pyro.sample({site['name']!r}, RobustMax(3)(gp(x)), obs=y)"
        )


def _is_drawn_function(node: dict[str, Any]) -> bool:
    record = SiteRecord.of(node) if node["type"] == "sample" else None
    return record is not None and not node["is_observed"] and isinstance(record.marginal, FunctionMarginal)
