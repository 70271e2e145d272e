"""Plates around the statements of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
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


def refuse_draws_beside_rows(name: str, shape: Sequence[int], *, outer: Collection[str]) -> None:
    """Raise for a site whose draws, of whole runs of the model, do not stand in the axis of the plate that Pyro has for them.

    Function values have their rows in an event, so that the draws stand one axis in front of a plate of rows, where each draw would be counted with all the others.

    :param name: the site, ``shape``, that of its batch, and ``outer``, names of the plates around the call of the model.
    """
    for frame in get_plates() if any(map(_holds_draws, outer)) else ():
        beyond = shape[: max(len(shape) + frame.dim, 0)] if frame.vectorized else ()
        if _holds_draws(frame.name) and frame.size > 1 and frame.size in beyond:
            raise ValueError(
                f"the {frame.size} draws of the plate {frame.name!r} stand in another axis of the site {name!r} than the plate's own, so that each would be counted with every "
                "other: write the rows as an event, as in Normal(f, 0.1).to_event(1), or take vectorize_particles=False, or parallel=False"
            )


def _holds_draws(plate: str) -> bool:
    """Tell by its name whether a plate is one of Pyro's own over whole runs of the model: the particles of a loss, or the draws of ``Predictive``."""
    return "particles" in plate or plate == "_num_predictive_samples"
