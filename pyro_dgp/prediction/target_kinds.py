"""Kinds of targets: classes, counts and other integers, real numbers; what a distribution says about its own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    VonMises,
    constraints,
)

from pyro_dgp.internal.views import View


def innermost(components: Any) -> Any:
    """Return the distribution inside all views, whose kind is that of the components."""
    while isinstance(components, View):
        components = components.inner
    return components


def are_classes(components: Distribution) -> bool:
    """Tell whether y is the number of a class, so that sums and differences of its values mean nothing."""
    return isinstance(innermost(components), Categorical)


def has_few_values(components: Distribution) -> bool:
    """Tell whether y is a class: one of several, or of two."""
    kind = innermost(components)
    while isinstance(kind, Independent):
        kind = innermost(kind.base_dist)
    return isinstance(kind, Categorical | Bernoulli)


def require_numbers(components: Distribution, figure: str) -> None:
    """Raise for classes, which have probabilities and no figures such as a mean."""
    if are_classes(components):
        raise ValueError(
            f"the targets are {innermost(components).probs.shape[-1]} classes, whose numbers have no {figure}: take probs, log_prob or sample of the "
            "prediction"
        )


def require_normal_outputs(components: Distribution, figure: str) -> None:
    """Raise for outputs of a row that are one event of a distribution other than a multivariate normal."""
    if components.event_shape and not isinstance(components, MultivariateNormal | LowRankMultivariateNormal):
        raise NotImplementedError(
            f"{type(innermost(components)).__name__} has no {figure} of each output by itself: take mean, variance, log_prob or sample"
        )


def is_discrete(components: Distribution) -> bool:
    """Tell whether y takes separate values."""
    support: Any = components.support
    return bool(support.is_discrete)


def bounds(components: Distribution) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest value of y under each component; infinite where there is none."""
    if isinstance(components, View):
        return _bounds_of_view(components, 0), _bounds_of_view(components, 1)
    support: Any = components.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    like = _parameter_of(components)
    if support is constraints.boolean:
        return like.new_zeros(()), like.new_ones(())
    low, high = getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)
    return torch.as_tensor(low, device=like.device), torch.as_tensor(high, device=like.device)


def _parameter_of(components: Distribution) -> Tensor:
    """A parameter of the components, on whose device their values lie; a number on the processor where they have none."""
    inner = innermost(components)
    parameters = (getattr(inner, name, None) for name in inner.arg_constraints)
    return next((each for each in parameters if isinstance(each, Tensor)), torch.zeros(()))


def _bounds_of_view(view: View, end: int) -> Tensor:
    return view.evaluate(lambda each, _: bounds(each)[end].expand(each.batch_shape))


def moment(components: Distribution, figure: str) -> Tensor:
    """Return the mean or the variance of each component; raise if the distribution does not have it in closed form, and for angles."""
    if isinstance(innermost(components), VonMises):
        raise NotImplementedError(
            f"angles have no {figure} on a line, and that of VonMises is one on a circle: take log_prob or sample of the prediction"
        )
    try:
        value: Tensor = getattr(components, figure)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{type(innermost(components)).__name__} has no {figure} in closed form: take log_prob or sample of the prediction"
        ) from error
    return value
