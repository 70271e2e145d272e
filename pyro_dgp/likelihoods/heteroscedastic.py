"""Gaussian noise whose variance is a function of the inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.internal.parameters import require_number, require_shape
from pyro_dgp.internal.quadrature import normal_nodes
from pyro_dgp.internal.views import Integrated
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation
from pyro_dgp.likelihoods.gamma_score import log_expected_normal_power, log_normal_power_integral
from pyro_dgp.likelihoods.moments import Moments


@dataclass(frozen=True)
class HeteroscedasticConditional(Conditional):
    """``y_nd ~ N(f_nd, variance_d exp(g_nd))``; function values are ``(f, g)`` side by side, ``(..., N, 2 D_out)``."""

    variance: Tensor
    integration = (
        "closed form for the expected log density, Gauss-Hermite (20 nodes) over the log noise for predictions"
    )

    def _both(self, values: Tensor) -> tuple[Tensor, Tensor]:
        first, second = values.chunk(2, -1)
        return first, second

    def _noise(self, log_noise: Tensor) -> Tensor:
        # Beyond it the square of the result, by which gradients are divided, and its product with a variance of f are no numbers.
        most, level = 0.4 * math.log(torch.finfo(log_noise.dtype).max), self.variance.detach().log().unsqueeze(-2)
        return self.variance.unsqueeze(-2) * log_noise.clamp(-most - level, most - level).exp()

    def _rows(self, mean: Tensor, variance: Tensor) -> dist.Normal:
        if mean.shape[-1] == 1:
            mean, variance = mean.squeeze(-1), variance.squeeze(-1)
        return dist.Normal(mean, variance.sqrt(), validate_args=False)

    def given(self, f: Tensor) -> RowObservation:
        """Independent normals ``N(f, variance exp(g))``."""
        mean, log_noise = self._both(f)
        return RowObservation(self._rows(mean, self._noise(log_noise)), 1 if mean.shape[-1] == 1 else 2)

    def location(self, f: Tensor) -> Tensor:
        """The functions of the mean, without those of the log noise."""
        return self._both(f)[0]

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``E log N(y | f, variance exp(g))``, with ``E exp(-g) = exp(-m_g + v_g / 2)``."""
        (mean, log_noise), (variance, spread) = self._both(f.mean), self._both(f.variance)
        target = y.unsqueeze(-1) if mean.shape[-1] == 1 else y
        squared = ((target - mean).square() + variance) * (spread / 2).exp() / self._noise(log_noise)
        log_noise = self.variance.unsqueeze(-2).log() + log_noise
        return -0.5 * (squared + log_noise + math.log(2 * math.pi)).sum(-1)

    def _of_noise(self, f: Moments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean and variance of f, the noise variance at nodes ``(K, ..., N, D_out)``, and log weights ``(K, 1, ...)``."""
        (mean, log_noise), (variance, spread) = self._both(f.mean), self._both(f.variance)
        scale = spread.sqrt()  # densities are about half as wide in the log noise as the unit bumps that nodes serve
        nodes, log_weights = (values.to(mean).reshape(-1, *[1] * mean.dim()) for values in normal_nodes(2 * scale))
        return mean, variance, self._noise(log_noise + scale * nodes), log_weights

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """See :class:`Conditional`; f is integrated out in closed form at each node of the log noise."""
        mean, variance, noise, log_weights = self._of_noise(f)
        target = y.unsqueeze(-1) if mean.shape[-1] == 1 else y
        return torch.logsumexp(log_weights + log_expected_normal_power(target - mean, variance, noise, power), 0).sum(
            -1
        )

    def log_expected_gamma_score(self, y: Tensor, f: Moments, gamma: float) -> Tensor:
        """See :class:`Conditional`."""
        mean, variance, noise, log_weights = self._of_noise(f)
        target, power = y.unsqueeze(-1) if mean.shape[-1] == 1 else y, gamma - 1
        score = log_expected_normal_power(target - mean, variance, noise, power)
        score = score - power / gamma * log_normal_power_integral(noise, gamma)
        return torch.logsumexp(log_weights + score, 0).sum(-1)

    def components(self, f: Moments) -> Distribution:
        """Mixtures of normals over the log noise."""
        mean, variance, noise, log_weights = self._of_noise(f)
        total = variance + noise
        return Integrated(self._rows(mean.expand(total.shape), total), log_weights.flatten())

    def of_outputs(self, chosen: Sequence[int]) -> tuple[Conditional, list[int]]:
        """The noise of these outputs, each with its two functions."""
        count = self.variance.shape[-1]
        return HeteroscedasticConditional(self.variance[..., list(chosen)]), [
            *chosen,
            *(count + each for each in chosen),
        ]


class HeteroscedasticGaussian(Likelihood):
    """Gaussian noise that changes with the inputs: ``y_nd ~ N(f_nd, variance_d exp(g_nd))``, f and g functions of their own.

    Call it on two Gaussian processes with as many outputs each, ``likelihood(gp(x), noise_gp(x))``, or on one with ``2 D_out`` outputs, of which the
    latter half is g (Lazaro-Gredilla and Titsias 2011; Saul and others 2016).

    >>> import torch
    >>> from pyro_dgp import HeteroscedasticGaussian
    >>> f = torch.tensor([[1.0, 0.0], [1.0, 2.0]])  # f and g of two rows
    >>> HeteroscedasticGaussian(variance=0.1).given(f).variance.round(decimals=2).detach()
    tensor([0.1000, 0.7400])

    :param outputs: D_out; y is ``(N,)`` for one and ``(N, D_out)`` for several.
    :param variance: noise variance where g is zero, at the start; squared units of y.
    """

    functions: ClassVar[tuple[str, ...]] = ("f", "log_noise")

    def __init__(self, outputs: int = 1, variance: float = 0.1) -> None:
        super().__init__()
        require_number(variance)
        if not variance > 0:
            raise ValueError(f"the initial noise variance must be positive, got {variance}")
        self.outputs = outputs
        start = torch.full((outputs,), float(variance))
        self.variance: Any = PyroParam(start, constraint=constraints.positive, event_dim=1)

    def require_outputs(self, outputs: int) -> None:
        """Raise unless there are two functions for each output."""
        if outputs != 2 * self.outputs:
            raise ValueError(
                f"HeteroscedasticGaussian(outputs={self.outputs}) takes {2 * self.outputs} functions, half of them for the noise, and got {outputs}: "
                "call it on two Gaussian processes, likelihood(gp(x), noise_gp(x))"
            )

    def target_outputs(self, outputs: int) -> int:
        """Number of outputs of y."""
        return self.outputs

    def conditional(self) -> HeteroscedasticConditional:
        """The likelihood with ``variance`` read now."""
        variance = self.variance
        require_shape(variance, (self.outputs,), "HeteroscedasticGaussian.variance")
        return HeteroscedasticConditional(variance)
