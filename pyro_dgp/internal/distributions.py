"""Views of distributions of torch."""

from __future__ import annotations

from typing import Any

import torch


def elementwise(distribution: Any) -> Any:
    """The distribution of single elements: every ``Independent`` around it, which makes batch axes to event axes, is taken off."""
    while isinstance(distribution, torch.distributions.Independent):
        distribution = distribution.base_dist
    return distribution
