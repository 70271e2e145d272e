"""Where the time of a training step goes, in percent.

``python -m benchmarks profile [--quick] [--json FILE] [--figures DIR]``

Methods of the zoo at batch 100, 8 inputs, float32, one thread. A stopwatch measures each part of a step without the parts that run inside it.
The rest of the forward pass is Pyro's sites, the guide, the propagation, the likelihood and the loss; the rest of the backward pass is autograd.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from benchmarks.common.timing import Step, library_step, toy
from pyro_dgp.kernels.radial import RadialMatrix
from pyro_dgp.kernels.stationary import FromNearPoints, StationaryCovariance
from pyro_dgp.processes import amortized, inducing_points
from pyro_dgp.processes.fused_moments import FusedMoments
from pyro_dgp.processes.fused_row_moments import FusedRowMoments
from pyro_dgp.processes.inference_functions import Perceptron
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings

INPUTS, ROWS, BATCH = 8, 2000, 100
SETTINGS = {
    "svgp": Settings(),
    "dsvi": Settings(),
    "dspp": Settings(beta=0.05),
    "avdgp-ar2pp": Settings(layers=3, width=8, samples=32, beta=1.0),
}
FORWARD = "forward, the rest"
#: Timed functions: the owner of the function, its name, and the part of a step to which its time is added.
PARTS: tuple[tuple[Any, str, str], ...] = (
    (StationaryCovariance, "matrix", "kernel matrices"),
    (FromNearPoints, "within", "kernel matrices"),
    (FromNearPoints, "to", "kernel matrices"),
    (inducing_points, "conditional_moments", "moments"),
    (amortized, "row_moments", "moments"),
    (Perceptron, "forward", "networks"),
    (RadialMatrix, "cotangents", "kernel matrices, backward"),
    (FusedMoments, "cotangents", "moments, backward"),
    (FusedRowMoments, "cotangents", "moments, backward"),
    (torch.Tensor, "backward", "backward, the rest"),
    (torch.optim.Adam, "step", "optimiser"),
)
KINDS = tuple(dict.fromkeys([label for _, _, label in PARTS] + [FORWARD]))


@dataclass
class Stopwatch:
    """Seconds of each part, without the seconds of the parts that ran inside it."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    running: list[str] = field(default_factory=list)
    since: float = 0.0

    def switch(self) -> None:
        """Add the time since the last switch to the part that is running."""
        now = time.perf_counter()
        if self.running:
            self.seconds[self.running[-1]] += now - self.since
        self.since = now

    @contextmanager
    def on(self, label: str) -> Iterator[None]:
        """Time what runs inside this context as one part."""
        self.switch()
        self.running.append(label)
        try:
            yield
        finally:
            self.switch()
            self.running.pop()

    def around(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        """Return the function with its calls timed as this part."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.on(label):
                return function(*args, **kwargs)

        return timed


@contextmanager
def timed_parts(watch: Stopwatch) -> Iterator[None]:
    """Time all functions of :data:`PARTS` inside this context, and restore them after it."""
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in PARTS]
    try:
        for owner, name, label in PARTS:
            wrapped = watch.around(getattr(owner, name), label)
            static = isinstance(vars(owner)[name], staticmethod)
            setattr(owner, name, staticmethod(wrapped) if static else wrapped)
        yield
    finally:
        for owner, name, own in before:
            setattr(owner, name, own)


def training_step(name: str, settings: Settings, inducing_points: int | None = None) -> Step:
    """Return a training step of a named method."""
    settings = settings if inducing_points is None else replace(settings, inducing=inducing_points)
    data = toy(ROWS, INPUTS)
    x, _ = data
    method = METHODS[name]
    assert isinstance(method.inference, ByGuide)
    guide = method.inference.guide(method.architecture.build(x, settings), x, settings)
    return library_step(method.inference.made_loss(settings, len(x)), guide, data, batch=BATCH)


def shares(step: Step, repeats: int) -> dict[str, float]:
    """Return the seconds of a step and the share of each part: means over the middle half of the repeats."""
    for _ in range(3):
        step()
    runs = []
    for _ in range(repeats):
        watch = Stopwatch()
        with timed_parts(watch), watch.on(FORWARD):
            step()
        runs.append(watch.seconds)
    runs = sorted(runs, key=lambda seconds: sum(seconds.values()))
    middle = runs[len(runs) // 4 : len(runs) // 4 + max(1, len(runs) // 2)]
    whole = sum(sum(seconds.values()) for seconds in middle)
    parts = {label: sum(seconds[label] for seconds in middle) / whole for label in KINDS}
    return {"seconds_per_step": whole / len(middle), **parts}


def measure_all(quick: bool) -> Iterable[dict[str, float | str]]:
    """Measure every method."""
    torch.set_num_threads(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        for name, settings in SETTINGS.items():
            yield {"method": name, **shares(training_step(name, settings), 5 if quick else 60)}
    finally:
        torch.set_default_dtype(before)


def described(row: dict) -> str:
    """Return one line of the table."""
    parts = (f"{label} {100 * row[label]:.0f} %" for label in KINDS if row[label] > 0)
    return f"{row['method']}, {1000 * row['seconds_per_step']:.1f} ms a step: {', '.join(parts)}"
