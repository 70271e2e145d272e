"""A process together with what one pass of a guide knows: deviations of hyperparameters, the groups that are present, the reading of q."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes.base import Process
from pyro_dgp.processes.marginal import FunctionMarginal
from pyro_dgp.processes.reading import Posterior, Reading
from pyro_dgp.processes.whitened import WhitenedProcess
from pyro_dgp.processes.whitened_gaussian import Gaussian


@dataclass
class ProcessInPass:
    """A process that a propagation asks for the marginal of a Gaussian process.

    :ivar process: the process.
    :ivar reading: what the pass takes from q(v).
    :ivar deviations: standardised deviations of the hyperparameters, where the process moves with them.
    :ivar taken: numbers of the groups that are present, by axis.
    :ivar looked_at: the inputs that inference functions looked at last.
    """

    process: Process
    reading: Reading
    deviations: Tensor | None
    taken: Mapping[int, Tensor]
    looked_at: Tensor | None = None

    def __call__(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """Return the marginal of q(f) at ``prior.x``; see :class:`~pyro_dgp.Process`."""
        self.looked_at = prior.x if at is None else at
        with self.process.taking(self.taken):
            if isinstance(self.process, WhitenedProcess):
                marginal: FunctionMarginal = self.process(prior, at, self.deviations, reading=self.reading)
                return marginal
            if not isinstance(self.reading, Posterior):
                raise ValueError(
                    f"{type(self.process).__name__}, the process of {prior.name!r}, has no cavity, which approximate expectation propagation "
                    "needs: take InducingPoints or another basis with a Gaussian over its coefficients"
                )
            marginal = self.process(prior, at)
            return marginal

    def coefficients(self, prior: FunctionPrior) -> tuple[Gaussian, Tensor]:
        """Return the Gaussian over the coefficients of a whitened process, and its regulariser.

        :raises ValueError: for a process of another kind.
        """
        if not isinstance(self.process, WhitenedProcess):
            raise ValueError(
                f"{type(self.process).__name__}, the process of {prior.name!r}, is no basis with a Gaussian over its coefficients: take "
                "InducingPoints"
            )
        return self.reading.of(self.process.q.read(self.process.basis, prior, self.deviations))
