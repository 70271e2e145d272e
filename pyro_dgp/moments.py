"""Marginal moments of function values, the currency between processes and likelihoods."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Moments(NamedTuple):
    """Mean and variance (not scale) of normal function values, each ``(..., N, D_out)``."""

    mean: Tensor
    variance: Tensor
