"""Plates around the statements of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import pyro
import torch
from pyro.poutine.runtime import get_plates

_GROUPS: ContextVar[Collection[str]] = ContextVar("group plates", default=())


@contextmanager
def known_groups(names: Collection[str]) -> Iterator[None]:
    """A scope in which plates of these names hold groups, however many rows there are."""
    token = _GROUPS.set(names)
    try:
        yield
    finally:
        _GROUPS.reset(token)


@contextmanager
def plates_that_take_some(frames: Iterable[Any]) -> Iterator[None]:
    """A scope inside plates like those of a site that take some of their elements, in which Pyro makes parameters for all elements."""
    with ExitStack() as stack:
        for frame in frames:
            if frame.vectorized and frame.full_size not in (None, frame.size):
                some = torch.arange(frame.size)
                stack.enter_context(pyro.plate(frame.name, frame.full_size, subsample=some, dim=frame.dim))
        yield


def refuse_data_plate(rows: int, what: str) -> None:
    """Raise inside a plate of as many elements as the data have rows.

    :param what: the statement, with its number of rows, for the message.
    """
    for frame in get_plates():
        if frame.name in _GROUPS.get():
            continue
        if frame.size == rows > 1 and frame.vectorized and not _holds_draws(frame.name):
            remedy = "move the sample statement out of the data plate"
            if frame.full_size not in (None, rows):
                remedy += f", and take no rows at random in the model: fit(..., batch_size={rows}) does"
            raise ValueError(
                f"{what} stands inside the plate {frame.name!r} of {rows}: its rows are an event "
                f"dimension and each would be counted once more; {remedy}"
            )


def _holds_draws(plate: str) -> bool:
    """Tell by its name whether a plate is one of Pyro's own over whole runs of the model: the particles of a loss, or the draws of ``Predictive``."""
    return "particles" in plate or plate == "_num_predictive_samples"
