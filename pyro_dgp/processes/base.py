"""Variational families over one GP: what a guide puts in the place of a prior."""

from __future__ import annotations

from pyro.nn import PyroModule
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes.marginal import FunctionMarginal


class Process(PyroModule):
    """q over one GP. ``process(prior)`` is its marginal at the prior's inputs, by the prior's kernel and mean."""

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """The marginal of q(f) at ``prior.x``.

        :param at: what an amortised process's inference functions look at, ``prior.x`` if not given; others ignore it.
        """
        raise NotImplementedError
