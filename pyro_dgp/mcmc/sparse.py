"""The sparse strategy: inducing variables are sampled, and function values given them row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.variational import Variational
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.conditional import RowObservation
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.processes import InducingPoints
from pyro_dgp.processes.basis import SMALLEST_VARIANCE
from pyro_dgp.processes.conditional_moments import conditional_moments
from pyro_dgp.processes.whitened_gaussian import WhitenedGaussian
from pyro_dgp.propagation import MonteCarlo

#: Inducing inputs ``(M, D)`` by process key, ``h`` or ``y/f``.
Inputs = Mapping[str, Tensor]


def inducing_inputs(model: Any, *args: Any, num_inducing: int, **kwargs: Any) -> dict[str, Tensor]:
    """Inducing inputs ``(M, D)`` of every GP of a model: k-means of the training inputs, carried through the layers' means.

    :param args: arguments of the model that it will be sampled with, ``inducing_inputs(model, x, y, num_inducing=20)``, with ``kwargs``.
    :returns: by the name of the site, ``h``, or of the observation and the GP in it, ``y/f``.
    """
    guide = Variational(model, InducingPoints(num_inducing), MonteCarlo(1))
    guide.initialize(*args, **kwargs)
    if guide.groups:
        raise ValueError(
            f"the model has one function for each of {tuple(guide.groups)} groups, and sparse sampling takes models of one function: sample "
            "without inducing inputs"
        )
    return {key: process.basis.inducing_points.detach().clone() for key, process in guide.processes.named_children()}


def at_inducing_inputs(prior: FunctionPrior, inputs: Tensor) -> FunctionPrior:
    """The same GP at its inducing inputs."""
    _check(prior, inputs)
    return prior.at(inputs)


def sparse_moments(prior: FunctionPrior, inputs: Tensor, white: Tensor) -> Moments:
    """``p(f(x_n) | u)``, row by row, with ``u = m(Z) + L_z v`` and ``v`` ``(M, D_out)``: both ``(N, D_out)``."""
    _check(prior, inputs)
    z, x = inputs.unsqueeze(0), prior.x.unsqueeze(-3)
    covariance = prior.covariance
    k_zx = [covariance.matrix(z, x)]
    loc, change = conditional_moments(
        covariance.matrix(z), k_zx, WhitenedGaussian(white.mT, None, "delta"), prior.jitter, prior.name
    )
    variance = (covariance.diagonal(x) + change).clamp_min(SMALLEST_VARIANCE).mT
    mean = prior.mean + loc.mT
    return Moments(mean, variance.expand(mean.shape))


def _check(prior: FunctionPrior, inputs: Tensor) -> None:
    if inputs.dim() != 2 or inputs.shape[-1] != prior.x.shape[-1]:
        raise ValueError(
            f"inducing inputs of {prior.name!r} have shape (M, {prior.x.shape[-1]}), got {tuple(inputs.shape)}"
        )


def sparse_values(prior: FunctionPrior, inputs: Tensor, white: Tensor, noise: Tensor) -> Tensor:
    """Function values ``mean + sd * noise`` of rows that are independent given the inducing variables; noise is standard normal."""
    mean, variance = sparse_moments(prior, inputs, white)
    return mean + variance.sqrt() * noise


def sparse_observation(observation: Observation, moments: Moments) -> RowObservation:
    """p(y | u) with the function values integrated out row by row, for Gaussian noise."""
    return RowObservation(observation.conditional.components(moments), 1 if observation.outputs == 1 else 2)
