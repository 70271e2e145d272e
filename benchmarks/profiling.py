"""Where the time of a training step goes, in percent: ``python -m benchmarks profile``.

The zoo's own methods at batch 100, 8 inputs, float32, one thread. Operations are timed by torch's profiler and divided among kinds; what a step takes
without the profiler beyond their sum is Python's: Pyro's sites, autograd's bookkeeping, calls of small operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import Step, alternate, library_step, toy
from pyro_dgp.inference import ByGuide, Settings
from pyro_dgp.methods import METHODS

INPUTS, ROWS, BATCH = 8, 2000, 100
SETTINGS = {
    "svgp": Settings(),
    "dsvi": Settings(),
    "dspp": Settings(beta=0.05),
    "avdgp-ar2pp": Settings(layers=3, width=8, samples=32, beta=1.0),
}
KINDS = {
    "matrix products": ("mm", "addmm", "bmm", "baddbmm", "linear", "linalg_vecdot", "dot", "mv"),
    "factors and triangular solves": ("linalg_cholesky_ex", "linalg_solve_triangular", "cholesky"),
    "optimiser": ("_fused_adam_", "Optimizer.step#Adam.step", "Optimizer.zero_grad#Adam.zero_grad"),
}
REST, PYTHON = "elementwise, sums and copies", "Python"


def training_step(name: str, settings: Settings, inducing: int | None = None) -> Step:
    """A step of a named method."""
    settings = settings if inducing is None else replace(settings, inducing=inducing)
    x, y = toy(ROWS, INPUTS)
    method = METHODS[name]
    assert isinstance(method.inference, ByGuide)
    guide = method.inference.guide(method.model(x, settings), settings)
    return library_step(method.inference.loss(settings, len(x)), guide, x, y, BATCH)


def kind(event: str) -> str:
    """Of an operation, by its name."""
    name = event.removeprefix("aten::")
    return next((kind for kind, names in KINDS.items() if name in names), REST)


def shares(step: Step, repeats: int) -> dict[str, float]:
    """Seconds of a step, and the share of each kind in it."""
    _, cpu = alternate({"": step}, repeats)
    seconds = float(cpu[""].median())
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(repeats):
            step()
    spent = dict.fromkeys((*KINDS, REST), 0.0)
    for event in recorded.key_averages():
        if event.key.startswith("aten::") or kind(event.key) != REST:
            spent[kind(event.key)] += 1e-6 * event.self_cpu_time_total / repeats
    whole = max(seconds, sum(spent.values()))
    parts = {name: value / whole for name, value in spent.items()}
    return {"seconds_per_step": seconds, **parts, PYTHON: 1 - sum(parts.values())}


def measure_all(quick: bool) -> Iterable[dict[str, float | str]]:
    """A row for each method."""
    torch.set_num_threads(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        for name, settings in SETTINGS.items():
            yield {"method": name, **shares(training_step(name, settings), 5 if quick else 50)}
    finally:
        torch.set_default_dtype(before)


def described(row: dict) -> str:
    """One line of the table."""
    parts = (f"{name} {100 * row[name]:.0f} %" for name in (*KINDS, REST, PYTHON))
    return f"{row['method']}, {1000 * row['seconds_per_step']:.1f} ms a step: {', '.join(parts)}"
