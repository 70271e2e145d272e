"""Functions drawn from q(f) of one Gaussian process: a draw of the prior, moved to the values that q(f) is conditioned on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.functions.paths import PathRequest
from pyro_dgp.functions.prior_paths import draw_path
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes import Process
from pyro_dgp.propagation import MonteCarlo, Propagation, SigmaPoints, WithMean


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
    :param process: q(f).
    :param num_draws: K.
    :param num_frequencies: number of random features of g.
    """

    def __init__(self, prior: FunctionPrior, process: Process, *, num_draws: int, num_frequencies: int) -> None:
        known = process.known_values(prior, num_draws)
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


def _solve(factor: Float[Tensor, "e m m"], values: Float[Tensor, "k o m"], upper: bool) -> Float[Tensor, "k o m"]:
    """Return ``L^-1 v`` for each draw and output, all draws as columns of one solve."""
    draws, outputs, points = values.shape
    if len(factor) == 1:
        columns = values.reshape(draws * outputs, points).mT
        return torch.linalg.solve_triangular(factor[0], columns, upper=upper).mT.reshape(draws, outputs, points)
    return torch.linalg.solve_triangular(factor, values.permute(1, 2, 0), upper=upper).permute(2, 0, 1)


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
    return PosteriorPath(prior, process, **numbers)


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
