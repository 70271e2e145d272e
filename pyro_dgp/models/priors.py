"""Proper priors for the hyperparameters of :class:`~pyro_dgp.DeepGP`, for methods that sample them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    :raises ValueError: for two modules of a kind whose parameters have one name in Pyro, as in a plain ``torch.nn.ModuleList``.

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
    priors: dict[str, tuple[PyroModule, str, PyroSample]] = {}
    for module, name, prior in (*_of_kernels(model, likelihoods), *_of_noises(likelihoods)):
        site = f"{module._pyro_name}.{name}" if module._pyro_name else name
        if site in priors:
            raise ValueError(
                f"two modules of the model have a parameter {site!r}, and their priors would have this name both: make them attributes of one PyroModule "
                "(pyro.nn.PyroModule in the place of torch.nn.Module, PyroModule[torch.nn.ModuleList] for lists)"
            )
        priors[site] = (module, name, prior)
    for module, name, prior in priors.values():
        setattr(module, name, prior)
    return model


def _of_kernels(model: PyroModule, likelihoods: Sequence[PyroModule]) -> Iterator[tuple[PyroModule, str, PyroSample]]:
    """Iterate over the positive parameters of modules that are no likelihoods, with a prior of each."""
    for module in model.modules():
        if not isinstance(module, PyroModule) or module in likelihoods:
            continue
        for name, (constraint, _) in module._pyro_params.items():
            if not (is_positive(constraint) if isinstance(module, Kernel) else isinstance(constraint, type(POSITIVE))):
                continue
            value = getattr(module, name).detach()
            loc, scale = LOG_NORMAL["lengthscale" if name == "lengthscale" else "variance"]
            prior = dist.LogNormal(value.log() + loc, torch.full_like(value, scale))
            yield module, name, PyroSample(prior.to_event(value.dim()))


def _of_noises(likelihoods: Sequence[PyroModule]) -> Iterator[tuple[PyroModule, str, PyroSample]]:
    """Iterate over the noise variances of likelihoods, with a prior of each."""
    for likelihood in likelihoods:
        if "variance" in likelihood._pyro_params:
            value = likelihood.variance.detach()
            centre, spread = (torch.full_like(value, number) for number in LOG_NORMAL["noise"])
            yield likelihood, "variance", PyroSample(FlooredLogNormal(centre, spread).to_event(value.dim()))


def describe() -> str:
    """Describe the priors in one line."""
    return (
        f"lengthscale ~ sqrt(D) LogNormal(0, {LOG_NORMAL['lengthscale'][1]}), "
        f"variance ~ LogNormal(0, {LOG_NORMAL['variance'][1]}), "
        f"noise variance ~ {NOISE_FLOOR:g} + LogNormal(log {math.exp(LOG_NORMAL['noise'][0]):g}, {LOG_NORMAL['noise'][1]:g})"
    )
