"""Checks of values inside functions that are being recorded. Such a function cannot branch, so it reports failures as a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

_reports: ContextVar[list[Tensor] | None] = ContextVar("reports", default=None)


@contextmanager
def reports() -> Iterator[list[Tensor]]:
    """A scope for recording a function, in which nothing fails: matrices are factorised at the first jitter, all targets are accepted.

    :returns: counts of failures; the results of the recorded function are right if all of them are zero.
    """
    collected: list[Tensor] = []
    token = _reports.set(collected)
    try:
        yield collected
    finally:
        _reports.reset(token)


def recording() -> bool:
    """Whether a function is being recorded."""
    return _reports.get() is not None


def failed(report: Tensor) -> bool:
    """Whether any of the numbers is not zero. While a function is recorded, the numbers are added to its reports and the answer is no."""
    collected = _reports.get()
    if collected is None:
        return bool(report.any())
    collected.append(report.sum(dtype=torch.int32))
    return False


def is_at_most(number: Tensor, largest: float) -> bool:
    """Whether a number is at most ``largest``, to choose between two ways to compute the same; NaN is not.

    A recorded function keeps the choice that is right while it is recorded, and reports a failure where the other one would be.
    """
    collected = _reports.get()
    if collected is None:
        return number.item() <= largest
    with disable_proxy_modes_tracing():
        choice = number.item() <= largest
    collected.append(((number <= largest) != choice).to(torch.int32))
    return choice


def require_all(valid: Tensor, message: str) -> None:
    """Raise ``ValueError`` unless all entries are true; in a recorded function, report those that are not."""
    if failed(~valid):
        raise ValueError(message)


def report_invalid(valid: Callable[[], Tensor]) -> None:
    """While a function is recorded, report the entries that are not valid. Otherwise do nothing: another check raises for them."""
    if recording():
        failed(~valid())
