"""Proper priors for the hyperparameters of :class:`~pyro_dgp.DeepGP`, for methods that sample them."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroSample
from torch import Tensor

from pyro_dgp.kernels import Kernel
from pyro_dgp.kernels.hyperparameters import POSITIVE, is_positive
from pyro_dgp.likelihoods import NOISE_FLOOR, Likelihood

#: A model of Gaussian processes and likelihoods.
Model = TypeVar("Model", bound=PyroModule)


class FlooredLogNormal(dist.TransformedDistribution):  # type: ignore[misc]
    """Distribution ``floor + LogNormal(loc, scale)`` of a variance that never reaches zero."""

    def __init__(self, loc: Tensor, scale: Tensor, floor: float = NOISE_FLOOR) -> None:
        self.floor = floor
        super().__init__(dist.LogNormal(loc, scale), [torch.distributions.AffineTransform(floor, 1.0)])

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlooredLogNormal:
        """Return a :class:`FlooredLogNormal` of the given batch shape."""
        base = self.base_dist.expand(torch.Size(batch_shape))
        return FlooredLogNormal(base.loc, base.scale, self.floor)

    @property
    def support(self) -> constraints.Constraint:
        """Real numbers above the floor."""
        return constraints.greater_than(self.floor)


#: Mean and standard deviation of the logarithm of each kind of parameter; lengthscales and variances of kernels are
#: relative to their initial values.
LOG_NORMAL = {"lengthscale": (0.0, 0.75), "variance": (0.0, 0.75), "noise": (math.log(0.05), 1.0)}


def with_priors(model: Model) -> Model:
    """Give the positive kernel parameters and the noise variances the log-normal priors :data:`LOG_NORMAL`, in place.

    The priors suit targets and inputs of unit variance. Priors that are there stay.

    :param model: a :class:`~pyro_dgp.DeepGP`, or any module of Gaussian processes and likelihoods of this library, whatever their names; a likelihood of another
        kind is found as ``model.likelihood``, with its ``variance``.
    :returns: the model.

    >>> import pyro, torch
    >>> from pyro_dgp import DeepGP, with_priors
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> trace = pyro.poutine.trace(with_priors(DeepGP(x, layers=1))).get_trace(x)
    >>> trace.stochastic_nodes
    ['top.kernel.variance', 'top.kernel.lengthscale', 'likelihood.variance', 'y']
    """
    likelihoods = [module for module in model.modules() if isinstance(module, Likelihood)]
    if isinstance(own := getattr(model, "likelihood", None), PyroModule) and own not in likelihoods:
        likelihoods.append(own)
    for module in list(model.modules()):
        if not isinstance(module, PyroModule) or module in likelihoods:
            continue
        for name, (constraint, _) in list(module._pyro_params.items()):
            if not (is_positive(constraint) if isinstance(module, Kernel) else isinstance(constraint, type(POSITIVE))):
                continue
            value = getattr(module, name).detach()
            key = "lengthscale" if name == "lengthscale" else "variance"
            loc, scale = LOG_NORMAL[key]
            centre = value.log() + loc
            setattr(
                module, name, PyroSample(dist.LogNormal(centre, torch.full_like(value, scale)).to_event(value.dim()))
            )
    for likelihood in likelihoods:
        if "variance" in likelihood._pyro_params:
            value = likelihood.variance.detach()
            centre, spread = (torch.full_like(value, number) for number in LOG_NORMAL["noise"])
            likelihood.variance = PyroSample(FlooredLogNormal(centre, spread).to_event(value.dim()))
    return model


def describe() -> str:
    """Describe the priors in one line."""
    return (
        f"lengthscale ~ sqrt(D) LogNormal(0, {LOG_NORMAL['lengthscale'][1]}), "
        f"variance ~ LogNormal(0, {LOG_NORMAL['variance'][1]}), "
        f"noise variance ~ {NOISE_FLOOR:g} + LogNormal(log {math.exp(LOG_NORMAL['noise'][0]):g}, {LOG_NORMAL['noise'][1]:g})"
    )
