"""Kinds of targets: classes, counts and other integers, real numbers; what a distribution says about its own."""

from __future__ import annotations

from typing import Any

from pyro.distributions import ProjectedNormal, VonMises3D
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
)

from pyro_dgp.internal.distributions import ANGLES
from pyro_dgp.likelihoods.supports import innermost, require_support

#: Distributions of angles and directions.
DIRECTIONS = (*ANGLES, VonMises3D, ProjectedNormal)


def kind_of(components: Distribution) -> Any:
    """Return a distribution that has the values of y, inside all views, events and mixtures."""
    kind = innermost(components)
    while isinstance(kind, MixtureSameFamily | Independent):
        kind = innermost(kind.component_distribution if isinstance(kind, MixtureSameFamily) else kind.base_dist)
    return kind


def are_classes(components: Distribution) -> bool:
    """Tell whether y is the number of a class, so that sums and differences of its values mean nothing."""
    return isinstance(kind_of(components), Categorical)


def has_few_values(components: Distribution) -> bool:
    """Tell whether y is a class: one of several, or of two."""
    return isinstance(kind_of(components), Categorical | Bernoulli)


def means_of(components: Any) -> Tensor:
    """Return the mean of each component, and for classes the probability of each class."""
    means: Tensor = class_probabilities(innermost(components)) if are_classes(components) else components.mean
    return means


def class_probabilities(components: Any) -> Tensor:
    """Return the probability of each class, of a distribution of classes or a mixture of such."""
    if isinstance(components, Independent):
        return class_probabilities(innermost(components.base_dist))
    if not isinstance(components, MixtureSameFamily):
        return components.probs  # type: ignore[no-any-return]
    each = class_probabilities(components.component_distribution)
    return (components.mixture_distribution.probs.unsqueeze(-1) * each).sum(-2)


def require_numbers(components: Distribution, figure: str) -> None:
    """Raise for classes, which have probabilities and no figures such as a mean."""
    if are_classes(components):
        raise ValueError(
            f"the targets are {kind_of(components).probs.shape[-1]} classes, whose numbers have no {figure}: take {'' if components.event_shape else 'probs, '}"
            "log_prob or sample of the prediction"
        )


def require_normal_outputs(components: Distribution, figure: str) -> None:
    """Raise for outputs of a row that are one event of a distribution other than a multivariate normal."""
    if components.event_shape and not isinstance(components, MultivariateNormal | LowRankMultivariateNormal):
        raise NotImplementedError(
            f"{type(innermost(components)).__name__} has no {figure} of each output by itself: take mean, variance, log_prob or sample"
        )


def require_line(components: Distribution, figure: str) -> None:
    """Raise for angles and directions, whose values have no order."""
    kind = kind_of(components)
    if isinstance(kind, DIRECTIONS):
        raise NotImplementedError(
            f"angles and directions have no {figure} on a line, and that of {type(kind).__name__} is an angle or a direction: take log_prob or sample of "
            "the prediction"
        )


def is_discrete(components: Distribution) -> bool:
    """Tell whether y takes separate values."""
    support: Any = components.support
    return bool(support.is_discrete)


def require_targets(components: Distribution, value: Tensor) -> None:
    """Raise for classes and counts that a distribution of single ones does not have."""
    if not components.event_shape and is_discrete(components):
        require_support(components, value)


def moment(components: Distribution, figure: str) -> Tensor:
    """Return the mean or the variance of each component; raise if the distribution does not have it in closed form, and for angles."""
    require_line(components, figure)
    try:
        value: Tensor = getattr(components, figure)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{type(innermost(components)).__name__} has no {figure} in closed form: take log_prob or sample of the prediction"
        ) from error
    return value
