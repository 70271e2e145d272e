"""What the speed benchmarks share: training steps as functions, and their times taken in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyro_dgp import CompiledObjective, Variational, module_local_parameters
from pyro_dgp.losses import Loss

Step = Callable[[], None]


def library_step(loss: Loss, guide: Variational, x: Tensor, y: Tensor, batch: int, compiled: bool = False) -> Step:
    """One step of Adam on the first ``batch`` rows; the guide is initialised here. A compiled one is compiled at its second call."""
    guide.initialize(x, y)
    objective = CompiledObjective(loss(guide.model, guide)) if compiled else loss(guide.model, guide)
    with module_local_parameters(objective):
        optimizer = torch.optim.Adam(objective.parameters(), lr=0.01, fused=True)

    def step() -> None:
        with module_local_parameters():
            optimizer.zero_grad()
            (objective(x[:batch], y[:batch]) / len(x)).backward()
            optimizer.step()

    return step


def plain_step(objective: torch.nn.Module, x: Tensor, y: Tensor, batch: int) -> Step:
    """The same of an ordinary module."""
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.01, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        (objective(x[:batch], y[:batch]) / len(x)).backward()
        optimizer.step()

    return step


def alternate(steps: Mapping[str, Step], repeats: int, warm_up: int = 5) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Seconds of each step, wall-clock and CPU: one after the other, ``repeats`` times."""
    wall: dict[str, list[float]] = {name: [] for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + warm_up):
        for name, step in steps.items():
            start, processor = time.perf_counter(), time.process_time()
            step()
            if repeat >= warm_up:
                wall[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - processor)
    first, second = ({name: torch.tensor(v) for name, v in values.items()} for values in (wall, cpu))
    return first, second


def toy(rows: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Normal inputs, and a sine of the first with noise."""
    torch.manual_seed(0)
    x = torch.randn(rows, inputs)
    return x, torch.sin(x[:, 0]) + 0.1 * torch.randn(rows)
