"""The affine map between a variable in its own units and the same variable standardised, for tensors and arrays alike."""

from __future__ import annotations

from typing import Any


def standardised(values: Any, mean: Any, scale: Any) -> Any:
    """Return ``(values - mean) / scale``."""
    return (values - mean) / scale


def restored(values: Any, mean: Any, scale: Any) -> Any:
    """Return ``mean + scale * values``, the inverse of :func:`standardised`."""
    return mean + scale * values
