"""A GP conditioned on (noisy) values at known inputs: exact regression, and prediction from MCMC draws."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.processes.base import Process
from pyro_dgp.processes.marginal import FunctionMarginal


class ConditionedProcess(Process):
    """``p(f | values at known inputs)``, exact (Rasmussen and Williams 2006, Eqs. 2.23 and 2.24).

    :param known: the prior at the known inputs ``(N, D)``.
    :param values: function values there, or observations of them, ``(N, D_out)``.
    :param noise_variance: ``(D_out,)``; nothing for function values.
    """

    def __init__(self, known: FunctionPrior, values: Tensor, noise_variance: Tensor | None) -> None:
        super().__init__()
        self._x = known.x.unsqueeze(-3)
        if noise_variance is None:
            self._factor = known.scale_tril
        else:
            covariance = known.covariance_matrix
            identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
            noisy = covariance + noise_variance[:, None, None] * identity
            self._factor = linalg.noisy_cholesky(noisy, known.jitter, known.name)
        self._white = linalg.solve_factor(self._factor, values - known.mean)

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """The conditional at ``prior.x``; nothing is left to regularise."""
        new = prior.x.unsqueeze(-3)
        cross = prior.covariance.matrix(self._x, new)
        batch = torch.broadcast_shapes(self._factor.shape[:-2], cross.shape[:-2])
        factor = self._factor.expand(*batch, *self._factor.shape[-2:])
        projection = torch.linalg.solve_triangular(factor, cross.expand(*batch, *cross.shape[-2:]), upper=False)
        loc = (projection.mT @ self._white.mT.unsqueeze(-1)).squeeze(-1).mT
        variance = (prior.covariance.diagonal(new) - projection.square().sum(-2)).clamp_min(0.0).mT
        mean = prior.mean + loc

        def joint() -> Tensor:
            return prior.covariance.matrix(new) - projection.mT @ projection

        return FunctionMarginal(mean, variance.expand(mean.shape), mean.new_zeros(()), joint)
