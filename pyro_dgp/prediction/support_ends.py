"""Ends of the support of a mixture, which may have a probability of their own, as those of censored readings have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class SupportEnd(NamedTuple):
    """A least or a greatest value of y, ``(N, ...)``, infinite in rows without one.

    :ivar before: F just before it; -1 before a least value, so that a level of 0 is reached there.
    :ivar reached: F at it.
    """

    value: Tensor
    before: Tensor
    reached: Tensor


def support_ends(distribution_function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Iterator[SupportEnd]:
    """Iterate over the ends that any row has.

    :param low: least value of each row, ``(N, ...)``, and ``high``, the greatest.
    """
    if bool(low.isfinite().any()):
        yield SupportEnd(low, torch.full_like(low, -1.0), distribution_function(low))
    if bool(high.isfinite().any()):
        before = high.nextafter(high.new_tensor(-torch.inf))
        yield SupportEnd(high, distribution_function(before), distribution_function(high))


def at_ends(ends: Iterable[SupportEnd], low: Tensor, high: Tensor, *, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return brackets ``(Q, N, ...)`` that are an end where F reaches a level there, and the given ones elsewhere."""
    for value, before, reached in ends:
        is_there = value.isfinite() & (before < target) & (reached >= target)
        low, high = torch.where(is_there, value, low), torch.where(is_there, value, high)
    return low, high


@torch.no_grad()
def are_masses(ends: Iterable[SupportEnd], found: Tensor) -> Tensor:
    """Tell which numbers ``(Q, N, ...)`` are an end with a probability of its own."""
    room = torch.finfo(found.dtype).eps ** 0.5
    is_end = torch.zeros_like(found, dtype=torch.bool)
    for value, before, reached in ends:
        is_end = is_end | ((found == value) & (reached - before.clamp_min(0.0) > room))
    return is_end
