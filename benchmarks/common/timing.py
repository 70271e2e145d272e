"""Training steps as functions, and their times, measured in turns so that a drifting machine slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyro_dgp import CompiledObjective, Variational, module_local_parameters
from pyro_dgp.losses import Loss

Step = Callable[[], None]
#: Inputs ``(N, D)`` and targets ``(N,)``.
Data = tuple[Tensor, Tensor]


#: Rows that guides and the points of peers begin at, at most: k-means of more costs time and changes nothing about a step.
STARTING_ROWS = 2000


def library_step(loss: Loss, guide: Variational, data: Data, *, batch: int, compiled: bool = False) -> Step:
    """Return one step of Adam on the first ``batch`` rows, and initialise the guide on the first :data:`STARTING_ROWS`.

    :param compiled: use :class:`CompiledObjective`, which is compiled at the second call of the step.
    """
    x, y = data
    guide.initialize(x[:STARTING_ROWS], y[:STARTING_ROWS])
    objective = CompiledObjective(loss(guide.model, guide)) if compiled else loss(guide.model, guide)
    with module_local_parameters(objective):
        optimizer = torch.optim.Adam(objective.parameters(), lr=0.01, fused=True)

    def step() -> None:
        with module_local_parameters():
            optimizer.zero_grad()
            (objective(x[:batch], y[:batch]) / len(x)).backward()
            optimizer.step()

    return step


def plain_step(objective: torch.nn.Module, data: Data, *, batch: int) -> Step:
    """Return one step of Adam for an ordinary torch module whose output is the loss in nats of all rows."""
    x, y = data
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.01, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        (objective(x[:batch], y[:batch]) / len(x)).backward()
        optimizer.step()

    return step


def alternate(
    steps: Mapping[str, Step], repeats: int, *, warm_up: int = 5, wait: Step | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run all steps one after the other, ``repeats`` times, and return the seconds of each call.

    :param warm_up: rounds that come first and are not counted.
    :param wait: returns when all work is done that a step has begun; for devices that work beside the processor.
    :return: wall-clock times and processor times ``(repeats,)``, by name.
    """
    wall: dict[str, list[float]] = {name: [] for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + warm_up):
        for name, step in steps.items():
            start, processor = time.perf_counter(), time.process_time()
            step()
            if wait is not None:
                wait()
            if repeat >= warm_up:
                wall[name].append(time.perf_counter() - start)
                cpu[name].append(time.process_time() - processor)
    first, second = ({name: torch.tensor(v) for name, v in values.items()} for values in (wall, cpu))
    return first, second


def toy(rows: int, inputs: int) -> Data:
    """Draw standard normal inputs, and targets that are a sine of the first input with noise."""
    torch.manual_seed(0)
    x = torch.randn(rows, inputs)
    return x, torch.sin(x[:, 0]) + 0.1 * torch.randn(rows)
