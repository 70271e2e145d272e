"""The training loop: mini-batches, Adam, a learning rate that falls at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.data.streams import Stream
from pyro_dgp.internal.parameters import module_local_parameters

#: ``callback(step, loss)`` after each step; the loss is in nats per observation.
Callback = Callable[[int, float], object]


#: ``optimizer(objective, learning_rate)``, over the parameters of the objective.
OptimizerRecipe = Callable[[torch.nn.Module, float], torch.optim.Optimizer]


def adam(objective: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Adam at one learning rate."""
    return torch.optim.Adam(objective.parameters(), lr=learning_rate, fused=True)


def adam_for_networks(objective: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Adam at a tenth of the learning rate for plain ``torch.nn.Parameter``s, the weights of networks: a rate that suits
    kernels kills rectifiers. (Parameters of an adapted GPyTorch kernel are plain too.)
    """
    named = dict(objective.named_parameters())
    own = [parameter for name, parameter in named.items() if name.endswith("_unconstrained")]
    weights = [parameter for name, parameter in named.items() if not name.endswith("_unconstrained")]
    groups = [{"params": own, "lr": learning_rate}, {"params": weights, "lr": learning_rate / 10}]
    return torch.optim.Adam(groups, fused=True)


@dataclass
class FitResult:
    """What a training run leaves behind besides the trained parameters.

    :ivar losses: minus the objective of each step, nats per observation.
    :ivar seconds: wall-clock time.
    """

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0


def steps_for(epochs: int, rows: int, batch_size: int) -> int:
    """Steps in ``epochs`` passes over ``rows`` observations."""
    return epochs * math.ceil(rows / min(batch_size, rows))


def batches(rows: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Row indices without end, shuffled anew for each pass; all rows in order if they fit into one batch."""
    if batch_size >= rows:
        while True:
            yield torch.arange(rows)
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(rows, generator=generator).split(batch_size)


def fit(
    objective: torch.nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch_size: int = 256,
    learning_rate: float = 0.02,
    seed: int = 0,
    callback: Callback | None = None,
    optimizer: OptimizerRecipe = adam,
    stop: Callable[[int], bool] | None = None,
) -> FitResult:
    """Minimise ``objective(x_batch, y_batch)`` by Adam, in place.

    The learning rate is constant for the first 60 % of the steps and then falls along a half cosine to a hundredth.

    :param objective: ``loss(model, guide)``, or a :class:`~pyro_dgp.losses.MarginalLikelihood`; nats in total.
    :param x: training inputs ``(N, D)``.
    :param y: targets ``(N,)`` or ``(N, D_out)``.
    :param seed: of the order of the batches.
    :param callback: called after each step.
    :param optimizer: Adam, or what it gives.
    :param stop: asked after each step, with the number of steps done, whether that was the last.
    """
    check_data(x, y)
    _check_objective(objective, len(x), batch_size)
    pairs = ((x[index], y[index]) for index in batches(len(x), batch_size, seed))
    return _minimise(
        objective,
        pairs,
        len(x),
        steps=steps,
        learning_rate=learning_rate,
        callback=callback,
        optimizer=optimizer,
        stop=stop,
    )


def fit_stream(
    objective: torch.nn.Module,
    stream: Stream,
    *,
    steps: int,
    batch_size: int = 1024,
    learning_rate: float = 0.02,
    seed: int = 0,
    callback: Callback | None = None,
    optimizer: OptimizerRecipe = adam,
    stop: Callable[[int], bool] | None = None,
) -> FitResult:
    """The same on rows that stay on disk; the guide is initialised before, on ``stream.sample(10_000)``.

    :param objective: of a loss with ``num_data=len(stream)``.
    :param stream: see :class:`~pyro_dgp.streams.Stream`; the other parameters are those of :func:`fit`.
    """
    _check_objective(objective, len(stream), batch_size)
    pairs = stream.batches(batch_size, seed)
    return _minimise(
        objective,
        pairs,
        len(stream),
        steps=steps,
        learning_rate=learning_rate,
        callback=callback,
        optimizer=optimizer,
        stop=stop,
    )


def _minimise(
    objective: torch.nn.Module,
    pairs: Iterator[tuple[Tensor, Tensor]],
    rows: int,
    *,
    steps: int,
    learning_rate: float,
    callback: Callback | None,
    optimizer: OptimizerRecipe,
    stop: Callable[[int], bool] | None,
) -> FitResult:
    result, start = FitResult(), time.perf_counter()
    with module_local_parameters(objective):
        stepper = optimizer(objective, learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: decay(step / max(steps, 1)))
        for step in range(steps):
            stepper.zero_grad()
            loss = objective(*next(pairs)) / rows
            value = float(loss.detach())
            if not math.isfinite(value):
                raise ValueError(
                    f"the loss is {value} at step {step}: lower the learning rate, or use float64 if this is float32"
                )
            loss.backward()
            stepper.step()
            schedule.step()
            result.losses.append(value)
            if callback is not None:
                callback(step, value)
            if stop is not None and stop(step + 1):
                break
    result.seconds = time.perf_counter() - start
    return result


def check_data(x: Tensor, y: Tensor) -> None:
    """Raise for NaN or infinity, or unequal numbers of rows."""
    for name, values in (("x", x), ("y", y)):
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{name} holds NaN or infinity: drop or fill such rows before training")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} rows and y has {len(y)}: they must be equal")


def _check_objective(objective: torch.nn.Module, rows: int, batch_size: int) -> None:
    """Raise for what is no objective, and for a loss that weights batches as parts of another number of rows."""
    if not isinstance(objective, torch.nn.Module):
        raise TypeError(
            f"the objective is loss(model, guide), a torch.nn.Module, not {type(objective).__name__}: call the loss on both"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size is at least 1, got {batch_size}")
    loss: Any = getattr(objective, "elbo", None)
    if not hasattr(loss, "num_data"):
        return
    if loss.num_data is None and batch_size >= rows:
        return
    if loss.num_data != rows:
        raise ValueError(
            f"the loss has num_data={loss.num_data} and there are {rows} rows, in batches of {min(batch_size, rows)}: the KL would "
            f"have another weight; give {type(loss).__name__}(num_data={rows})"
        )


def decay(progress: float) -> float:
    """Factor of the learning rate after a share ``progress`` of the steps."""
    if progress <= 0.6:
        return 1.0
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (progress - 0.6) / 0.4))
