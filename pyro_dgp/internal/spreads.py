"""Standard deviations of numbers some of which may be missing."""

from __future__ import annotations

import torch
from torch import Tensor


def spread_along(values: Tensor, dim: int) -> Tensor:
    """Return the standard deviation along an axis, which is kept, of all that is no NaN; exactly zero where that is the same everywhere, or nothing.

    A mean that is rounded leaves differences to numbers that do not differ.
    """
    seen = ~values.isnan()
    count = seen.sum(dim, keepdim=True).clamp_min(1)
    centre = torch.where(seen, values, 0.0).sum(dim, keepdim=True) / count
    spread = (torch.where(seen, values - centre, 0.0).square().sum(dim, keepdim=True) / count).sqrt()
    highest, lowest = (
        torch.where(seen, values, -torch.inf).amax(dim, keepdim=True),
        torch.where(seen, values, torch.inf).amin(dim, keepdim=True),
    )
    return torch.where(highest > lowest, spread, 0.0)


def scale_along(values: Tensor, dim: int) -> Tensor:
    """Return :func:`spread_along`, and one where nothing varies: what numbers are divided by to be compared."""
    spread = spread_along(values, dim)
    return torch.where(spread > 0, spread, 1.0)
