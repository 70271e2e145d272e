"""A GP conditioned on values or noisy values at known inputs: exact regression, and prediction from MCMC draws."""

from __future__ import annotations

from functools import partial, singledispatch

from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.processes.base import KnownValues, Process
from pyro_dgp.processes.marginal import FunctionMarginal


class ConditionedProcess(Process):
    """Exact conditional ``p(f | values at known inputs)`` (Rasmussen and Williams 2006, Eqs. 2.23 and 2.24).

    :param known: the prior at the known inputs ``(N, D)``.
    :param values: function values at these inputs, or observations of them, ``(N, D_out)``.
    :param noise_variance: variance of the observations, ``(D_out,)``; ``None`` for function values.

    >>> import torch
    >>> from pyro_dgp import RBF, ConditionedProcess, GaussianProcess
    >>> gp = GaussianProcess(RBF())
    >>> prior = gp(torch.tensor([[0.0], [1.0]]))
    >>> process = ConditionedProcess(prior, torch.tensor([[2.0], [3.0]]), None)
    >>> process(prior).mean.round(decimals=2).tolist()  # the known values
    [[2.0], [3.0]]
    """

    def __init__(self, known: FunctionPrior, values: Tensor, noise_variance: Tensor | None) -> None:
        super().__init__()
        self._x = known.x.unsqueeze(-3)
        self._factor = known.scale_tril if noise_variance is None else known.noisy_scale_tril(noise_variance)
        self._white = linalg.solve_factor(self._factor, values - known.mean)

    @property
    def size(self) -> int:
        """Number of numbers that are held."""
        return sum(values.numel() for values in (self._x, self._factor, self._white))

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """Return the conditional at ``prior.x``, with a regulariser of 0."""
        return self._given(prior, prior.covariance.matrix(self._x, prior.x.unsqueeze(-3)))

    def at_known_inputs(self, prior: FunctionPrior) -> FunctionMarginal:
        """Return the conditional at the known inputs themselves, where a :class:`~pyro_dgp.White` part has the values that it had there."""
        return self._given(prior, prior.covariance.matrix(self._x))

    def _given(self, prior: FunctionPrior, cross: Tensor) -> FunctionMarginal:
        """Return the conditional, by the covariances of the known rows (first) and the new ones."""
        new = prior.x.unsqueeze(-3)
        projection = linalg.solve_broadcast(self._factor, cross)
        loc = (projection.mT @ self._white.mT.unsqueeze(-1)).squeeze(-1).mT
        variance = (prior.covariance.diagonal(new) - projection.square().sum(-2)).clamp_min(0.0).mT
        mean = prior.mean + loc

        joint = partial(_joint, prior, projection)
        return FunctionMarginal(mean, variance.expand(mean.shape), mean.new_zeros(()), joint)

    def known_values(self, prior: FunctionPrior, num_draws: int, deviations: Tensor | None = None) -> KnownValues:
        """Return the known values, which are the same in every draw."""
        return KnownValues(self._x, self._factor, self._white.mT.expand(num_draws, *self._white.mT.shape))


@singledispatch
def conditioned(known: FunctionPrior, values: Tensor, noise_variance: Tensor | None) -> Process:
    """Return the Gaussian process given values at the inputs of ``known``; approximate priors register a process of their own.

    :param values: function values, or observations of them, ``(N, D_out)``.
    :param noise_variance: variance of the observations, ``(D_out,)``; ``None`` for function values.
    """
    return ConditionedProcess(known, values, noise_variance)


def _joint(prior: FunctionPrior, projection: Tensor) -> Tensor:
    """Return the joint covariance over the rows of ``prior.x``, given the projections of the known rows on them."""
    return prior.covariance.matrix(prior.x.unsqueeze(-3)) - projection.mT @ projection
