"""Surrogate data (Murray and Adams 2010): hyperparameters that move while noisy copies of the function values stay.

With whitened values fixed, a new lengthscale changes all function values; under a sharp likelihood it can hardly move. Surrogate data
``g ~ N(f, s^2)`` are drawn for the present function values, and then hyperparameters are updated given g and the noise ``eta`` in

    v = v^ + C^-T eta,   C C^T = I + L^T L / s^2,   C C^T v^ = L^T (g - m) / s^2,

which is how v given g is drawn, with density ``p(y | f) N(g; m, L L^T + s^2 I)`` times the priors. Function values stay near g
where g is precise; for large s this is the whitened update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.internal.site_names import whitened_site
from pyro_dgp.mcmc.evaluation import Evaluate, Evaluation
from pyro_dgp.mcmc.sparse import Inputs


@dataclass(frozen=True)
class SurrogateScale:
    """Distribution of the scale ``s`` of surrogate data, log-uniform between two scales in units of function values.

    >>> SurrogateScale(0.1, 1.0)
    SurrogateScale(low=0.1, high=1.0)
    """

    low: float = 0.05
    high: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(f"scales of surrogate data are positive, low first, got {self.low} and {self.high}")

    def draw(self) -> float:
        """Draw one scale."""
        return self.low * (self.high / self.low) ** float(torch.rand(()))


@dataclass(frozen=True)
class Surrogates:
    """Surrogate data of some GPs, or of none, with the noise from which the present whitened values follow.

    :ivar scale: ``s``, a number in a tensor.
    :ivar data: ``g`` by function site, ``(..., N, D_out)``.
    :ivar noise: ``eta`` by function site, the same shape.
    :ivar log_density: of the data at the hyperparameters they were drawn at, nats.
    """

    scale: Tensor = field(default_factory=lambda: torch.ones(()))
    data: dict[str, Tensor] = field(default_factory=dict)
    noise: dict[str, Tensor] = field(default_factory=dict)
    log_density: float = 0.0


class _Posterior:
    """The distribution of a GP's whitened values given surrogate data, and the density of the data."""

    def __init__(self, prior: FunctionPrior, data: Tensor, scale: Tensor) -> None:
        factor, residual = prior.scale_tril, (data - prior.mean) / scale
        scaled = factor / scale
        precision = scaled.mT @ scaled
        precision = precision + linalg.identity(precision)
        self._chol = linalg.cholesky(precision, 0.0, prior.name)
        self._shift = linalg.solve_factor(self._chol, linalg.apply_factor(scaled.mT, residual))  # C^T v^
        half_log_determinant = linalg.half_log_determinant(self._chol, prior.num_outputs).sum()
        misfit = residual.square().sum() - self._shift.square().sum()
        self.log_density = (
            -0.5 * misfit - half_log_determinant - data.numel() * (scale.log() + 0.5 * math.log(2 * math.pi))
        )

    def noise(self, whitened: Tensor) -> Tensor:
        """``eta = C^T (v - v^)``."""
        return linalg.apply_factor(self._chol.mT, whitened) - self._shift

    def whitened(self, noise: Tensor) -> Tensor:
        """``v = v^ + C^-T eta``, the inverse of :meth:`noise`."""
        return linalg.solve_factor(self._chol.mT, self._shift + noise, upper=True)


class DrawSurrogates(Evaluate):
    """Runs a model at given values and draws surrogate data for some of its GPs."""

    def __init__(
        self,
        values: Mapping[str, Tensor],
        known: Evaluation,
        inducing: Inputs,
        *,
        names: Iterable[str],
        scale: Tensor,
    ) -> None:
        super().__init__(values, known, inducing)
        self.names, self.scale = set(names), scale
        self.data: dict[str, Tensor] = {}
        self.noise: dict[str, Tensor] = {}
        self.log_density = 0.0

    def function_values(self, name: str, prior: FunctionPrior, inputs: Tensor | None) -> Tensor:
        """See :class:`Evaluate`; surrogate data of GPs with dense factors are drawn on the side."""
        value = super().function_values(name, prior, inputs)
        if name in self.names and prior.is_dense:
            data = value + self.scale * torch.randn_like(value)
            posterior = _Posterior(prior, data, self.scale)
            self.data[name], self.noise[name] = data, posterior.noise(self.values[whitened_site(name)])
            self.log_density += float(posterior.log_density)
        return value


class EvaluateGiven(Evaluate):
    """Runs a model at given values, except for the GPs that have surrogate data: their whitened values follow from the noise."""

    def __init__(
        self, values: Mapping[str, Tensor], known: Evaluation, inducing: Inputs, *, surrogates: Surrogates
    ) -> None:
        super().__init__(values, known, inducing)
        self.surrogates = surrogates
        self.log_surrogates: list[Tensor] = []
        self.whitened: dict[str, Tensor] = {}

    def function_values(self, name: str, prior: FunctionPrior, inputs: Tensor | None) -> Tensor:
        """See :class:`Evaluate`; they come from the noise where there are surrogate data."""
        if name not in self.surrogates.data:
            return super().function_values(name, prior, inputs)
        self.met.setdefault(whitened_site(name))
        posterior = _Posterior(prior, self.surrogates.data[name], self.surrogates.scale)
        white = posterior.whitened(self.surrogates.noise[name])
        self.log_surrogates.append(posterior.log_density)
        self.whitened[whitened_site(name)] = white
        self.factors[name] = prior.scale_tril
        return prior.unwhiten(white)
