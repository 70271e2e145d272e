"""Gaussian noise whose variance is a function of the inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from pyro_dgp.internal.recording import failed, recording
from pyro_dgp.internal.views import Integrated
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation
from pyro_dgp.likelihoods.gamma_score import log_expected_normal_power, log_normal_power_integral
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.placed_mixture import PlacedMixture

#: Reach of nodes beyond all modes, in standard deviations of the log noise; their distance in widths of a mode, and in the log noise.
_REACH, _STEP, _WIDEST = 5.7, 1.1, 0.6
#: Fewest and most steps between nodes, and those of a recorded function, which cannot look at its numbers.
_FEWEST, _MOST, _RECORDED = 12, 400, 60
#: Steps, and nats below the largest value, by which the mass of an integrand is looked for.
_COARSE, _DEPTH = 128, 50.0


@dataclass(frozen=True)
class HeteroscedasticConditional(Conditional):
    """``y_nd ~ N(f_nd, variance_d exp(g_nd))``; function values are ``(f, g)`` side by side, ``(..., N, 2 D_out)``."""

    variance: Tensor
    integration = "closed form for the expected log density, trapezoidal rule over the log noise for predictions"

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

    def element_log_power(self, y: Tensor, f: Moments, power: float, tilt: float = 0.0) -> Tensor:
        """``log E N(y_nd | f_nd, noise_nd)^power noise_nd^tilt``, ``(..., N, D_out)``, with f integrated out in closed form at nodes of the log noise."""
        (mean, log_noise), (variance, spread) = self._both(f.mean), self._both(f.variance)
        deviation = y.reshape(*y.shape, *[1] * (mean.shape[-1] == 1)) - mean

        def log_term(at: Tensor) -> Tensor:
            noise = self._noise(at)
            log_expected = log_expected_normal_power(deviation, variance, noise, power)
            return log_expected + tilt * noise.log() if tilt else log_expected

        with torch.no_grad():
            parts = deviation.square(), power * variance, self._noise(log_noise)
            low, high, step = log_noise_range(*parts, spread=spread, power=power, tilt=tilt)
            nodes = _number(low, high, step)
            if nodes > _MOST:
                around = lambda z: log_term(log_noise + spread.sqrt() * z)  # noqa: E731
                low, high = _where_the_mass_is(around, low, high, step=step)
                nodes = min(_number(low, high, step), _MOST)
            share = torch.linspace(0, 1, nodes + 1, dtype=torch.float64).to(low).reshape(-1, *[1] * low.dim())
            z = low + (high - low) * share
            log_weights = ((high - low) / (nodes * math.sqrt(2 * math.pi))).log() - 0.5 * z.square()
        return torch.logsumexp(log_weights + log_term(log_noise + spread.sqrt() * z), 0)

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """See :class:`Conditional`."""
        return self.element_log_power(y, f, power).sum(-1)

    def log_expected_gamma_score(self, y: Tensor, f: Moments, gamma: float) -> Tensor:
        """See :class:`Conditional`. The integral of ``N(y | f, noise)^gamma`` is a power of the noise, besides a constant."""
        power = gamma - 1
        at_one = log_normal_power_integral(torch.ones_like(self.variance), gamma)
        tilt = power**2 / (2 * gamma)
        return (self.element_log_power(y, f, power, tilt) - power / gamma * at_one.unsqueeze(-2)).sum(-1)

    def element_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """See :class:`Conditional`."""
        log_prob = self.element_log_power(y, f, 1.0)
        return log_prob.squeeze(-1) if log_prob.shape[-1] == 1 else log_prob

    def components(self, f: Moments) -> Distribution:
        """Mixtures of normals over the log noise; each log density has nodes of its own, and the variance is ``v + variance exp(m_g + v_g / 2)``."""
        (mean, log_noise), (variance, spread) = self._both(f.mean), self._both(f.variance)
        scale = (
            spread.sqrt()
        )  # distribution functions are about half as wide in the log noise as the unit bumps that nodes serve
        nodes, log_weights = (values.to(mean) for values in normal_nodes(2 * scale))
        total = variance + self._noise(log_noise + scale * nodes.reshape(-1, *[1] * mean.dim()))
        known = self._rows(mean, variance + self._noise(log_noise + spread / 2)).variance
        rows = self._rows(mean.expand(total.shape), total)
        return PlacedMixture(self, f, Integrated(rows, log_weights, known_variance=known))

    def of_outputs(self, chosen: Sequence[int]) -> tuple[Conditional, list[int]]:
        """The noise of these outputs, each with its two functions."""
        count = self.variance.shape[-1]
        return HeteroscedasticConditional(self.variance[..., list(chosen)]), [
            *chosen,
            *(count + each for each in chosen),
        ]


def log_noise_range(
    squared: Tensor, variance: Tensor, noise: Tensor, *, spread: Tensor, power: float, tilt: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Ends, and a step, of nodes for ``E N(y | f, noise)^power noise^tilt`` over the log noise g, in standard deviations of it: elementwise.

    With n the noise variance, v that of f times the power, and r the deviation of y, the log of the integrand less that of N(g) has the derivative
    ``(power r^2 n / (n + v)^2 - n / (n + v) + 1 - power) / 2 + tilt``. It is ``-max(power, 1) / 2 + tilt`` at least, and for g above its mean m at most
    ``(power r^2 / ((n_m + 2 v) exp(share (g - m))) + max(1 - power, 0)) / 2 + tilt`` with ``share = n_m / (n_m + 2 v)``: all modes lie between
    the roots of g for these. The curvature at a mode is bounded alike; the trapezoidal rule then errs by less than 1e-4, and by 1e-6 for a spread of 0.5.

    :param squared: squared deviation of y, r^2.
    :param variance: that of f times the power, v.
    :param noise: n at the mean of g.
    :param spread: variance of g.
    """
    spread = spread.clamp_min(torch.finfo(spread.dtype).eps ** 2)
    scale = spread.sqrt()
    least, most = tilt - max(power, 1.0) / 2, tilt + max(1 - power, 0.0) / 2
    noise = noise * (most * spread).exp()
    share = noise / torch.stack([noise, noise + 2 * variance])
    pull = 0.5 * power * spread * squared / noise
    up = (_root(pull * share.square()) / share).amin(0) + most * spread
    width = scale * (1 + up + spread * (0.5 * power + 0.125)).rsqrt()
    low, high = least * scale - _REACH, up / scale + _REACH
    return low, high, (_STEP * width).clamp_max(_WIDEST) / scale


def _number(low: Tensor, high: Tensor, step: Tensor) -> int:
    """Number of steps that the rows need. A recorded function cannot look at it, has a fixed number, and reports rows that need more as failures."""
    number = (high - low) / step
    if recording():
        failed(number > _RECORDED)
        return _RECORDED
    most = float(number.max()) if number.numel() else 0.0
    return max(_FEWEST, math.ceil(most)) if math.isfinite(most) else _FEWEST


def _where_the_mass_is(
    log_term: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, *, step: Tensor
) -> tuple[Tensor, Tensor]:
    """Ends of nodes that take a number of steps at most, as those of outliers of a hundred standard deviations do not, around the mass of the integrand.

    :param log_term: from nodes in standard deviations of the log noise to what is integrated.
    """
    for _ in range(4):
        if _number(low, high, step) <= _MOST:
            break
        coarse = (high - low) / _COARSE
        places = torch.arange(_COARSE + 1.0).to(low).reshape(-1, *[1] * low.dim())
        z = low + coarse * places
        log_integrand = log_term(z) - 0.5 * z.square()
        seen = log_integrand > log_integrand.amax(0) - _DEPTH
        first, last = places.where(seen, torch.inf).amin(0), places.where(seen, -torch.inf).amax(0)
        low, high = low + coarse * (first - 1).clamp(0, _COARSE), low + coarse * (last + 1).clamp(0, _COARSE)
    return low, high


def _root(pull: Tensor) -> Tensor:
    """Root of ``w exp(w) = pull``, by Newton's method for ``w + log w = log pull``."""
    limits = torch.finfo(pull.dtype)
    pull = pull.clamp(limits.tiny, limits.max**0.5)
    w = torch.log1p(pull)
    for _ in range(3):
        w = w * (1 + (pull / w).log()) / (1 + w)
    return w


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
