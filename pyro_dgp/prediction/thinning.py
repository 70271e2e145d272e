"""Equally spaced draws of a chain."""

from __future__ import annotations


def equally_spaced(total: int, most: int) -> list[int]:
    """At most so many numbers below ``total``; as many in each of several equal parts of it if they divide ``most``."""
    count = min(total, most)
    return [number * total // count for number in range(count)]
