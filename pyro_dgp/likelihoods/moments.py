"""Marginal moments of function values, which processes hand to likelihoods."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Moments(NamedTuple):
    """Mean and variance (not scale) of normal function values, each ``(..., N, D_out)``."""

    mean: Tensor
    variance: Tensor


@runtime_checkable
class Marginal(Protocol):
    """The part of a q(f) that an observation reads: its moments."""

    @property
    def mean(self) -> Tensor:
        """``(..., N, D_out)``."""

    @property
    def variance(self) -> Tensor:
        """``(..., N, D_out)``."""
