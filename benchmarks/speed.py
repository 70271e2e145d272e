"""Seconds per training step beside GPyTorch and straight-line torch, in one process: ``python -m benchmarks speed``.

``svgp`` and ``ppgpr`` (one layer) and ``dsvi``, 8 inputs, Matern 5/2 with ARD, float32, the same objective and optimiser in all three; GPyTorch
as it comes, with factors and solves in double precision. Their
steps alternate, and with them a fixed piece of linear algebra that shows how the machine drifts. Ratios are of steps next to each
other, of wall-clock time; ``cpu_`` are processor times, in which both threads count. ``--compiled`` times the same steps of
``CompiledObjective`` too (20 to 60 seconds a case for the compiler): ``compiled_`` are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from benchmarks.straight_line import StraightLine
from benchmarks.timing import Step, alternate, library_step, plain_step, toy
from pyro_dgp import ELBO, InducingPoints, MonteCarlo, PredictiveLogLikelihood, Variational
from pyro_dgp.losses import Loss
from pyro_dgp.models.deep_gp import DeepGP

INPUTS, ROWS, BETA = 8, 2000, 0.05
DTYPE = torch.float32


@dataclass(frozen=True)
class Case:
    """What is timed."""

    method: str
    layers: int = 1
    samples: int = 1
    batch: int = 100
    per_output: bool = True
    width: int = 5
    inducing: int = 128

    @property
    def beta(self) -> float | None:
        """Weight of the KL where the loss is predictive."""
        return BETA if self.method == "ppgpr" else None


CASES = (
    *(Case(method, batch=batch) for method in ("svgp", "ppgpr") for batch in (100, 1000)),
    *(Case("dsvi", layers, samples) for layers in (2, 3) for samples in (10, 32)),
    *(Case("dsvi", layers, 10, 1000, per_output) for layers in (2, 3) for per_output in (True, False)),
)
QUICK = (Case("svgp"), Case("ppgpr"), Case("dsvi", 2, 10), Case("dsvi", 3, 10))


def library(x: Tensor, y: Tensor, case: Case, compiled: bool = False) -> Step:
    """This library's step."""
    model = DeepGP(x, case.layers, case.width, per_output=case.per_output)
    guide = Variational(model, InducingPoints(case.inducing), MonteCarlo(case.samples))
    loss: Loss = ELBO(len(x)) if case.beta is None else PredictiveLogLikelihood(len(x), case.beta)
    return library_step(loss, guide, x, y, case.batch, compiled)


def gpytorch(x: Tensor, y: Tensor, case: Case) -> Step:
    """GPyTorch's."""
    import gpytorch as gp

    from benchmarks.peers import PeerDeepGP, PeerGP

    batch = slice(case.batch)
    if case.layers == 1:
        model = PeerGP(x, case.inducing)
        loss = gp.mlls.VariationalELBO if case.beta is None else gp.mlls.PredictiveLogLikelihood
        objective = loss(model.likelihood, model, len(x), 1.0 if case.beta is None else case.beta)
    else:
        model = PeerDeepGP(x, case.layers, case.width, case.inducing, case.per_output)
        objective = gp.mlls.DeepApproximateMLL(gp.mlls.VariationalELBO(model.likelihood, model, len(x)))
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

    def step() -> None:
        with gp.settings.num_likelihood_samples(case.samples):
            optimizer.zero_grad()
            (-objective(model(x[batch]), y[batch])).backward()
            optimizer.step()

    return step


def floor(x: Tensor, y: Tensor, case: Case) -> Step:
    """Straight-line torch."""
    sizes = case.layers, case.width, case.inducing, case.samples, case.per_output
    return plain_step(StraightLine(x, *sizes, case.beta), x, y, case.batch)


def calibration() -> Step:
    """The fixed piece: a product and a factorisation of 256 x 256."""
    matrix = torch.eye(256) + torch.rand(256, 256) / 256

    def step() -> None:
        torch.linalg.cholesky(matrix @ matrix.mT)

    return step


LIBRARIES: dict[str, Callable[[Tensor, Tensor, Case], Step]] = {"": library, "gpytorch_": gpytorch, "floor_": floor}


def measure(case: Case, threads: int, repeats: int, compiled: bool = False) -> dict[str, float | int | str]:
    """A row of the table: medians of seconds, and minimum, median and maximum of each ratio."""
    torch.set_num_threads(threads)
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        x, y = toy(ROWS, INPUTS)
        steps = {name: make(x, y, case) for name, make in LIBRARIES.items()} | {"calibration_": calibration()}
        if compiled:
            steps["compiled_"] = library(x, y, case, compiled=True)
        wall, cpu = alternate(steps, repeats)
    finally:
        torch.set_default_dtype(before)
    row = asdict(case) | {"dtype": str(DTYPE).removeprefix("torch."), "threads": threads, "repeats": repeats}
    row["calibration_seconds"] = float(wall.pop("calibration_").median())
    for kind, seconds in (("", wall), ("cpu_", cpu)):
        row |= {f"{kind}{name}seconds_per_step": float(value.median()) for name, value in seconds.items()}
        for own in ("compiled_", "") if compiled else ("",):
            ratios = {"gpytorch": seconds["gpytorch_"] / seconds[own], "floor": seconds[own] / seconds["floor_"]}
            for name, ratio in ratios.items():
                label = f"{kind}{own}ratio_to_{name}"
                row[label] = float(ratio.median())
                row |= {} if kind else {f"{label}_min": float(ratio.min()), f"{label}_max": float(ratio.max())}
    return row


def measure_all(quick: bool, compiled: bool = False) -> Iterable[dict[str, float | int | str]]:
    """Every case with one and two threads; in the quick form few cases, few repeats. Large steps, which vary less, are repeated less."""
    for threads in (1, 2):
        for case in QUICK if quick else CASES:
            repeats = 5 if quick else 40 if case.batch * case.samples < 5000 else 12
            yield measure(case, threads, repeats, compiled)


def described(row: dict) -> str:
    """One line of the table."""
    what = f"{row['method']} L{row['layers']} S{row['samples']} B{row['batch']}"
    kernels = "a kernel per output" if row["per_output"] else "a kernel per layer"
    times = ", ".join(
        f"{label} {1000 * row[f'{name}seconds_per_step']:.1f}"
        for label, name in (("here", ""), ("GPyTorch", "gpytorch_"), ("floor", "floor_"))
    )
    ratios = ", ".join(
        f"{label} {row[f'ratio_to_{name}']:.2f} ({row[f'ratio_to_{name}_min']:.2f} to {row[f'ratio_to_{name}_max']:.2f})"
        for label, name in (("GPyTorch / here", "gpytorch"), ("here / floor", "floor"))
    )
    compiled = ""
    if "compiled_seconds_per_step" in row:
        compiled = (
            f"; compiled {1000 * row['compiled_seconds_per_step']:.1f} ms, GPyTorch / compiled "
            f"{row['compiled_ratio_to_gpytorch']:.2f}, compiled / floor {row['compiled_ratio_to_floor']:.2f}"
        )
    threads = f"{row['threads']} thread{'s' * (row['threads'] > 1)}"
    return f"{what}, {kernels}, {threads}: ms a step {times}; {ratios}{compiled}"
