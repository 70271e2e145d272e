"""A GP conditioned on (noisy) values at known inputs: exact regression, and prediction from MCMC draws."""

from __future__ import annotations

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
        self._factor = known.scale_tril if noise_variance is None else known.noisy_scale_tril(noise_variance)
        self._white = linalg.solve_factor(self._factor, values - known.mean)

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """The conditional at ``prior.x``; nothing is left to regularise."""
        new = prior.x.unsqueeze(-3)
        cross = prior.covariance.matrix(self._x, new)
        projection = linalg.solve_broadcast(self._factor, cross)
        loc = (projection.mT @ self._white.mT.unsqueeze(-1)).squeeze(-1).mT
        variance = (prior.covariance.diagonal(new) - projection.square().sum(-2)).clamp_min(0.0).mT
        mean = prior.mean + loc

        def joint() -> Tensor:
            return prior.covariance.matrix(new) - projection.mT @ projection

        return FunctionMarginal(mean, variance.expand(mean.shape), mean.new_zeros(()), joint)
