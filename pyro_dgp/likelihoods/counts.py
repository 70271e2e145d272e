"""Counts: Poisson and negative binomial observations, with exposure."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.internal.parameters import require_number, require_shape
from pyro_dgp.internal.quadrature import normal_trapezoid
from pyro_dgp.internal.recording import require_all
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation, one_output
from pyro_dgp.likelihoods.count_cdf import count_cdf
from pyro_dgp.likelihoods.count_mixture import CountMixture
from pyro_dgp.likelihoods.moments import Moments

#: Exposures of rows as a user may pass them.
Exposure = Tensor | np.ndarray | list[float] | float | int

#: Steps of Newton's method to the mode of ``p(y | f)^power N(f)``, and how far one may go down and up.
_NEWTON_STEPS, _DOWN, _UP = 12, 4.0, 1.0
#: Gauss-Legendre nodes on either side of the mode, and nats below it that the integral reaches down to.
_NODES, _DEPTH = 20, 35.0
#: Most nodes of a prediction.
_MOST_NODES = 400


@dataclass(frozen=True)
class CountConditional(Conditional):
    """Counts with mean ``exposure_n exp(f_n)``, log-concave in f.

    Integrals of p(y | f) take Gauss-Legendre nodes on either side of the mode of each row, as far as there is mass, since counts of a hundred or
    more have a density in f that is narrower than N(f), and that of small counts is skew.

    :ivar exposure: ``(..., N)``, one number for all rows, or nothing for exposures of one.
    """

    exposure: Tensor | None
    takes_integers = True
    integration = "Gauss-Hermite (20 nodes) for the expected log density, 40 nodes around the mode for predictions"

    @abstractmethod
    def slopes(self, y: Tensor, log_mean: Tensor) -> tuple[Tensor, Tensor]:
        """First derivative of ``log p(y | f)`` in f, and minus the second."""

    def log_mean(self, f: Tensor) -> Tensor:
        """``log exposure_n + f_n`` of function values ``(..., N, 1)``: ``(..., N)``."""
        values = one_output(f, type(self).__name__.removesuffix("Conditional"))
        if self.exposure is None:
            return values
        if self.exposure.dim() and self.exposure.shape[-1] != values.shape[-1]:
            raise ValueError(
                f"exposure has shape {tuple(self.exposure.shape)} and there are {values.shape[-1]} rows: pass one number for each row, as a tensor "
                "(N,), which batches of rows take their own of, or one number for all"
            )
        return values + self.exposure.to(values).log()

    def check(self, y: Tensor) -> None:
        """Raise for targets that are no counts."""
        require_all(
            (y >= 0) & (y == y.round()), "y of a likelihood of counts holds values other than 0, 1, 2, ...: pass counts"
        )

    @abstractmethod
    def moments(self, f: Moments) -> Moments:
        """Mean and variance of y, ``(..., N)``."""

    @property
    def size(self) -> Tensor | None:
        """The number r for which y of mean mu has variance ``mu + mu^2 / r``; nothing where the variance is mu."""
        return None

    def predictive_cdf(self, y: Tensor, f: Moments) -> Tensor:
        """``int P(y'_n <= y_n | f_n) N(f_n) df_n``, see :func:`~pyro_dgp.likelihoods.count_cdf.count_cdf`: ``(..., N)``."""
        return count_cdf(y, self.log_mean(f.mean), one_output(f.variance), self.size)

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """See :class:`Conditional`; nodes lie on either side of the mode of ``p(y_n | f_n)^power N(f_n)``. The sum is taken in double precision."""
        mean, variance = one_output(f.mean).double(), one_output(f.variance).double()
        variance = variance.clamp_min(torch.finfo(torch.float32).tiny)

        def log_density(at: Tensor) -> Tensor:
            log_prior = -0.5 * ((at - mean).square() / variance + (2 * math.pi * variance).log())
            return power * self.row_log_prob(y, at.unsqueeze(-1)) + log_prior

        with torch.no_grad():
            mode, scale = self._mode(y, mean, variance, power)
            left, right = _reach(log_density, mode, scale)
            at, weights = (torch.as_tensor(each).to(mean) for each in np.polynomial.legendre.leggauss(_NODES))
            at, weights = ((each.reshape(-1, *[1] * mode.dim())) for each in ((1 + at) / 2, weights / 2))
            nodes = torch.cat([mode - left * at, mode + right * at])
            log_weights = torch.cat([left * weights, right * weights]).log()
        return torch.logsumexp(log_weights + log_density(nodes), 0).to(f.mean)

    def _mode(self, y: Tensor, mean: Tensor, variance: Tensor, power: float) -> tuple[Tensor, Tensor]:
        """Mode in f, and the standard deviation of the normal that has the curvature there."""
        offset = self.log_mean(torch.zeros_like(mean).unsqueeze(-1))
        seen = (y + 0.5).log() - offset
        weight = power * self.slopes(y, seen + offset)[1]
        at = (mean / variance + weight * seen) / (1 / variance + weight)
        for _ in range(_NEWTON_STEPS):
            first, second = self.slopes(y, at + offset)
            step = (power * first - (at - mean) / variance) / (power * second + 1 / variance)
            at = at + step.clamp(-_DOWN, _UP)
        return at, (power * self.slopes(y, at + offset)[1] + 1 / variance).rsqrt()

    def components(self, f: Moments) -> Distribution:
        """Mixtures over f, see :class:`~pyro_dgp.likelihoods.count_mixture.CountMixture`."""
        scale = one_output(f.variance).sqrt()
        with torch.no_grad():
            largest = (self.log_mean(f.mean) + 3 * scale).exp()
            width = (self.slopes(largest, largest.log())[1] + 1).rsqrt()
            narrowest = float((width / scale.clamp_min(1e-12)).nan_to_num(1.0).min())  # NaN where counts overflow
        nodes, log_weights = normal_trapezoid(narrowest, _MOST_NODES)
        at = one_output(f.mean) + scale * nodes.to(scale).reshape(-1, *[1] * scale.dim())
        return CountMixture(self, f, self.given(at.unsqueeze(-1)).base_dist, log_weights.to(scale))


def _reach(log_density: Callable[[Tensor], Tensor], mode: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far to the left and to the right of its mode a log-concave density reaches, to :data:`_DEPTH` nats below.

    :param scale: standard deviation by the curvature at the mode.
    """
    sign = torch.tensor([-1.0, 1.0]).to(mode).reshape(2, *[1] * mode.dim())
    least = log_density(mode) - _DEPTH
    far = (math.sqrt(2 * _DEPTH) * scale).expand(2, *mode.shape)
    near = torch.zeros_like(far)
    for _ in range(6):
        short = log_density(mode + sign * far) > least
        near, far = torch.where(short, far, near), torch.where(short, 2 * far, far)
    for _ in range(5):
        middle = 0.5 * (near + far)
        short = log_density(mode + sign * middle) > least
        near, far = torch.where(short, middle, near), torch.where(short, far, middle)
    return far[0], far[1]


class _Poisson(dist.Poisson):
    """Poisson distribution whose log density is summed in double precision: at counts of a million single precision leaves an error of half a nat."""

    def log_prob(self, value: Tensor) -> Tensor:
        """See ``torch.distributions``."""
        rate, count = self.rate.double(), value.double()
        return (torch.xlogy(count, rate) - rate - torch.lgamma(count + 1)).to(self.rate)


class _NegativeBinomial(dist.NegativeBinomial):
    """Negative binomial distribution whose log density is summed in double precision."""

    def log_prob(self, value: Tensor) -> Tensor:
        """See ``torch.distributions``."""
        total, logits = self.total_count.double(), self.logits.double()
        return _negative_binomial(value.double(), total, logits).to(self.logits)


def _negative_binomial(y: Tensor, total: Tensor, logits: Tensor) -> Tensor:
    """Return ``log Gamma(y + r) / (Gamma(r) y!) + y log p + r log(1 - p)`` with r, the total, and the logits of p."""
    log_choices = torch.lgamma(y + total) - torch.lgamma(total) - torch.lgamma(y + 1)
    return log_choices + y * F.logsigmoid(logits) + total * F.logsigmoid(-logits)


@dataclass(frozen=True)
class PoissonConditional(CountConditional):
    """``y_n ~ Poisson(exposure_n exp(f_n))``."""

    integration = "closed form for the expected log density, 40 nodes around the mode for predictions"

    def given(self, f: Tensor) -> RowObservation:
        """Poisson distributions."""
        return RowObservation(_Poisson(self.log_mean(f).exp(), validate_args=False), 1)

    def slopes(self, y: Tensor, log_mean: Tensor) -> tuple[Tensor, Tensor]:
        """``y - mean`` and ``mean``."""
        mean = log_mean.exp()
        return y - mean, mean

    def row_log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """``y log mean - mean - log y!``, finite where the mean underflows."""
        log_mean, y = self.log_mean(f.double()), y.double()
        return (y * log_mean - log_mean.exp() - torch.lgamma(y + 1)).to(f)

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``y E log mean - E mean - log y!``, with ``E mean = exposure exp(m + v / 2)``."""
        log_mean, y = self.log_mean(f.mean.double()), y.double()
        return (y * log_mean - (log_mean + one_output(f.variance) / 2).exp() - torch.lgamma(y + 1)).to(f.mean)

    def moments(self, f: Moments) -> Moments:
        """With ``a = E mean = exposure exp(m + v / 2)``: ``a`` and ``a + a^2 (exp(v) - 1)``."""
        mean = (self.log_mean(f.mean) + one_output(f.variance) / 2).exp()
        return Moments(mean, mean + mean.square() * torch.expm1(one_output(f.variance)))


@dataclass(frozen=True)
class NegativeBinomialConditional(CountConditional):
    """Counts with mean ``mu_n = exposure_n exp(f_n)`` and variance ``mu_n + dispersion mu_n^2``."""

    dispersion: Tensor

    @property
    def size(self) -> Tensor:
        """``1 / dispersion``."""
        return 1 / self.dispersion

    def given(self, f: Tensor) -> RowObservation:
        """Negative binomial distributions."""
        logits = self.log_mean(f) + self.dispersion.log()
        total = (1 / self.dispersion).expand(logits.shape)
        return RowObservation(_NegativeBinomial(total, logits=logits, validate_args=False), 1)

    def row_log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """See :func:`_negative_binomial`."""
        dispersion = self.dispersion.double()
        return _negative_binomial(y.double(), 1 / dispersion, self.log_mean(f.double()) + dispersion.log()).to(f)

    def slopes(self, y: Tensor, log_mean: Tensor) -> tuple[Tensor, Tensor]:
        """With ``p = dispersion mu / (1 + dispersion mu)``: ``y - (y + 1 / dispersion) p``, and ``(y + 1 / dispersion) p (1 - p)``."""
        share = torch.sigmoid(log_mean + self.dispersion.log())
        total = y + 1 / self.dispersion
        return y - total * share, total * share * (1 - share)

    def moments(self, f: Moments) -> Moments:
        """With ``a = E mu = exposure exp(m + v / 2)``: ``a`` and ``a + a^2 (exp(v) - 1 + dispersion exp(v))``."""
        mean, variance = (self.log_mean(f.mean) + one_output(f.variance) / 2).exp(), one_output(f.variance)
        return Moments(mean, mean + mean.square() * (torch.expm1(variance) + self.dispersion * variance.exp()))


class Poisson(Likelihood):
    """Counts ``y_n ~ Poisson(exposure_n exp(f_n))`` of one function.

    In a model write ``likelihood(gp(x), exposure=exposure)``, with exposures ``(N,)`` such as areas or lengths of time, one number for all rows, or
    leave it out.

    >>> import torch
    >>> from pyro_dgp import Poisson
    >>> Poisson().given(torch.tensor([[0.0], [2.0]]), exposure=torch.tensor([1.0, 10.0])).mean.round(decimals=2)
    tensor([ 1.0000, 73.8900])
    """

    def conditional(self, exposure: Exposure | None = None) -> PoissonConditional:
        """The likelihood of rows with these exposures."""
        return PoissonConditional(positive_exposure(exposure))


class NegativeBinomial(Likelihood):
    """Overdispersed counts of one function: mean ``mu_n = exposure_n exp(f_n)``, variance ``mu_n + dispersion mu_n^2``.

    In a model write ``likelihood(gp(x), exposure=exposure)``, with exposures ``(N,)``, or leave it out. As ``dispersion`` falls to zero the
    counts become Poisson.

    >>> import torch
    >>> from pyro_dgp import NegativeBinomial
    >>> counts = NegativeBinomial(dispersion=0.5).given(torch.tensor([[2.0]]))
    >>> round(float(counts.mean.detach()), 1), round(float(counts.variance.detach()), 1)
    (7.4, 34.7)

    :param dispersion: its value at the start.
    """

    def __init__(self, dispersion: float = 0.1) -> None:
        super().__init__()
        require_number(dispersion)
        if not dispersion > 0:
            raise ValueError(f"dispersion must be positive, got {dispersion}: for zero use Poisson")
        self.dispersion: Any = PyroParam(torch.tensor(float(dispersion)), constraint=constraints.greater_than(1e-6))

    def conditional(self, exposure: Exposure | None = None) -> NegativeBinomialConditional:
        """The likelihood of rows with these exposures, and ``dispersion`` read now."""
        dispersion = self.dispersion
        require_shape(dispersion, (), "NegativeBinomial.dispersion")
        return NegativeBinomialConditional(positive_exposure(exposure), dispersion.unsqueeze(-1))


def positive_exposure(exposure: Exposure | None) -> Tensor | None:
    """Return exposures as a tensor; raise unless they are positive and finite numbers."""
    if exposure is not None:
        exposure = torch.as_tensor(exposure)
        require_all(
            (exposure > 0) & (exposure < math.inf), "exposure holds values that are not positive: leave those rows out"
        )
    return exposure
