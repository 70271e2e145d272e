"""The rows of a training step, which every loss that is evaluated in it can look up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pyro_dgp.internal.rows import Call


@dataclass
class _Step:
    """Numbers of rows, of a step and of all of them, and the tensors that the objective is given."""

    rows: int
    of: int
    tensors: list[Tensor] = field(default_factory=list)


_STEP: ContextVar[_Step | None] = ContextVar("step of training", default=None)


@contextmanager
def step_with(rows: int, of: int) -> Iterator[None]:
    """A scope in which an objective is evaluated at some rows of a training."""
    token = _STEP.set(_Step(rows, of))
    try:
        yield
    finally:
        _STEP.reset(token)


def note_arguments(call: Call) -> None:
    """Note what the objective is given in this step, if there is one."""
    step = _STEP.get()
    if step is not None:
        step.tensors = _tensors(*call)


def require_weight_of_all_rows(loss: str, call: Call, num_data: int | None, *, takes_num_data: bool = True) -> None:
    """Raise in a step of training for a loss that is given the rows of the step and does not weight them to stand for all.

    A loss inside an objective of the user's, such as one of two whose sum is trained, is seen here alone. It is asked where it is given a tensor of the step
    itself. One that is given others, such as those of a second data set, is right by itself.

    :param loss: name of the loss.
    :param call: what it is given.
    """
    step = _STEP.get()
    if step is None or num_data == step.of or (num_data is None and step.rows == step.of):
        return
    if not any(given is own for given in _tensors(*call) for own in step.tensors):
        return
    if not takes_num_data:
        raise ValueError(all_rows_message(loss, step.rows, of=step.of))
    raise ValueError(num_data_message(loss, num_data, step.rows, of=step.of))


def all_rows_message(loss: str, rows: int, of: int) -> str:
    """Say that a loss needs all rows."""
    return f"{loss} needs all {of} rows in each step, not {rows}: leave batch_size out"


def num_data_message(loss: str, num_data: int | None, rows: int, of: int) -> str:
    """Say that a loss weights the rows of a step by another number than there are."""
    return (
        f"the loss has num_data={num_data} and there are {of} rows, in batches of {rows}: give {loss}(num_data={of}), which weights the KL by that "
        "number"
    )


def _tensors(args: tuple[Any, ...], kwargs: Any) -> list[Tensor]:
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
