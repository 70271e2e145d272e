"""Cases of the studies of speed and scaling: a named method with its sizes, and its training step here, in GPyTorch and in straight-line torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.common.straight_line import StraightLine
from benchmarks.common.timing import STARTING_ROWS, Data, Step, library_step, plain_step
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
    model = DeepGP(x[:STARTING_ROWS], case.layers, case.width, per_output=case.per_output).to(x)
    guide = Variational(model, InducingPoints(case.inducing), MonteCarlo(case.samples))
    loss: Loss = ELBO(len(x)) if case.beta is None else PredictiveLogLikelihood(len(x), case.beta)
    return library_step(loss, guide, data, batch=case.batch, compiled=compiled)


def gpytorch_step(case: Case, data: Data, *, large_batches: bool = False) -> Step:
    """Return a training step of GPyTorch.

    :param large_batches: use its ``LargeBatchVariationalStrategy``, which is made for GPUs, in the place of ``VariationalStrategy``.
    """
    import gpytorch as gp

    from benchmarks.common.gpytorch_models import PeerDeepGP, PeerGP

    x, y = data
    batch, start = slice(case.batch), x[:STARTING_ROWS]
    strategy = gp.variational.LargeBatchVariationalStrategy if large_batches else gp.variational.VariationalStrategy
    if case.layers == 1:
        model = PeerGP(start, case.inducing, strategy)
        loss = gp.mlls.VariationalELBO if case.beta is None else gp.mlls.PredictiveLogLikelihood
        objective = loss(model.likelihood, model, len(x), 1.0 if case.beta is None else case.beta)
    else:
        model = PeerDeepGP(
            start,
            layers=case.layers,
            width=case.width,
            inducing=case.inducing,
            per_output=case.per_output,
            strategy=strategy,
        )
        objective = gp.mlls.DeepApproximateMLL(gp.mlls.VariationalELBO(model.likelihood, model, len(x)))
    model.to(x).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

    def step() -> None:
        with gp.settings.num_likelihood_samples(case.samples):
            optimizer.zero_grad()
            (-objective(model(x[batch]), y[batch])).backward()
            optimizer.step()

    return step


def floor_step(case: Case, data: Data) -> Step:
    """Return a training step of straight-line torch."""
    line = StraightLine(
        data[0][:STARTING_ROWS],
        layers=case.layers,
        width=case.width,
        inducing=case.inducing,
        samples=case.samples,
        per_output=case.per_output,
        beta=case.beta,
        rows=len(data[0]),
    ).to(data[0])
    return plain_step(line, data, batch=case.batch)
