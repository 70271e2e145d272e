"""Proper priors for the hyperparameters of the zoo's models, for methods that sample them."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroSample
from torch import Tensor

from pyro_dgp.kernels.base import POSITIVE
from pyro_dgp.likelihoods import NOISE_FLOOR
from pyro_dgp.models.deep_gp import DeepGP


class FlooredLogNormal(dist.TransformedDistribution):  # type: ignore[misc]
    """``floor + LogNormal(loc, scale)``: a variance that never reaches zero."""

    def __init__(self, loc: Tensor, scale: Tensor, floor: float = NOISE_FLOOR) -> None:
        self.floor = floor
        super().__init__(dist.LogNormal(loc, scale), [torch.distributions.AffineTransform(floor, 1.0)])

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlooredLogNormal:
        """The same type."""
        base = self.base_dist.expand(torch.Size(batch_shape))
        return FlooredLogNormal(base.loc, base.scale, self.floor)

    @property
    def support(self) -> constraints.Constraint:
        """Above the floor."""
        return constraints.greater_than(self.floor)


#: Location of the log and standard deviation of the log; lengthscales are relative to the root of the input dimension.
LOG_NORMAL = {"lengthscale": (0.0, 0.75), "variance": (0.0, 0.75), "noise": (math.log(0.05), 1.0)}


def with_priors(model: DeepGP) -> DeepGP:
    """The model, its positive kernel parameters and noise variance given the log-normal priors :data:`LOG_NORMAL`.

    In place; for targets and inputs of unit variance.
    """
    for module in list(model.modules()):
        if not isinstance(module, PyroModule) or module is model.likelihood:
            continue
        for name, (constraint, _) in list(module._pyro_params.items()):
            if constraint is not POSITIVE:
                continue
            value = getattr(module, name).detach()
            key = "lengthscale" if name == "lengthscale" else "variance"
            loc, scale = LOG_NORMAL[key]
            centre = value.log() + loc
            setattr(
                module, name, PyroSample(dist.LogNormal(centre, torch.full_like(value, scale)).to_event(value.dim()))
            )
    if "variance" in model.likelihood._pyro_params:
        value = model.likelihood.variance.detach()
        centre, spread = (torch.full_like(value, number) for number in LOG_NORMAL["noise"])
        model.likelihood.variance = PyroSample(FlooredLogNormal(centre, spread).to_event(value.dim()))
    return model


def describe() -> str:
    """The priors in one line."""
    return (
        f"lengthscale ~ sqrt(D) LogNormal(0, {LOG_NORMAL['lengthscale'][1]}), "
        f"variance ~ LogNormal(0, {LOG_NORMAL['variance'][1]}), "
        f"noise variance ~ {NOISE_FLOOR:g} + LogNormal(log {math.exp(LOG_NORMAL['noise'][0]):g}, {LOG_NORMAL['noise'][1]:g})"
    )
