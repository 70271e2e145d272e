"""Heavy-tailed noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.internal.parameters import require_number, require_shape
from pyro_dgp.internal.views import Integrated
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation, one_output
from pyro_dgp.likelihoods.gaussian import NOISE_FLOOR
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.units import CLOSED

#: Largest distance of nodes in the logarithm of a precision.
_STEP = 0.3
#: Distance of nodes in standard deviations of that logarithm, about ``concentration^(-1/2)``: the trapezoidal rule then errs by less than 1e-13.
_FINE = 0.75
#: Degrees of freedom from which on the noise is taken for that of this many, which differs from a normal by 1e-5.
_MOST_DF = 1e5
#: Distance of targets from f, in scales of the noise, up to which a prediction has the right tails.
_OUTLIER = 1e4


@dataclass(frozen=True)
class StudentTConditional(Conditional):
    """``y_n ~ f_n + scale t(df)``: a normal whose precision is ``gamma / scale^2``, ``gamma ~ Gamma(df / 2, df / 2)``.

    f is integrated out in closed form for each precision, and the precision by the trapezoidal rule in its logarithm.
    """

    df: Tensor
    scale: Tensor
    integration = "closed form in f, quadrature over the precision of the noise"

    @property
    def _spread(self) -> Tensor:
        """``c = df scale^2``, with ``p(y | f)`` proportional to ``(1 + (y - f)^2 / c)^(-(df + 1) / 2)``."""
        return self.df * self.scale.square()

    def _log_constant(self) -> Tensor:
        return _log_gamma_ratio(self.df / 2) - 0.5 * (math.pi * self._spread).log()

    def given(self, f: Tensor) -> RowObservation:
        """Student's t distributions around f."""
        loc = one_output(f, "StudentT")
        df, scale = self.df.expand(loc.shape), self.scale.expand(loc.shape)
        return RowObservation(_StudentT(df, loc, scale, validate_args=False), 1)

    def location(self, f: Tensor) -> Tensor:
        """The function itself."""
        return f

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """From ``E log(1 + r^2 / c) = int_0^inf (1 - E exp(-t r^2 / c)) exp(-t) / t dt`` for the residual r."""
        deviation, variance = y - one_output(f.mean), one_output(f.variance)
        low = -32 - math.log(self._farthest(deviation, variance))
        log_t = torch.arange(low, 3.7, _STEP, dtype=deviation.dtype, device=deviation.device)
        log_t = log_t.reshape(-1, *[1] * max(deviation.dim(), self.df.dim()))
        log_kernel = self._log_kernel(log_t.exp(), deviation, variance)
        expected = _STEP * (-torch.expm1(log_kernel) * (-log_t.exp()).exp()).sum(0)
        return self._log_constant() - 0.5 * (self.df + 1) * expected

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """From ``(1 + r^2 / c)^-b = int Gamma(t; b, 1) exp(-t r^2 / c) dt``, ``b = power (df + 1) / 2``."""
        deviation, variance = y - one_output(f.mean), one_output(f.variance)
        farthest = self._farthest(deviation, variance)
        half = power * (self.df + 1) / 2
        # Where t is less than this the kernel is one, so that a first node stands for all of it: half may be small.
        first = math.log(1e-16 / farthest)
        log_t, log_weights = _log_gamma_nodes(half, max(deviation.dim(), self.df.dim()), farthest=farthest, first=first)
        log_kernel = self._log_kernel(log_t.exp(), deviation, variance)
        return power * self._log_constant() + torch.logsumexp(log_weights + log_kernel, 0)

    def _farthest(self, deviation: Tensor, variance: Tensor) -> float:
        """Largest mean of ``r^2 / c``, at least one."""
        with torch.no_grad():
            return float(((deviation.square() + variance) / self._spread).max().clamp(1.0, 1e30))

    def _log_kernel(self, t: Tensor, deviation: Tensor, variance: Tensor) -> Tensor:
        """``log E exp(-t r^2 / c)`` for ``r ~ N(deviation, variance)``."""
        spread = self._spread
        return -0.5 * torch.log1p(2 * t * variance / spread) - t * deviation.square() / (spread + 2 * t * variance)

    def log_power_integral(self, f: Moments, power: float) -> Tensor:
        """``log int p(y | f)^power dy``: p to a power is Student's density with other degrees of freedom, not normalised."""
        half = power * (self.df + 1) / 2
        return power * self._log_constant() + 0.5 * (math.pi * self._spread).log() - _log_gamma_ratio(half - 0.5)

    def components(self, f: Moments) -> Distribution:
        """Mixtures of normals over the precision."""
        mean, variance = one_output(f.mean), one_output(f.variance)
        log_t, log_weights = _log_gamma_nodes(self.df / 2, max(mean.dim(), self.df.dim()), farthest=_OUTLIER**2)
        total = (variance + self._spread / 2 * (-log_t).exp()).sqrt()
        normals = dist.Normal(mean.expand(total.shape), total, validate_args=False)
        return HeavyTailed(normals, log_weights, known_variance=variance + self._noise_variance())

    def _noise_variance(self) -> Tensor:
        """``scale^2 df / (df - 2)``, infinite for df from above 1 to 2, and NaN, which is no number, for df of 1 or less."""
        has_variance = self.df > 2
        excess = torch.where(has_variance, self.df - 2, 1.0)  # gradients stay finite where the variance does not
        without = torch.where(self.df <= 1, torch.nan, torch.inf).to(self.df)
        return torch.where(has_variance, self._spread / excess, without)


def _log_gamma_ratio(z: Tensor) -> Tensor:
    """``log(Gamma(z + 1/2) / Gamma(z))``, the difference of two large numbers, in double precision."""
    double = z.double()
    return (torch.lgamma(double + 0.5) - torch.lgamma(double)).to(z)


class _StudentT(dist.StudentT):  # type: ignore[misc]
    """Student's t distribution whose log density keeps single precision where the degrees of freedom are many."""

    def log_prob(self, value: Tensor) -> Tensor:
        """See ``torch.distributions``."""
        spread = self.df * self.scale.square()
        constant = _log_gamma_ratio(self.df / 2) - 0.5 * (math.pi * spread).log()
        log_density: Tensor = constant - 0.5 * (self.df + 1) * torch.log1p((value - self.loc).square() / spread)
        return log_density


CLOSED[_StudentT] = CLOSED[dist.StudentT]


class HeavyTailed(Integrated):
    """A mean over precisions of normals, whose tails reach beyond the nodes. Where the variance is NaN there is no mean either.

    >>> import torch
    >>> from pyro_dgp.likelihoods.student_t import HeavyTailed
    >>> normals = torch.distributions.Normal(torch.ones(2, 3), torch.tensor([[1.0], [9.0]]))
    >>> HeavyTailed(normals, torch.tensor([0.5, 0.5]).log(), known_variance=torch.tensor([4.0, torch.inf, torch.nan])).mean
    tensor([1., 1., nan])
    """

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> HeavyTailed:
        """Return the same distribution over more batches."""
        return HeavyTailed(self.inner, self.log_weights, batch_shape, known_variance=self.known_variance)

    @property
    def mean(self) -> Tensor:
        """Means, ``(*batch, *event)``."""
        return torch.where(self.variance.isnan(), torch.nan, super().mean)


def _log_gamma_nodes(
    concentration: Tensor, batch: int, *, farthest: float, first: float = -math.inf
) -> tuple[Tensor, Tensor]:
    """Logarithms of t ``(K, 1, ...)``, and log weights ``(K, ...)`` whose exponentials sum to one, for expectations over ``t ~ Gamma(concentration, 1)``.

    Weights are computed in double precision, being differences of numbers as large as the concentration.

    :param batch: number of axes behind K.
    :param farthest: the nodes serve means of ``exp(-t r)`` for r up to this.
    :param first: least log t; a node there stands for all below it.
    """
    least, most = float(concentration.detach().min()), float(concentration.detach().max())
    low = (math.log(1e-16) + math.lgamma(least + 1)) / least - math.log(farthest)
    high = math.log(most + 12 * math.sqrt(most) + 40)
    step = min(_STEP, _FINE / math.sqrt(most))
    double = concentration.double()
    log_t = torch.arange(max(low, first), high, step, dtype=double.dtype, device=double.device).reshape(
        -1, *[1] * batch
    )
    log_weights = double * log_t - log_t.exp() - torch.lgamma(double) + math.log(step)
    if low < first:
        below = double * first - torch.lgamma(double + 1)
        # The end of a trapezoidal rule counts half, with the first correction for the slope there.
        share = (0.5 + step * double / 12).log()
        end = torch.logaddexp(log_weights[:1] + share, below.expand_as(log_weights[:1]))
        log_weights = torch.cat([end, log_weights[1:]])
    log_weights = log_weights - torch.logsumexp(log_weights, 0)
    return log_t.to(concentration), log_weights.to(concentration)


class StudentT(Likelihood):
    """Heavy-tailed noise: ``y_n = f_n + scale t_n``, ``t_n`` of Student's distribution with ``df`` degrees of freedom. One function.

    A few outliers then move the functions little. ``df`` and ``scale`` train; predictions have the variance
    ``v + scale^2 df / (df - 2)``. ``df`` trains above 2. A prior of it may reach lower; then, as in :class:`torch.distributions.StudentT`,
    the variance is infinite for df from above 1 to 2, and mean and variance are NaN for df of 1 or less, where the integral of the mean does not
    converge. Log densities and quantiles, the median among them, exist for all df.

    >>> import torch
    >>> from pyro_dgp import StudentT
    >>> StudentT(df=4.0, scale=0.1).given(torch.zeros(3, 1)).variance.round(decimals=4).detach()
    tensor([0.0200, 0.0200, 0.0200])

    :param df: degrees of freedom at the start, above 2.
    :param scale: scale of the noise at the start, in units of y.
    :param floor: smallest scale.
    """

    def __init__(self, df: float = 4.0, scale: float = 0.3, floor: float = NOISE_FLOOR**0.5) -> None:
        super().__init__()
        require_number(df)
        require_number(scale)
        if not (df > 2 and scale > floor):
            raise ValueError(f"df must be above 2 and scale above its floor {floor}, got {df} and {scale}: give others")
        self.df: Any = PyroParam(torch.tensor(float(df)), constraint=constraints.greater_than(2.0))
        self.scale: Any = PyroParam(torch.tensor(float(scale)), constraint=constraints.greater_than(floor))

    def conditional(self) -> StudentTConditional:
        """The likelihood with ``df`` and ``scale`` read now."""
        df, scale = self.df, self.scale
        for name, value in (("df", df), ("scale", scale)):
            require_shape(value, (), f"StudentT.{name}")
        return StudentTConditional(df.clamp(max=_MOST_DF).unsqueeze(-1), scale.unsqueeze(-1))
