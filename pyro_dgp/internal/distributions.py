"""Views of distributions of torch."""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions.torch_distribution import MaskedDistribution
from torch.distributions import constraints


def elementwise(distribution: Any) -> Any:
    """The distribution of single elements.

    Every ``Independent`` around it, which turns batch axes into event axes, is taken off, and so is every mask, which leaves
    elements out of a log density.

    >>> elementwise(torch.distributions.Independent(torch.distributions.Normal(torch.zeros(5), 1.0), 1)).batch_shape
    torch.Size([5])
    """
    while isinstance(distribution, torch.distributions.Independent | MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


def is_real(fn: Any) -> bool:
    """Tell whether a distribution is over all real numbers; one that does not say is taken for real."""
    try:
        support = fn.support
    except (AttributeError, NotImplementedError):
        return True
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real
