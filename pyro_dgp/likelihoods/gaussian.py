"""Gaussian noise: the likelihood whose integrals have closed forms."""

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

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.parameters import require_number, require_shape
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation, one_output
from pyro_dgp.likelihoods.gamma_score import log_expected_normal_power, log_normal_power_integral
from pyro_dgp.likelihoods.moments import Moments

#: Smallest noise variance, for a target of unit variance: the same for every method of the zoo.
NOISE_FLOOR = 1e-4


@dataclass(frozen=True)
class GaussianConditional(Conditional):
    """``y_nd ~ N(f_nd, variance_d)``; ``variance`` ``(D_out,)``."""

    variance: Tensor
    integration = "closed form"

    def _normal(self, mean: Tensor, variance: Tensor) -> dist.Normal:
        noise = self.variance.unsqueeze(-2)
        variance = variance + noise if variance.dim() else noise.expand(mean.shape)
        if mean.shape[-1] == 1:
            mean, variance = one_output(mean), one_output(variance)
        return dist.Normal(mean, variance.sqrt(), validate_args=False)

    def given(self, f: Tensor) -> RowObservation:
        """Independent normals ``N(f, variance)``."""
        normal = self._normal(f, f.new_zeros(()))
        return RowObservation(normal, 1 if f.shape[-1] == 1 else 2)

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log N(y | mean, variance) - f.variance / (2 variance)``, summed over outputs ([DSPP] 6)."""
        target = y.unsqueeze(-1) if f.mean.shape[-1] == 1 else y
        noise = self.variance.unsqueeze(-2)
        squared = ((target - f.mean).square() + f.variance) / noise
        return -0.5 * (squared + noise.log() + math.log(2 * math.pi)).sum(-1)

    def components(self, f: Moments) -> Distribution:
        """``N(mean, f.variance + variance)`` ([DSPP] 14)."""
        return self._normal(f.mean, f.variance)

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log N(y | mean, f.variance + variance)``, summed over outputs."""
        log_prob: Tensor = self.components(f).log_prob(y)
        return log_prob if f.mean.shape[-1] == 1 else log_prob.sum(-1)

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """A normal to a power c is ``(2 pi variance)^(-c/2)`` times a normal of variance ``variance / c``, scaled back."""
        target = y.unsqueeze(-1) if f.mean.shape[-1] == 1 else y
        noise = self.variance.unsqueeze(-2)
        return log_expected_normal_power(target - f.mean, f.variance, noise, power).sum(-1)

    def log_power_integral(self, f: Moments, power: float) -> Tensor:
        """``sum_d log int N(y_d | f_d, variance_d)^power dy_d``."""
        return log_normal_power_integral(self.variance.unsqueeze(-2).expand_as(f.mean), power).sum(-1)

    def joint_log_prob(self, y: Tensor, prior: FunctionPrior) -> Tensor:
        """``sum_d log N(y_d | m_d, K_d + variance_d I)``."""
        return prior.noisy_log_prob(y.unsqueeze(-1) if prior.num_outputs == 1 else y, self.variance)

    def of_outputs(self, chosen: Sequence[int]) -> tuple[Conditional, list[int]]:
        """Gaussian noise of these outputs, each around its own function."""
        variance = self.variance if self.variance.shape[-1] == 1 else self.variance[..., list(chosen)]
        return GaussianConditional(variance), list(chosen)

    def location(self, f: Tensor) -> Tensor:
        """The functions themselves."""
        return f

    def noise_variance(self) -> Tensor:
        """The noise variance of each output, ``(D_out,)``."""
        return self.variance


class Gaussian(Likelihood):
    """Independent Gaussian noise, ``y_nd = f_nd + e_nd``, ``e_nd ~ N(0, variance_d)``. Closed form throughout.

    >>> from pyro_dgp import RBF, Gaussian, GaussianProcess
    >>> observation = Gaussian()(GaussianProcess(RBF())(torch.zeros(5, 1)))
    >>> observation.event_shape, observation.log_prob(torch.zeros(5)).shape
    (torch.Size([5]), torch.Size([]))

    :param outputs: D_out; ``y`` is ``(N,)`` for one and ``(N, D_out)`` for several. ``variance`` is ``()`` or
        ``(D_out,)``, squared units of y.
    :param variance: initial noise variance.
    :param floor: smallest noise variance.
    """

    def __init__(self, outputs: int = 1, variance: float = 0.1, floor: float = NOISE_FLOOR) -> None:
        super().__init__()
        if not isinstance(outputs, int):
            raise TypeError(
                f"the first argument of Gaussian is the number of outputs, got {outputs!r}: give the noise by name, variance=0.1"
            )
        require_number(variance)
        if not variance > floor:
            raise ValueError(f"the initial noise variance {variance} must exceed its floor {floor}")
        self.outputs = outputs
        start = torch.tensor(float(variance)) if outputs == 1 else torch.full((outputs,), float(variance))
        self.variance: Any = PyroParam(start, constraint=constraints.greater_than(floor), event_dim=start.dim())

    def require_outputs(self, outputs: int) -> None:
        """Raise unless there is one noise variance for all outputs, or one for each."""
        if self.outputs not in (1, outputs):
            raise ValueError(
                f"Gaussian(outputs={self.outputs}) stands over a Gaussian process of {outputs} outputs: make them equal"
            )

    def conditional(self) -> GaussianConditional:
        """The likelihood with ``variance`` read now."""
        variance = self.variance
        require_shape(variance, (self.outputs,) if self.outputs > 1 else (), "Gaussian.variance")
        return GaussianConditional(variance.unsqueeze(-1) if self.outputs == 1 else variance)
