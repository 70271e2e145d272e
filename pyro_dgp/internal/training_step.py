"""The rows of a training step, which every loss that is evaluated in it can look up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class _Step(NamedTuple):
    """Numbers of rows: of a step, and of all of them."""

    rows: int
    of: int


_STEP: ContextVar[_Step | None] = ContextVar("step of training", default=None)


@contextmanager
def step_with(rows: int, of: int) -> Iterator[None]:
    """A scope in which an objective is evaluated at some rows of a training."""
    token = _STEP.set(_Step(rows, of))
    try:
        yield
    finally:
        _STEP.reset(token)


def require_weight_of_all_rows(
    loss: str, rows: int | None, num_data: int | None, *, takes_num_data: bool = True
) -> None:
    """Raise in a step of training for a loss that is given the rows of the step and does not weight them to stand for all.

    A loss inside an objective of the user's, such as one of two whose sum is trained, is seen here alone. One that is given other rows, such as those of a
    second data set, is right by itself.

    :param loss: name of the loss.
    :param rows: number of rows that it is given.
    """
    step = _STEP.get()
    if step is None or rows != step.rows or num_data == step.of or (num_data is None and step.rows == step.of):
        return
    if not takes_num_data:
        raise ValueError(f"{loss} needs all {step.of} rows in each step, not {step.rows}: leave batch_size out")
    raise ValueError(
        f"the loss has num_data={num_data} and there are {step.of} rows, in batches of {step.rows}: give {loss}(num_data={step.of}), which weights the KL by "
        "that number"
    )
