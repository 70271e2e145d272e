"""Seconds per training step beside GPyTorch and straight-line torch, in one process.

``python -m benchmarks speed [--quick] [--compiled] [--json FILE] [--figures DIR]``

Methods ``svgp`` and ``ppgpr`` (one layer) and ``dsvi``; 8 inputs, Matern 5/2 with ARD, float32, the same objective and optimiser in all three
implementations. GPyTorch runs with its defaults: factors and solves in double precision.

Steps of the three alternate, together with a fixed piece of linear algebra that shows how the machine drifts. Ratios compare steps that
ran next to each other, by wall-clock time; names that begin with ``cpu_`` are processor times, to which both threads add. ``--compiled`` times the
same steps of ``CompiledObjective`` too (the compiler takes 20 to 60 seconds a case); their names begin with ``compiled_``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict

import torch
from torch import Tensor

from benchmarks.common.cases import INPUTS, Case, case_step, floor_step, gpytorch_step
from benchmarks.common.timing import Data, Step, alternate, toy

ROWS = 2000
DTYPE = torch.float32
CASES = (
    *(Case(method, batch=batch) for method in ("svgp", "ppgpr") for batch in (100, 1000)),
    *(Case("dsvi", layers, samples) for layers in (2, 3) for samples in (10, 32)),
    *(Case("dsvi", layers, 10, 1000, per_output) for layers in (2, 3) for per_output in (True, False)),
)
QUICK = (Case("svgp"), Case("ppgpr"), Case("dsvi", 2, 10), Case("dsvi", 3, 10))

Row = dict[str, float | int | str]


def calibration_step() -> Step:
    """Return the fixed piece of linear algebra: a product and a factorisation of 256 x 256."""
    matrix = torch.eye(256) + torch.rand(256, 256) / 256

    def step() -> None:
        torch.linalg.cholesky(matrix @ matrix.mT)

    return step


#: By prefix of the names in a row.
LIBRARIES: dict[str, Callable[[Case, Data], Step]] = {
    "": case_step,
    "gpytorch_": gpytorch_step,
    "floor_": floor_step,
}


def measure(case: Case, *, threads: int, repeats: int, compiled: bool = False) -> Row:
    """Time one case: medians of seconds; median, minimum and maximum of each ratio."""
    torch.set_num_threads(threads)
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        data = toy(ROWS, INPUTS)
        steps = {name: make(case, data) for name, make in LIBRARIES.items()} | {"calibration_": calibration_step()}
        if compiled:
            steps["compiled_"] = case_step(case, data, compiled=True)
        wall, cpu = alternate(steps, repeats)
    finally:
        torch.set_default_dtype(before)
    row: Row = asdict(case) | {"dtype": str(DTYPE).removeprefix("torch."), "threads": threads, "repeats": repeats}
    row["calibration_seconds"] = float(wall.pop("calibration_").median())
    row |= _seconds_and_ratios(wall, "", compiled=compiled)
    medians = _seconds_and_ratios(cpu, "cpu_", compiled=compiled)
    return row | {name: value for name, value in medians.items() if not name.endswith(("_min", "_max"))}


def _seconds_and_ratios(seconds: dict[str, Tensor], kind: str, *, compiled: bool) -> dict[str, float]:
    row = {f"{kind}{name}seconds_per_step": float(value.median()) for name, value in seconds.items()}
    for own in ("compiled_", "") if compiled else ("",):
        ratios = {"gpytorch": seconds["gpytorch_"] / seconds[own], "floor": seconds[own] / seconds["floor_"]}
        for name, ratio in ratios.items():
            label = f"{kind}{own}ratio_to_{name}"
            row[label] = float(ratio.median())
            row |= {f"{label}_min": float(ratio.min()), f"{label}_max": float(ratio.max())}
    return row


def measure_all(quick: bool, compiled: bool = False) -> Iterable[Row]:
    """Time every case with one thread and with two.

    The quick form has few cases and few repeats. Large steps, whose times vary less, are repeated less often.
    """
    for threads in (1, 2):
        for case in QUICK if quick else CASES:
            repeats = 5 if quick else 40 if case.batch * case.samples < 5000 else 12
            yield measure(case, threads=threads, repeats=repeats, compiled=compiled)


def described(row: dict) -> str:
    """Return one line of the table."""
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
