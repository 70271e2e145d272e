"""Columns in blocks that fit the processor's cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal.recording import recording

#: Numbers in a block of columns: a few megabytes, which the passes over a kernel matrix find in the processor's cache.
_BLOCK = 2**19


#: Columns of a block for each inducing point, at least: what is summed over the blocks is M x M.
_LEAST = 4


def column_blocks(x: Float[Tensor, "e n d"], outputs: int, size: int) -> tuple[Tensor, ...]:
    """Inputs in blocks for which matrices of ``outputs`` x ``size`` numbers for each input fit the processor's cache. There is one block
    where that would be narrow for ``size`` inducing points, off the CPU, and in a program that is recorded.
    """
    width = max(_BLOCK // (outputs * size), _LEAST * size)
    if x.shape[-2] <= width or x.device.type != "cpu" or recording():
        return (x,)
    return x.split(width, -2)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Blocks side by side again."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), -1)
