"""Ends of the support of distributions, which may depend on their parameters, and distribution functions on either side of these ends."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, TransformedDistribution, constraints

from pyro_dgp.internal.distributions import cdf_of
from pyro_dgp.internal.views import Integrated, View

#: Kinds whose support is that of their last transform, or a part of it: the image of the support inside.
_TRANSFORMED = (TransformedDistribution, dist.TransformedDistribution)


def innermost(components: Any) -> Any:
    """Return the distribution inside all views, whose kind is that of the components."""
    while isinstance(components, View):
        components = components.inner
    return components


def is_mixture_of_numbers(components: Any) -> bool:
    """Tell whether each component is a mixture in itself, of distributions of single numbers."""
    return isinstance(components, MixtureSameFamily) and not components.event_shape


def bounds(components: Distribution) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest value of y under each component; infinite where there is none.

    A mean over nodes of f keeps an end that is the same at all nodes. One that moves with f has no last place under a normal: it is infinite.
    """
    if isinstance(components, Integrated):
        low, high = bounds(components.inner)
        return _common(components, low, -math.inf), _common(components, high, math.inf)
    if isinstance(components, View):
        return _of_view(components, 0), _of_view(components, 1)
    if type(components) in _TRANSFORMED and not components.event_shape:
        return _image(components)
    if is_mixture_of_numbers(components):
        return _of_mixture(components)
    return _ends(components.support, _parameter_of(components))


def require_support(components: Distribution, value: Tensor) -> None:
    """Raise for a finite number that a distribution of classes or counts does not have."""
    value = value if value.is_floating_point() else value.double()
    low, high = bounds(components)
    wrong = value.isfinite() & ((value != value.round()) | (value < low) | (value > high))
    if bool(wrong.any()):
        found = float(value.expand(wrong.shape)[wrong][0])
        end = f"to {float(high.max()):g}" if bool(high.isfinite().all()) else "on"
        raise ValueError(
            f"a target is {found:g}, and {type(innermost(components)).__name__} takes whole numbers from {float(low.min()):g} {end}: recode the targets"
        )


def cdf_within(distribution: Any, value: Tensor) -> Tensor:
    """Return the distribution function at values, element by element: 0 below the support, 1 above it, and its own inside.

    A distribution is asked only for values that it has. Outside its support, some raise and others extrapolate: a Pareto has NaN, and a shifted
    exponential has numbers below zero. Its lower end has the probability of the end itself: none, but for a distribution that is censored there.

    :raises NotImplementedError: for distributions without one.
    """
    if isinstance(distribution, View):
        if type(distribution).cdf is not View.cdf:
            return distribution.cdf(value)
        value = value.expand(torch.broadcast_shapes(value.shape, distribution.shape()))
        lead = value.dim() - len(distribution.shape())
        return distribution.evaluate(cdf_within, value, lead)  # type: ignore[arg-type]
    if is_mixture_of_numbers(distribution):
        each = cdf_within(distribution.component_distribution, value.unsqueeze(-1))
        return (each * distribution.mixture_distribution.probs).sum(-1)
    low, high = bounds(distribution)
    if low.dim() == high.dim() == 0 and bool(low.isinf() & high.isinf()):
        return cdf_of(distribution, value)
    is_discrete = bool(distribution.support.is_discrete)
    below, above = value < low, value >= high
    if not is_discrete:
        below = below | ((value == low) & ~_has_mass_at(distribution, low, value))
    inside = between(low, high, is_discrete=is_discrete).to(value)
    probability = cdf_of(distribution, torch.where(below | above, inside, value))
    return torch.where(above, 1.0, torch.where(below, 0.0, probability))


@torch.no_grad()
def _has_mass_at(distribution: Any, low: Tensor, value: Tensor) -> Tensor:
    """Tell whether a distribution of real numbers has its lower end with a probability of its own, where values are that end."""
    nothing = torch.zeros((), dtype=torch.bool, device=value.device)
    if not bool((value == low).any()):
        return nothing
    inside = between(low, bounds(distribution)[1]).to(value)
    try:
        return cdf_of(distribution, torch.where(value == low, value, inside)) > 0
    except ValueError:  # the support does not have its end
        return nothing


def between(low: Tensor, high: Tensor, *, is_discrete: bool = False) -> Tensor:
    """Return a value between two ends, either of which may be infinite; of whole numbers an end."""
    step = 0.0 if is_discrete else 1.0
    inside = torch.where(low.isinf(), torch.where(high.isinf(), 0.0, high - step), low + step)
    return inside if is_discrete else torch.where(low.isinf() | high.isinf(), inside, 0.5 * (low + high))


def _ends(support: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of a constraint, on the device of a tensor."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.boolean:
        return like.new_zeros(()), like.new_ones(())
    low, high = getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)
    return torch.as_tensor(low, device=like.device), torch.as_tensor(high, device=like.device)


def _image(distribution: Any) -> tuple[Tensor, Tensor]:
    """Ends of a transformed distribution of single numbers: a finite end inside moves, and for an infinite one that of the transform counts."""
    low, high = bounds(distribution.base_dist)
    for transform in distribution.transforms:
        ends = _ends(transform.codomain, low)
        try:
            rises = torch.as_tensor(transform.sign, device=low.device) > 0
        except NotImplementedError:
            return _ends(distribution.support, low)
        first, last = (
            torch.where(end.isinf(), end, transform(torch.where(end.isinf(), 1.0, end))) for end in (low, high)
        )
        low, high = torch.where(rises, first, last), torch.where(rises, last, first)
        low, high = torch.where(low.isinf(), ends[0], low), torch.where(high.isinf(), ends[1], high)
    return low, high


def _common(view: Integrated, end: Tensor, nowhere: float) -> Tensor:
    """An end of all nodes, or none where they differ: of the shape of the batch."""
    if end.dim():
        each = end.expand(view.inner.batch_shape)
        each = each if each.is_floating_point() else each.to(torch.get_default_dtype())
        end = torch.where((each == each[:1]).all(0), each[0], nowhere)
    return end.expand(view.batch_shape)


def _of_mixture(mixture: Any) -> tuple[Tensor, Tensor]:
    """Least and greatest value of any part of a mixture."""
    parts = mixture.component_distribution
    low, high = (end if end.dim() == 0 else end.expand(parts.batch_shape) for end in bounds(parts))
    return low.amin(-1) if low.dim() else low, high.amax(-1) if high.dim() else high


def _of_view(view: View, end: int) -> Tensor:
    return view.evaluate(lambda each, _: bounds(each)[end].expand(each.batch_shape))


def _parameter_of(components: Distribution) -> Tensor:
    """A parameter of the components, on whose device their values lie; a number on the processor where they have none."""
    inner = innermost(components)
    parameters = (getattr(inner, name, None) for name in inner.arg_constraints)
    return next((each for each in parameters if isinstance(each, Tensor)), torch.zeros(()))
