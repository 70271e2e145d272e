"""The logarithm of the standard normal distribution function, with its derivative far below zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Where the form for the tail begins.
_TAIL = -10.0


def log_ndtr(z: Tensor) -> Tensor:
    """Return ``log Phi(z)``.

    The derivative that PyTorch has for it, ``exp(-z^2 / 2 - log Phi(z)) / sqrt(2 pi)``, is a difference of large numbers far below
    zero: in float32 it is wrong by a factor at -1e4, and NaN at -1e6. Here ``Phi(z) = erfcx(-z / sqrt 2) exp(-z^2 / 2) / 2`` in the tail.
    """
    far = z.clamp(max=_TAIL)
    tail = torch.special.erfcx(-far / math.sqrt(2)).log() - 0.5 * far.square() - math.log(2)
    return torch.where(z < _TAIL, tail, torch.special.log_ndtr(z.clamp(min=_TAIL)))
