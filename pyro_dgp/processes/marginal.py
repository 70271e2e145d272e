"""q(f) at inputs: what a variational process gives a guide."""

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


class FunctionMarginal(TorchDistribution):
    """q(f) at inputs: independent normals with the process's marginal moments, and its regulariser.

    Draws are independent over rows, which is all that factorising likelihoods and layers above need ([DSVI] 3.9); the
    joint covariance over rows comes from ``covariance_matrix``.

    :ivar mean: ``(..., N, D_out)``.
    :ivar variance: ``(..., N, D_out)``, marginal variances (not scales).
    :ivar regularizer: nats in total, the term a loss subtracts; ``()`` if it is the process's own, else of the shape of the
        batch that it depends on.
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
        """E q(f_nd)."""
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Var q(f_nd)."""
        return self._variance

    @property
    def covariance_matrix(self) -> Float[Tensor, "*b k n n"]:
        """The joint covariance over rows, one matrix for each output: ``(..., D_out, N, N)``."""
        return self._joint()

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> FunctionMarginal:
        """The same type, moments repeated; the regulariser, a property of the process, is not multiplied."""
        shape = Size(batch_shape)
        if shape == self.batch_shape:
            return self
        full = (*shape, *self.event_shape)
        return FunctionMarginal(self._mean.expand(full), self._variance.expand(full), self.regularizer, self._joint)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws from the marginals, ``(*sample_shape, ..., N, D_out)``."""
        shape = self._extended_shape(Size(sample_shape))
        noise = torch.randn(shape, dtype=self._mean.dtype, device=self._mean.device)
        return self._mean + self._variance.sqrt() * noise

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density under the marginals, nats in total; shape of the batch."""
        squared = (value - self._mean).square() / self._variance
        return -0.5 * (squared + self._variance.log() + math.log(2 * math.pi)).sum((-2, -1))


@register_kl(FunctionMarginal, FunctionPrior)
def _kl(q: FunctionMarginal, p: FunctionPrior) -> Tensor:
    """The process's own regulariser, so that ``TraceMeanField_ELBO`` uses it."""
    return q.regularizer.expand(q.batch_shape)
