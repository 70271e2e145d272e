"""Functions drawn from q(f) of one Gaussian process: a draw of the prior, moved to the values that q(f) is conditioned on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.functions.joint_path import JointPath, require_functions
from pyro_dgp.functions.paths import PathRequest
from pyro_dgp.functions.prior_paths import draw_path
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.kernels import Covariance
from pyro_dgp.processes import Process
from pyro_dgp.processes.base import KnownCoefficients, KnownValues
from pyro_dgp.propagation import MomentMatching, MonteCarlo, Propagation, SigmaPoints, WithMean


class Functions(ABC):
    """K functions of one Gaussian process.

    :ivar numbers: how many numbers an evaluation holds for each row.
    """

    numbers: int

    @abstractmethod
    def __call__(self, prior: FunctionPrior) -> Float[Tensor, "k n o"]:
        """Return the values at the prior's inputs, ``(N, D)`` or ``(K, N, D)``."""


class PosteriorPath(Functions):
    """K functions of one Gaussian process, ``f(x) = m(x) + g(x) + k(x, Z) (K_ZZ + R)^-1 (u - m(Z) - g(Z) - e)``.

    Matheron's rule (Wilson et al. 2020, Eq. 13): g is a draw of the prior of zero mean, u of the values at Z that q(f) is conditioned on,
    and ``e ~ N(0, R)`` of their noise, with R whatever the Cholesky factor of q has on its diagonal beside the kernel matrix: noise of
    observations, and jitter. All moments of second order are those of q(f), jitter included.

    :param prior: the prior at any inputs, for its kernel and mean.
    :param known: the draws of u.
    :param num_draws: number of draws, K.
    :param num_frequencies: number of random features of g.
    """

    def __init__(self, prior: FunctionPrior, known: KnownValues, *, num_draws: int, num_frequencies: int) -> None:
        self.x = known.x
        self._require_columns(prior)
        one = prior.x.reshape(-1, prior.x.shape[-1])[None, :1]
        kernels = prior.covariance.diagonal(one).shape[-2]
        self.numbers = num_draws * kernels * (2 * num_frequencies + 3 * known.x.shape[-2])
        request = PathRequest(prior.name, one, num_draws, prior.num_outputs, kernels, num_frequencies)
        self.prior_path = draw_path(prior.covariance, request)
        drawn = self.prior_path(self.x.unsqueeze(0))
        rest = (known.factor.square().sum(-1) - prior.covariance.diagonal(self.x)).clamp_min(0.0)
        drawn = drawn + rest.sqrt() * torch.randn_like(drawn)
        self.weights = _solve(known.factor.mT, known.white - _solve(known.factor, drawn, upper=False), upper=True)

    def __call__(self, prior: FunctionPrior) -> Float[Tensor, "k n o"]:
        """Return the values at the prior's inputs."""
        self._require_columns(prior)
        x = prior.x if prior.x.dim() == 3 else prior.x.unsqueeze(0)
        values = self.prior_path(x.unsqueeze(-3)) + self._update(prior, x)
        return prior.mean + values.mT

    def _require_columns(self, prior: FunctionPrior) -> None:
        if prior.x.shape[-1] != self.x.shape[-1]:
            raise ValueError(
                f"the inputs of {prior.name!r} have {prior.x.shape[-1]} columns and those that it was fitted at {self.x.shape[-1]}: pass "
                "inputs of as many columns"
            )

    def _update(self, prior: FunctionPrior, x: Float[Tensor, "c n d"]) -> Float[Tensor, "k o n"]:
        """Return ``k(x, Z) weights``."""
        cross = prior.covariance.matrix(x.unsqueeze(-3), self.x)
        draws, outputs, points = self.weights.shape
        if cross.shape[0] == 1 and cross.shape[1] == 1:  # all draws and outputs are columns of one product
            flat = cross[0, 0] @ self.weights.reshape(draws * outputs, points).mT
            return flat.mT.reshape(draws, outputs, -1)
        if cross.shape[1] == 1:
            return (cross.squeeze(1) @ self.weights.mT).mT
        return (cross @ self.weights.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class _ResidualCovariance(Covariance):
    """Covariance function ``k(x, z) - a(x)' a(z)`` of what a basis leaves of the prior, at inputs that all draws and outputs share."""

    prior: FunctionPrior
    columns: Callable[[FunctionPrior], Tensor]

    def matrix(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        a = self._at(x)
        b = a if z is None else self._at(z)
        return self.prior.covariance.matrix(x, z) - a.mT @ b

    def diagonal(self, x: Tensor) -> Tensor:
        return self.prior.covariance.diagonal(x) - self._at(x).square().sum(-2)

    def _at(self, x: Tensor) -> Tensor:
        """Return the columns at inputs with an axis for the outputs, ``(..., E, N, D)``: output e has the columns of its own inputs."""
        outputs = x.shape[-3]
        parts = [self.columns(self.prior.at(x[..., e, :, :])) for e in range(outputs)]
        return torch.cat([part[..., min(e, part.shape[-3] - 1), None, :, :] for e, part in enumerate(parts)], -3)


class BasisPath(Functions):
    """K functions of one Gaussian process, ``f(x) = m(x) + a(x)' v + r(x)``, with draws v of the coefficients of a basis.

    r is what the basis leaves of the prior. It is drawn jointly at all points that are asked for, which are kept.

    :param prior: the prior at any inputs, for its kernel and mean.
    :param known: the draws of v.
    """

    def __init__(self, prior: FunctionPrior, known: KnownCoefficients) -> None:
        self.known = known
        draws = len(known.white)
        self.numbers = draws * known.white.shape[-1]
        one = prior.x.reshape(-1, prior.x.shape[-1])[None, :1]
        request = PathRequest(prior.name, one, draws, prior.num_outputs, prior.num_outputs, 0)
        require_functions(prior.covariance, request.name)
        self.rest = JointPath(_ResidualCovariance(prior, known.columns), request)

    def __call__(self, prior: FunctionPrior) -> Float[Tensor, "k n o"]:
        """Return the values at the prior's inputs."""
        x = prior.x if prior.x.dim() == 3 else prior.x.unsqueeze(0)
        columns = self.known.columns(prior.at(x))
        values = (self.known.white.unsqueeze(-2) @ columns).squeeze(-2) + self.rest(x.unsqueeze(-3))
        return prior.mean + values.mT


def posterior_functions(prior: FunctionPrior, process: Process, *, num_draws: int, num_frequencies: int) -> Functions:
    """Draw K functions of q(f): from values at known points, or from the coefficients of a basis."""
    known = process.known_values(prior, num_draws)
    if isinstance(known, KnownCoefficients):
        return BasisPath(prior, known)
    return PosteriorPath(prior, known, num_draws=num_draws, num_frequencies=num_frequencies)


def _solve(factor: Float[Tensor, "e m m"], values: Float[Tensor, "k o m"], upper: bool) -> Float[Tensor, "k o m"]:
    """Return ``L^-1 v`` for each draw and output, all draws as columns of one solve."""
    draws, outputs, points = values.shape
    if len(factor) == 1:
        columns = values.reshape(draws * outputs, points).mT
        return linalg.solve_triangular(factor[0], columns, upper=upper).mT.reshape(draws, outputs, points)
    return linalg.solve_triangular(factor, values.permute(1, 2, 0), upper=upper).permute(2, 0, 1)


class PointPath(Functions):
    """Functions ``mean(x) + xi_c sd(x)`` of a hidden layer that sigma points carry: each draw has a component c, drawn by weight.

    :param memory: the components, which all layers share.
    """

    def __init__(
        self, key: str, process: Process, propagation: Propagation, *, num_draws: int, memory: dict[str, Any]
    ) -> None:
        self.key, self.process, self.propagation, self.memory = key, process, propagation, memory
        self.num_draws, self.numbers = num_draws, 1000 * num_draws  # a process takes rows in blocks of its own

    def __call__(self, prior: FunctionPrior) -> Float[Tensor, "k n o"]:
        """Return the values at the prior's inputs."""
        marginal = self.process(prior).expand((self.num_draws,))
        return self.propagation.draw(self.key, marginal, self.memory).rsample()


@singledispatch
def hidden_functions(
    propagation: Propagation,
    key: str,
    process: Process,
    prior: FunctionPrior,
    *,
    num_draws: int,
    num_frequencies: int,
    memory: dict[str, Any],
) -> Functions:
    """Draw the functions of a hidden layer, by the type of the propagation."""
    raise ValueError(
        f"functions of {key!r} cannot be drawn from a guide whose layers {type(propagation).__name__} carries: take MonteCarlo or "
        "SigmaPoints, or register this type with pyro_dgp.functions.posterior_path.hidden_functions"
    )


@hidden_functions.register
def _samples(
    propagation: MonteCarlo, key: str, process: Process, prior: FunctionPrior, *, memory: dict[str, Any], **numbers: int
) -> Functions:
    return posterior_functions(prior, process, **numbers)


@hidden_functions.register
def _normals(
    propagation: MomentMatching,
    key: str,
    process: Process,
    prior: FunctionPrior,
    *,
    memory: dict[str, Any],
    **numbers: int,
) -> Functions:
    # Functions are those of q, which the matched normals approximate.
    return posterior_functions(prior, process, **numbers)


@hidden_functions.register
def _points(
    propagation: SigmaPoints,
    key: str,
    process: Process,
    prior: FunctionPrior,
    *,
    memory: dict[str, Any],
    num_draws: int,
    num_frequencies: int,
) -> Functions:
    return PointPath(key, process, propagation, num_draws=num_draws, memory=memory)


@hidden_functions.register
def _with_mean(propagation: WithMean, *args: Any, **named: Any) -> Functions:
    return hidden_functions(propagation.propagation, *args, **named)
