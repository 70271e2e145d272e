"""Columns in blocks that fit the processor's cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal.recording import recording

#: Numbers in a block of columns: a few megabytes, which the passes over a kernel matrix find in the processor's cache.
_BLOCK = 2**19


#: Columns of a block for each inducing point, at least: the sum over blocks has M x M numbers, and narrow blocks would not pay.
_LEAST = 4


def column_blocks(x: Float[Tensor, "e n d"], outputs: int, size: int) -> tuple[Tensor, ...]:
    """Split inputs into blocks whose kernel matrices, ``outputs`` x ``size`` numbers for each input, fit the processor's cache.

    There is one block where more would be too narrow for ``size`` inducing points, on other devices than the CPU, and while a function is
    recorded.
    """
    width = max(_BLOCK // (outputs * size), _LEAST * size)
    if x.shape[-2] <= width or x.device.type != "cpu" or recording():
        return (x,)
    return x.split(width, -2)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Join blocks side by side."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), -1)
