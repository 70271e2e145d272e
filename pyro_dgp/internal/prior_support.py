"""Priors of parameters with bounds, such as positive ones: whether their draws are values that the parameter takes."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from pyro.distributions import ExpandedDistribution, MaskedDistribution
from torch import Tensor
from torch.distributions import Distribution, Independent, TransformedDistribution, constraints

from pyro_dgp.internal.moved_priors import tensor_of
from pyro_dgp.internal.recording import recording

#: Distributions around another one that has the same draws.
_AROUND_ONE = (Independent, MaskedDistribution, ExpandedDistribution)
#: How far, relative to a bound or to 1, a support may reach over it: rounding of single precision.
_ROUNDING = 1e-6


class Bounds(NamedTuple):
    """The ends of an interval of numbers, which may be infinite."""

    low: float
    high: float

    def within(self, other: Bounds) -> bool:
        """Tell whether the interval lies in another one, up to rounding."""
        return all(
            math.isinf(bound) or sign * (own - bound) <= _ROUNDING * max(1.0, abs(bound))
            for own, bound, sign in ((self.low, other.low, -1), (self.high, other.high, 1))
        )

    def words(self) -> str:
        """Describe the numbers, as after "is" and "draws"."""
        if self == (0.0, math.inf):
            return "positive"
        if math.isinf(self.low):
            return "of all reals" if math.isinf(self.high) else f"below {self.high:g}"
        return f"above {self.low:g}" if math.isinf(self.high) else f"from {self.low:g} to {self.high:g}"


def may_look() -> bool:
    """Tell whether values may be looked at: not while a function is recorded, compiled or traced, nor inside a graph of a GPU."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
    return not (traced or captured or recording())


def require_support(prior: Any, constraint: constraints.Constraint, label: str) -> bool:
    """Raise for a distribution that has draws outside the bounds of a parameter.

    A floor above zero, such as that of a noise variance, holds in training alone: a prior may reach down to zero. A support that is as wide as the
    real numbers may be that of a truncated distribution, which has no density outside the bounds. That one passes.

    :param constraint: that of the parameter. One without bounds, such as that of ordered vectors, takes every prior.
    :returns: whether all draws are known to lie within the bounds.
    """
    wanted = _wanted(constraint)
    if wanted is None:
        return True
    while isinstance(prior, _AROUND_ONE):
        prior = prior.base_dist
    try:
        support = _bounds(prior.support)
    except Exception:  # whatever the distribution of a user has in the place of a support
        support = None
    if support is None:
        return False
    if support.within(wanted):
        return True
    for point, is_draw in _points_outside(prior, support, wanted):
        if _has_density(prior, point):
            draws = f"such as {_farthest(point, wanted):g}" if is_draw else support.words()
            raise ValueError(_sentence(label, wanted, f"{type(prior).__name__} has draws {draws}"))
    return False


def require_value(value: Any, constraint: constraints.Constraint, label: str) -> None:
    """Raise for a draw on the processor that lies outside the bounds of a parameter. NaN passes: the loss names its cause."""
    wanted = _wanted(constraint)
    if wanted is None or not isinstance(value, Tensor) or value.device.type != "cpu":
        return
    value = value.detach()
    try:
        is_outside = bool(_outside(value, wanted).any())
    except RuntimeError:  # a value inside torch.func.vmap
        return
    if is_outside:
        raise ValueError(_sentence(label, wanted, f"its prior gave {_farthest(value, wanted):g}"))


def _sentence(label: str, wanted: Bounds, fault: str) -> str:
    remedy = "LogNormal or Gamma" if wanted.words() == "positive" else "a distribution of such numbers"
    return f"{label} is {wanted.words()}, and {fault}: take {remedy}"


def _wanted(constraint: constraints.Constraint) -> Bounds | None:
    """Return the bounds of a parameter, and nothing if it has none."""
    bounds = _bounds(constraint)
    if bounds is None or bounds == (-math.inf, math.inf):
        return None
    return Bounds(0.0, math.inf) if bounds.low > 0 and math.isinf(bounds.high) else bounds


def _bounds(constraint: Any) -> Bounds | None:
    """Return the bounds of the entries of a constraint, and nothing if it does not say."""
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    low, high = getattr(constraint, "lower_bound", None), getattr(constraint, "upper_bound", None)
    if low is None and high is None:
        return Bounds(-math.inf, math.inf) if isinstance(constraint, type(constraints.real)) else None
    lowest = -math.inf if low is None else float(torch.as_tensor(low).detach().min())
    return Bounds(lowest, math.inf if high is None else float(torch.as_tensor(high).detach().max()))


def _points_outside(prior: Any, support: Bounds, wanted: Bounds) -> Iterator[tuple[Tensor, bool]]:
    """Iterate over values of the support that lie outside the wanted bounds, each with whether it is one by which to call the prior's draws."""
    like, shape = tensor_of(prior), torch.Size((*prior.batch_shape, *prior.event_shape))
    like = torch.zeros(()) if like is None or not like.is_floating_point() else like.detach()
    for bound, end, side in ((wanted.low, support.low, -1), (wanted.high, support.high, 1)):
        if math.isfinite(bound) and side * (end - bound) > 0:
            near = [bound + side * size for size in (1.0, 1e-3)]
            inside = [point for point in near if side * (end - point) > 0]
            for point in inside if math.isinf(end) else (*inside, (bound + end) / 2):
                yield like.new_full(shape, point), False
    try:
        mean = prior.mean.detach()
        is_outside = bool(_outside(mean, wanted).any())
    except Exception:  # it has no mean, or none that can be looked at
        return
    if is_outside:
        yield mean, True


def _has_density(prior: Any, value: Tensor) -> bool:
    """Tell whether a distribution has a density at a value, in any of its entries; one that cannot be computed is none."""
    unchecked = copy.copy(prior)
    if isinstance(prior, Distribution):
        unchecked._validate_args = False
    try:
        with torch.no_grad():
            if isinstance(prior, TransformedDistribution) and not _is_reached(prior, value):
                return False
            return bool(unchecked.log_prob(value).isfinite().any())
    except Exception:  # whatever the distribution of a user makes of a value that it never draws
        return False


def _is_reached(prior: TransformedDistribution, value: Tensor) -> bool:
    """Tell whether the transforms of a distribution lead from a value of its base to this one: inverses of bounded transforms stop at the bounds."""
    before = value
    for transform in reversed(prior.transforms):
        before = transform.inv(before)
    after = before
    for transform in prior.transforms:
        after = transform(after)
    base: Any = prior.base_dist
    while isinstance(base, _AROUND_ONE):
        base = base.base_dist
    is_own = torch.isclose(after, value, rtol=1e-4, atol=1e-4)
    return bool((is_own & base.support.check(before)).any()) if base.event_shape == () else bool(is_own.any())


def _outside(value: Tensor, wanted: Bounds) -> Tensor:
    return (value < wanted.low) | (value > wanted.high)


def _farthest(value: Tensor, wanted: Bounds) -> float:
    """Return the entry that is farthest outside."""
    distance = torch.maximum(wanted.low - value, value - wanted.high)
    return float(value.flatten()[distance.flatten().nan_to_num(-math.inf, neginf=-math.inf).argmax()])
