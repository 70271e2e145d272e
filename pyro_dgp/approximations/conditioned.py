"""Prediction under a Vecchia approximation: each new row given its nearest known rows."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.approximations.neighbors import scaled
from pyro_dgp.approximations.prior import VecchiaPrior
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.processes.base import Process
from pyro_dgp.processes.conditioned import conditioned
from pyro_dgp.processes.marginal import FunctionMarginal

#: Rows that a new one is conditioned on, for each neighbour, where their values are noisy.
NOISY = 4


class NeighborConditionedProcess(Process):
    """Conditional ``p(f(x) | values at the m known inputs that are nearest to x)`` of each row.

    The nearest inputs are found among the inputs of this Gaussian process. For an upper layer these are the hidden values of the draw.
    Noisy values are taken at the nearest 4 m inputs, since their noise has to average out. Where the noise is large beside the function, the
    prediction is still less sure than the exact one, which averages over all rows: take more neighbours there.

    :param known: the approximate prior at the known inputs ``(N, D)``.
    :param values: function values at these inputs, or observations of them, ``(N, D_out)``.
    :param noise_variance: variance of the observations, ``(D_out,)``; ``None`` for function values.
    """

    def __init__(self, known: VecchiaPrior, values: Tensor, noise_variance: Tensor | None) -> None:
        super().__init__()
        from sklearn.neighbors import KDTree

        self._x, self._residual, self._noise = known.x, values - known.mean, noise_variance
        count = known.search.num_neighbors * (1 if noise_variance is None else NOISY)
        self._count = min(count, len(known.x))
        self._lengths = known.lengths
        self._tree = KDTree(scaled(known.x, self._lengths))

    @property
    def size(self) -> int:
        """Number of numbers that are held, those of the search tree among them."""
        return 2 * self._x.numel() + self._residual.numel()

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """Return the conditional at ``prior.x``, row by row, with a regulariser of 0."""
        new = prior.x.reshape(-1, prior.x.shape[-1])
        near = self._tree.query(np.nan_to_num(scaled(new, self._lengths)), self._count, return_distance=False)
        places = torch.as_tensor(near, device=new.device)
        points, residual = self._x[places].unsqueeze(-3), self._residual[places]  # (n, 1, m, D), (n, m, D_out)
        covariance = prior.covariance.matrix(points)
        if self._noise is None:
            factor = linalg.cholesky(covariance, prior.jitter, prior.name)
        else:
            factor = linalg.noisy_cholesky(linalg.add_noise(covariance, self._noise), prior.jitter, prior.name)
        row = new.unsqueeze(-2).unsqueeze(-3)
        cross = prior.covariance.matrix(points, row)  # (n, E, m, 1)
        projection = linalg.solve_triangular(factor, cross, upper=False)
        loc = (projection * linalg.solve_factor(factor, residual).mT.unsqueeze(-1)).sum((-2, -1))
        variance = (prior.covariance.diagonal(row).squeeze(-1) - projection.square().sum((-2, -1))).clamp_min(0.0)
        mean = prior.mean + loc.reshape(prior.mean.shape)
        shape = (*mean.shape[:-1], variance.shape[-1])

        return FunctionMarginal(
            mean, variance.reshape(shape).expand(mean.shape), mean.new_zeros(()), partial(_no_joint, prior.name)
        )

    def known_values(self, prior: FunctionPrior, num_draws: int, deviations: Tensor | None = None) -> NoReturn:
        """Raise: functions of several rows together are not drawn."""
        self.require_functions(prior.name)

    def require_functions(self, key: str) -> NoReturn:
        """Raise: functions of several rows together are not drawn."""
        raise ValueError(
            f"functions of {key!r} cannot be drawn under a Vecchia approximation, which predicts each row by itself: predict the rows, or "
            "sample the model without it"
        )


@conditioned.register
def _conditioned(known: VecchiaPrior, values: Tensor, noise_variance: Tensor | None) -> Process:
    return NeighborConditionedProcess(known, values, noise_variance)


def _no_joint(name: str) -> NoReturn:
    raise ValueError(
        f"predictions of {name!r} under a Vecchia approximation are made row by row and have no joint covariance: take the mean and the variance of each row"
    )
