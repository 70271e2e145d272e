"""Marginal of a variational process at inputs, the distribution that a guide samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from pyro.distributions import TorchDistribution, constraints
from torch import Size, Tensor
from torch.distributions import register_kl

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.linalg import cholesky
from pyro_dgp.internal.row_noise import row_noise


class FunctionMarginal(TorchDistribution):
    """Distribution q(f) at inputs: independent normals with the marginal moments of a process, and its regulariser.

    Draws are independent over rows. Likelihoods that factorise over rows, and the layers above, need no more ([DSVI]
    3.9). The joint covariance over rows is ``covariance_matrix``.

    :ivar mean: ``(..., N, D_out)``.
    :ivar variance: ``(..., N, D_out)``, marginal variances (not scales).
    :ivar regularizer: nats in total, the term that a loss subtracts. Its shape is ``()`` where it does not depend on the
        inputs, else that of the batch.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(
        self,
        mean: Float[Tensor, "*b n k"],
        variance: Float[Tensor, "*b n k"],
        regularizer: Tensor,
        joint: Callable[[], Tensor],
    ) -> None:
        self._mean, self._variance, self.regularizer, self._joint = mean, variance, regularizer, joint
        super().__init__(mean.shape[:-2], mean.shape[-2:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Mean of q(f_nd)."""
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Variance of q(f_nd)."""
        return self._variance

    @property
    def covariance_matrix(self) -> Float[Tensor, "*b k n n"]:
        """Joint covariance over rows, one matrix for each output: ``(..., D_out, N, N)``."""
        return self._joint()

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> FunctionMarginal:
        """Return the marginal with repeated moments. The regulariser belongs to the process and is not repeated."""
        shape = Size(batch_shape)
        if shape == self.batch_shape:
            return self
        full = (*shape, *self.event_shape)
        return FunctionMarginal(self._mean.expand(full), self._variance.expand(full), self.regularizer, self._joint)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw from the marginals, ``(*sample_shape, ..., N, D_out)``."""
        shape = self._extended_shape(Size(sample_shape))
        return self._mean + self._variance.sqrt() * row_noise(shape, self._mean)

    def jointly(self) -> JointMarginal:
        """Return the same q(f) with draws that are joint over rows."""
        return JointMarginal(self._mean, self._variance, self.regularizer, self._joint)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density under the marginals, nats in total, in the shape of the batch."""
        squared = (value - self._mean).square() / self._variance
        return -0.5 * (squared + self._variance.log() + math.log(2 * math.pi)).sum((-2, -1))


class JointMarginal(FunctionMarginal):
    """q(f) at inputs, drawn jointly over rows: for likelihoods that do not factorise over rows. A draw factorises N x N matrices."""

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> JointMarginal:
        """Return the distribution with repeated moments."""
        return super().expand(batch_shape).jointly()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw jointly, ``(*sample_shape, ..., N, D_out)``."""
        shape = self._extended_shape(Size(sample_shape))
        noise = torch.randn(shape, dtype=self._mean.dtype, device=self._mean.device)
        factor = cholesky(self.covariance_matrix, None, "q(f)")
        return self._mean + (factor @ noise.mT.unsqueeze(-1)).squeeze(-1).mT


@register_kl(FunctionMarginal, FunctionPrior)
def _kl(q: FunctionMarginal, p: FunctionPrior) -> Tensor:
    """Return the regulariser of the process, so that ``TraceMeanField_ELBO`` uses it."""
    return q.regularizer.expand(q.batch_shape)
