"""Equally spaced draws of a chain."""

from __future__ import annotations


def equally_spaced(total: int, most: int) -> list[int]:
    """Return at most ``most`` equally spaced numbers below ``total``.

    Where ``total`` is several chains of equal length and ``most`` a multiple of their number, each chain has as many.
    """
    count = min(total, most)
    return [number * total // count for number in range(count)]
