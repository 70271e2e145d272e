"""Process of inducing points: q(u) over function values at M learned inputs, whitened."""

from __future__ import annotations

import torch
from pyro.nn import PyroParam
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.internal.blocks import column_blocks
from pyro_dgp.processes.base import KnownValues
from pyro_dgp.processes.conditional_moments import conditional_moments
from pyro_dgp.processes.whitened import SMALLEST_VARIANCE, WhitenedGaussian, WhitenedProcess


class InducingPointProcess(WhitenedProcess):
    """Process ``q(f) = int p(f | u) q(u) du`` with ``u = m(Z) + L_z v``, ``q(v_d) = N(whitened_mean_d, S_d)``.

    The basis is ``a = L_z^-1 k(Z, x)``: the marginal at x has mean ``m(x) + a' whitened_mean_d`` and variance
    ``k(x,x) - a'a + a' S_d a`` ([DSPP] 7 and 8 in whitened coordinates). The regulariser is
    ``sum_d KL(N(whitened_mean_d, S_d) || N(0, I))`` in nats. For ``delta`` (S = 0), where this KL is infinite, the
    regulariser is ``-log N(whitened_mean; 0, I)``, and the objective is no bound.

    Its parameters besides those of :class:`~pyro_dgp.processes.whitened.WhitenedProcess`:

    | attribute | shape |
    |---|---|
    | ``inducing_points`` | ``(*groups, M, D)``, or ``(*groups, D_out, M, D)`` for a set per output |
    """

    def __init__(self, inducing_points: Tensor, shape: Size, covariance: str, scale: float) -> None:
        super().__init__(inducing_points, shape, covariance, scale)
        self.inducing_points = PyroParam(inducing_points.clone(), event_dim=inducing_points.dim())

    def _points(self, prior: FunctionPrior) -> Tensor:
        """Return the inducing points with an axis for the outputs, ``(*groups, E, M, D)``."""
        z = self.of_groups("inducing_points")
        if z.shape[-1] != prior.x.shape[-1]:
            raise ValueError(
                f"the inducing points of {prior.name!r} have {z.shape[-1]} dimensions and its inputs {prior.x.shape[-1]}: "
                "pass inputs of as many columns as guide.initialize got"
            )
        return z if z.dim() == len(self.groups) + 3 else z.unsqueeze(-3)

    def columns(self, prior: FunctionPrior) -> Tensor:
        """See :class:`~pyro_dgp.processes.whitened.WhitenedProcess`."""
        z = self._points(prior)
        factor = linalg.cholesky(prior.covariance.matrix(z), prior.jitter, prior.name)
        return linalg.solve_columns(factor, prior.covariance.matrix(z, prior.x.unsqueeze(-3)))

    def known_values(self, prior: FunctionPrior, num_draws: int, deviations: Tensor | None = None) -> KnownValues:
        """Draw v from q(v)."""
        if self.groups:
            raise ValueError(
                f"{prior.name!r} is one function for each of {tuple(self.groups)} groups, and functions are drawn of one: draw them from a "
                "guide of one group"
            )
        z, q = self._points(prior), self.gaussian(prior, deviations)
        factor = linalg.cholesky(prior.covariance.matrix(z), prior.jitter, prior.name)
        return KnownValues(z, factor, q.draw(num_draws))

    def moments(self, prior: FunctionPrior, q: WhitenedGaussian) -> tuple[Tensor, Tensor]:
        """Return both moments; batch and particle axes are folded into the columns of one product.

        Where hyperparameters are batched, or groups have points of their own, nothing is folded.
        """
        z = self._points(prior)
        k_zz = prior.covariance.matrix(z)
        folded = k_zz.dim() == 3 and q.mean.dim() == 2
        x = prior.x.reshape(1, -1, prior.x.shape[-1]) if folded else prior.x.unsqueeze(-3)
        blocks = column_blocks(x, *q.mean.shape) if folded else (x,)
        k_zx = [prior.covariance.matrix(z, block) for block in blocks]
        loc, change = conditional_moments(k_zz, k_zx, q, prior.jitter, prior.name)
        variance = prior.covariance.diagonal(x) + change
        loc, variance = torch.broadcast_tensors(loc, variance.clamp_min(SMALLEST_VARIANCE))
        if not folded:
            return loc.mT, variance.mT
        shape = (prior.num_outputs, *prior.x.shape[:-1])
        return loc.reshape(shape).movedim(0, -1), variance.reshape(shape).movedim(0, -1)
