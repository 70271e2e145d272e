"""A series of numbers to which one is added at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

#: Numbers that room is made for at once, at most.
_MOST = 1 << 20


class Series:
    """Numbers in the order in which they were added, eight bytes each.

    Room is made at the start, so that memory stays the same while numbers are added.

    :param expected: how many there will be; more may come.

    >>> from pyro_dgp.internal.series import Series
    >>> series = Series(expected=2)
    >>> for value in (1.0, 2.0, 3.0):
    ...     series.append(value)
    >>> len(series), series.values.tolist()
    (3, [1.0, 2.0, 3.0])
    """

    def __init__(self, expected: int) -> None:
        self._room = np.full(max(1, min(expected, _MOST)), np.nan)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> np.ndarray:
        """The numbers, a view."""
        return self._room[: self._count]

    def append(self, value: float) -> None:
        """Add a number."""
        if self._count == len(self._room):
            self._room = np.concatenate([self._room, np.full_like(self._room, np.nan)])
        self._room[self._count] = value
        self._count += 1

    def set(self, values: Iterable[float]) -> None:
        """Hold these numbers in the place of those before."""
        self._count = 0
        for value in values:
            self.append(value)
