"""Standard normal numbers by row, of which a process that has a part of the rows of a step gets its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Size, Tensor


@dataclass(frozen=True)
class Part:
    """Rows ``start`` to ``stop - 1`` of the ``total`` rows of a step.

    :ivar weight: share of the loss of all rows that is the loss of these.
    """

    start: int
    stop: int
    total: int
    weight: float

    @classmethod
    def of(cls, total: int, number: int, parts: int) -> Part:
        """Return one of several parts, whose sizes differ by one at most. A part of no row holds the first one, with weight 0.

        >>> from pyro_dgp.internal.row_noise import Part
        >>> [(part.start, part.stop, part.weight) for part in (Part.of(4, number, 3) for number in range(3))]
        [(0, 1, 0.25), (1, 2, 0.25), (2, 4, 0.5)]
        """
        start, stop = number * total // parts, (number + 1) * total // parts
        return cls(start, max(stop, start + 1), total, (stop - start) / total)

    @property
    def rows(self) -> slice:
        """The rows as an index."""
        return slice(self.start, self.stop)


_PART: ContextVar[Part | None] = ContextVar("part", default=None)


@contextmanager
def part_of_rows(part: Part) -> Iterator[None]:
    """A scope in which the calls of an objective are on a part of the rows of a step."""
    token = _PART.set(part)
    try:
        yield
    finally:
        _PART.reset(token)


def row_noise(shape: Size, like: Tensor) -> Tensor:
    """Return standard normal numbers ``(..., N, D)`` for N rows.

    For a part of the rows of a step those of all rows are drawn, and its own are returned, so that each row has the numbers that it has
    in a single process.

    :param like: a tensor of the dtype and device.
    """
    part = _PART.get()
    if part is None:
        return torch.randn(shape, dtype=like.dtype, device=like.device)
    if shape[-2] != part.stop - part.start:
        raise ValueError(
            f"function values of {shape[-2]} rows are drawn, and this process has {part.stop - part.start} rows of the step: train a model that "
            "makes other rows in a single process"
        )
    whole = torch.randn((*shape[:-2], part.total, shape[-1]), dtype=like.dtype, device=like.device)
    return whole[..., part.rows, :]
