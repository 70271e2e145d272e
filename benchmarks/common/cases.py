"""Cases of the studies of speed and scaling: a named method with its sizes, and its training step."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.common.timing import Data, Step, library_step
from pyro_dgp import ELBO, InducingPoints, MonteCarlo, PredictiveLogLikelihood, Variational
from pyro_dgp.losses import Loss
from pyro_dgp.models.deep_gp import DeepGP

INPUTS, BETA = 8, 0.05


@dataclass(frozen=True)
class Case:
    """A method and the sizes of its model, of its guide and of its batches.

    :param per_output: whether each output of a hidden layer has a kernel of its own.
    """

    method: str
    layers: int = 1
    samples: int = 1
    batch: int = 100
    per_output: bool = True
    width: int = 5
    inducing: int = 128

    @property
    def beta(self) -> float | None:
        """Weight of the KL where the loss is predictive, nothing where it is the evidence lower bound."""
        return BETA if self.method == "ppgpr" else None


def case_step(case: Case, data: Data, *, compiled: bool = False) -> Step:
    """Return a training step of this library."""
    x, _ = data
    model = DeepGP(x, case.layers, case.width, per_output=case.per_output)
    guide = Variational(model, InducingPoints(case.inducing), MonteCarlo(case.samples))
    loss: Loss = ELBO(len(x)) if case.beta is None else PredictiveLogLikelihood(len(x), case.beta)
    return library_step(loss, guide, data, batch=case.batch, compiled=compiled)
