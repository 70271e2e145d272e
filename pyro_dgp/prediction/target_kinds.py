"""Kinds of targets: classes, counts and other integers, real numbers; what a distribution says about its own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    LowRankMultivariateNormal,
    MultivariateNormal,
    constraints,
)


def are_classes(components: Distribution) -> bool:
    """Tell whether y is the number of a class, so that sums and differences of its values mean nothing."""
    return isinstance(components, Categorical)


def require_numbers(components: Distribution, figure: str) -> None:
    """Raise for classes, which have probabilities and no figures such as a mean."""
    if isinstance(components, Categorical):
        raise ValueError(
            f"the targets are {components.probs.shape[-1]} classes, whose numbers have no {figure}: take probs, log_prob or sample of the "
            "prediction"
        )


def require_normal_outputs(components: Distribution, figure: str) -> None:
    """Raise for outputs of a row that are one event of a distribution other than a multivariate normal."""
    if components.event_shape and not isinstance(components, MultivariateNormal | LowRankMultivariateNormal):
        raise NotImplementedError(
            f"{type(components).__name__} has no {figure} of each output by itself: take mean, variance, log_prob or sample"
        )


def is_discrete(components: Distribution) -> bool:
    """Tell whether y takes separate values."""
    support: Any = components.support
    return bool(support.is_discrete)


def bounds(components: Distribution) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest value of y under each component; infinite where there is none."""
    support: Any = components.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.boolean:
        return torch.zeros(()), torch.ones(())
    low, high = getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)
    return torch.as_tensor(low), torch.as_tensor(high)
