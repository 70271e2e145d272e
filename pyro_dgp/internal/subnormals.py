"""Numbers below the range of single precision, with which a processor computes a hundred times more slowly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def subnormals_as_zero(module: nn.Module) -> Iterator[None]:
    """A scope in which this thread takes such numbers for zero, where a module has parameters in single precision on the processor.

    Covariances of distant inputs fall below 1e-38, and so do their products with small gradients. In double precision they do not
    (the range ends at 1e-308), and nothing changes. Threads that torch started before keep their own setting.

    >>> import torch
    >>> from pyro_dgp.internal.subnormals import subnormals_as_zero
    >>> with subnormals_as_zero(torch.nn.Linear(1, 1, dtype=torch.float32)):
    ...     inside = are_zero()
    >>> inside, are_zero()
    (True, False)
    """
    single = any(each.dtype == torch.float32 and each.device.type == "cpu" for each in module.parameters())
    if not single or are_zero():
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def are_zero() -> bool:
    """Tell whether this thread takes them for zero."""
    smallest = float("1e-310")
    return smallest * 1.0 == 0.0
