"""The sparse strategy: inducing variables are sampled, and function values given them row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.kernels.factor_faults import explained
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.conditional import RowObservation
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.processes import (
    BasisFamily,
    Coefficients,
    ConditionedProcess,
    InducingPoints,
    Orthogonal,
    Process,
    WhitenedProcess,
)
from pyro_dgp.processes.basis import SMALLEST_VARIANCE, Basis
from pyro_dgp.processes.conditional_moments import conditional_moments
from pyro_dgp.processes.whitened_gaussian import WhitenedGaussian
from pyro_dgp.propagation import MonteCarlo

#: Inducing inputs ``(M, D)``, or the basis whose coefficients are sampled, by process key, ``h`` or ``y/f``.
Inputs = Mapping[str, Tensor | Basis]


def inducing_inputs(model: Any, *args: Any, num_inducing: int, **kwargs: Any) -> dict[str, Tensor]:
    """Inducing inputs ``(M, D)`` of every GP of a model: k-means of the training inputs, carried through the layers' means.

    :param args: arguments of the model that it will be sampled with, ``inducing_inputs(model, x, y, num_inducing=20)``, with ``kwargs``.
    :returns: by the name of the site, ``h``, or of the observation and the GP in it, ``y/f``.
    """
    processes = _processes(model, InducingPoints(num_inducing), *args, **kwargs)
    return {key: process.basis.inducing_points.detach().clone() for key, process in processes.items()}


def bases_of(model: Any, family: BasisFamily | Orthogonal, *args: Any, **kwargs: Any) -> dict[str, Basis]:
    """Bases of every GP of a model, initialised as a guide does it, to be held fixed: ``whitened(model, bases_of(model, family, x, y))``.

    >>> import torch
    >>> from pyro_dgp import DeepGP, FourierFeatures, bases_of
    >>> x = torch.linspace(0.0, 1.0, 9)[:, None]
    >>> model = DeepGP(x, 1, kernel="matern32")
    >>> {name: basis.size for name, basis in bases_of(model, FourierFeatures(5), x, x[:, 0]).items()}
    {'y/f': 11}

    :param family: a recipe for bases, such as ``FourierFeatures(20)``.
    :param args: arguments of the model that it will be sampled with.
    :returns: by the name of the site, ``h``, or of the observation and the GP in it, ``y/f``.
    """
    return {key: _held(process.basis) for key, process in _processes(model, family, *args, **kwargs).items()}


def _processes(model: Any, family: BasisFamily | Orthogonal, *args: Any, **kwargs: Any) -> dict[str, WhitenedProcess]:
    guide = Variational(model, family, MonteCarlo(1))
    guide.initialize(*args, **kwargs)
    if guide.groups:
        raise ValueError(
            f"the model has one function for each of {tuple(guide.groups)} groups, and sparse sampling takes models of one function: sample "
            "without inducing inputs"
        )
    return {key: process for key, process in guide.processes.named_children() if isinstance(process, WhitenedProcess)}


def _held(basis: Basis) -> Basis:
    """Return the basis with its parameters as fixed tensors."""
    for module in basis.modules():
        for name in list(getattr(module, "_pyro_params", {})):
            value = getattr(module, name).detach().clone()
            delattr(module, name)
            module.register_buffer(name, value)
    return basis


class _KnownCoefficients(Coefficients):
    """Coefficients whose values are known."""

    kind = "delta"

    def __init__(self, white: Tensor) -> None:
        super().__init__(white.shape)
        self.register_buffer("white", white)

    def read(self, basis: Basis, prior: FunctionPrior, deviations: Tensor | None = None) -> WhitenedGaussian:
        return WhitenedGaussian(cast(Tensor, self.white), None, "delta")


class _SparseProcess(WhitenedProcess):
    """A process for one draw of the coefficients. The basis, which serves all draws, is no part of it: Pyro has one place for each part."""

    def __init__(self, basis: Basis, q: Coefficients) -> None:
        Process.__init__(self)
        object.__setattr__(self, "basis", basis)
        self.q, self.groups = q, q.groups


def sparse_process(prior: FunctionPrior, inducing: Tensor | Basis, white: Tensor) -> Process:
    """Return the GP given its inducing variables, or the coefficients of a basis, whitened: ``(M, D_out)``."""
    _require_exact(prior)
    if isinstance(inducing, Basis):
        return _SparseProcess(inducing, _KnownCoefficients(white.mT))
    _check(prior, inducing)
    known = prior.at(inducing)
    return ConditionedProcess(known, known.unwhiten(white), None)


def num_coefficients(inducing: Tensor | Basis) -> int:
    """Return M."""
    return inducing.size if isinstance(inducing, Basis) else len(inducing)


def tensors_of(inducing: Tensor | Basis) -> list[Tensor]:
    """Return the tensors that tell inducing inputs, or a basis, from others."""
    return list(inducing.state_dict().values()) if isinstance(inducing, Basis) else [inducing]


def sparse_moments(prior: FunctionPrior, inducing: Tensor | Basis, white: Tensor) -> Moments:
    """``p(f(x_n) | u)``, row by row, with ``u = m(Z) + L_z v`` or any basis, and ``v`` ``(M, D_out)``: both ``(N, D_out)``."""
    _require_exact(prior)
    q = WhitenedGaussian(white.mT, None, "delta")
    if isinstance(inducing, Basis):
        loc, variance = inducing.moments(prior, q)
        mean = prior.mean + loc
        return Moments(mean, variance.expand(mean.shape))
    _check(prior, inducing)
    z, x = inducing.unsqueeze(0), prior.x.unsqueeze(-3)
    covariance = prior.covariance
    from_points = covariance.from_points(z)
    try:
        loc, change = conditional_moments(from_points.within(), [from_points.to(x)], q, prior.jitter, prior.name)
    except NotPositiveDefiniteError as error:
        raise explained(error, covariance, z, "inducing points") from error
    variance = (covariance.diagonal(x) + change).clamp_min(SMALLEST_VARIANCE).mT
    mean = prior.mean + loc.mT
    return Moments(mean, variance.expand(mean.shape))


def _require_exact(prior: FunctionPrior) -> None:
    if not prior.is_dense:
        raise ValueError(
            f"{prior.name!r} has inducing inputs and a Vecchia approximation: give whitened(model, inducing) the model itself, or leave its inducing "
            "inputs out"
        )


def _check(prior: FunctionPrior, inputs: Tensor) -> None:
    if inputs.dim() != 2 or inputs.shape[-1] != prior.x.shape[-1]:
        raise ValueError(
            f"inducing inputs of {prior.name!r} have shape (M, {prior.x.shape[-1]}), got {tuple(inputs.shape)}"
        )


def sparse_values(prior: FunctionPrior, inducing: Tensor | Basis, white: Tensor, noise: Tensor) -> Tensor:
    """Function values ``mean + sd * noise`` of rows that are independent given the inducing variables; noise is standard normal."""
    mean, variance = sparse_moments(prior, inducing, white)
    return mean + variance.sqrt() * noise


def sparse_observation(observation: Observation, moments: Moments) -> RowObservation:
    """p(y | u) with the function values integrated out row by row, for Gaussian noise."""
    return RowObservation(observation.conditional.components(moments), 1 if observation.outputs == 1 else 2)
