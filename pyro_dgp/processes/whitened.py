"""Whitened processes: a basis of the function space, and a Gaussian over the coefficients of the basis."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes.base import KnownCoefficients, KnownValues, Process, require_dtype
from pyro_dgp.processes.basis import Basis
from pyro_dgp.processes.coefficients import Coefficients
from pyro_dgp.processes.marginal import FunctionMarginal
from pyro_dgp.processes.reading import POSTERIOR, Reading


class WhitenedProcess(Process):
    """Process ``f(x) = m(x) + a(x)' v + r(x)`` with any basis a and any q(v) over its coefficients.

    r is the part of the prior that the basis leaves. Under the prior v is ``N(0, I)``, under q it is ``N(mean_d, S_d)``. The marginal at x
    has mean ``m(x) + a' mean_d`` and variance ``k(x,x) - a'a + a' S_d a`` ([DSPP] 7 and 8 in whitened coordinates). The regulariser is the
    KL from the prior of v in nats. For a point estimate (``delta``, S = 0), where this KL is infinite, it is ``-log N(mean; 0, I)``, and
    the objective is no bound.

    **Groups.** The prior's batch axes at ``guide.initialize`` (a plate around the site, or a batch of data sets) are
    independent functions. Each has a q of its own, whose parameters lead with these axes.

    :ivar basis: the basis a.
    :ivar q: the distribution of v.
    """

    def __init__(self, basis: Basis, q: Coefficients) -> None:
        super().__init__()
        self.basis, self.q, self.groups = basis, q, q.groups

    def forward(
        self,
        prior: FunctionPrior,
        at: Tensor | None = None,
        deviations: Tensor | None = None,
        *,
        reading: Reading = POSTERIOR,
    ) -> FunctionMarginal:
        """Return the marginal at ``prior.x``, given the deviations of the hyperparameters.

        :param reading: what is taken from q(v): the posterior, or a cavity.
        """
        basis: Basis = self.basis
        q, regularizer = reading.of(self.q.read(basis, prior, deviations))
        require_dtype(q.mean.dtype, prior)
        if prior.num_outputs != q.mean.shape[-2]:
            raise ValueError(
                f"the process of {prior.name!r} has {q.mean.shape[-2]} outputs and the GP has {prior.num_outputs}: "
                "initialise the guide on this model"
            )
        if self.groups and prior.batch_shape[-len(self.groups) :] != self.present_groups:
            raise ValueError(
                f"the guide holds functions of {prior.name!r} for groups of shape {tuple(self.present_groups)} and the inputs have "
                f"batch shape {tuple(prior.batch_shape)}: pass inputs for the groups of guide.initialize, (*groups, N, D)"
            )
        loc, variance = basis.moments(prior, q)
        mean = prior.mean + loc
        if regularizer.dim():
            regularizer = regularizer.expand(mean.shape[:-2])
        return FunctionMarginal(mean, variance, regularizer, partial(self._joint, prior, q, self._taken))

    def _joint(self, prior: FunctionPrior, q: Any, taken: Any) -> Tensor:
        """Return the joint covariance over the rows of ``prior.x``, of what was taken when the marginal was made."""
        with self.taking(taken):
            columns, x = self.basis.columns(prior), prior.x.unsqueeze(-3)
        return prior.covariance.matrix(x) - columns.mT @ columns + q.spread(columns)

    def known_values(
        self, prior: FunctionPrior, num_draws: int, deviations: Tensor | None = None
    ) -> KnownValues | KnownCoefficients:
        """Draw v from q(v)."""
        if self.groups:
            raise ValueError(
                f"{prior.name!r} is one function for each of {tuple(self.groups)} groups, and functions are drawn of one: draw them from a "
                "guide of one group"
            )
        return self.basis.known_values(prior, self.q.read(self.basis, prior, deviations), num_draws)
