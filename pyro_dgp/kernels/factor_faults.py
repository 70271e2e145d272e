"""Why the covariance of some points has no Cholesky factor, in one sentence with the remedy that applies.

Nothing here runs unless a factorisation has failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal.linalg import Fault, NotPositiveDefiniteError
from pyro_dgp.kernels.covariance import Covariance
from pyro_dgp.kernels.stationary import StationaryCovariance

#: Range of all points, in lengthscales, below which their kernel values are told apart by rounding alone.
NARROW = 0.1
#: Ratio of the largest to the smallest variance of the points above which no jitter is right for both.
UNEQUAL = 1e6
#: Smallest eigenvalue, as a share of the largest, below which it is no rounding error.
NEGATIVE = {torch.float32: -1e-4, torch.float64: -1e-10}

_TAG = "(input is not positive-definite)"


def explained(
    error: NotPositiveDefiniteError, covariance: Covariance, points: Tensor, what: str
) -> NotPositiveDefiniteError:
    """Return the error of a factor with its cause: parameters, points, or precision.

    :param points: ``(..., N, D)``, whose covariance has no factor.
    :param what: what they are, "inputs" or "inducing points".
    """
    fault = error.fault
    if fault is None:
        return error
    points = points.detach()
    cause, remedy = _cause(fault, covariance, points, what)
    kind = str(fault.matrix.dtype).removeprefix("torch.")
    facts = "; ".join([f"{points.shape[-2]} {what} in {kind}", *_figures(covariance, points)])
    return NotPositiveDefiniteError(
        f"the covariance of {fault.name!r} ({facts}) has no Cholesky factor {_TAG}, since {cause}: {remedy}"
    )


def _cause(fault: Fault, covariance: Covariance, points: Tensor, what: str) -> tuple[str, str]:
    if not _is_finite(fault.matrix):
        return _not_finite(covariance, points, what)
    diagonal = fault.matrix.diagonal(dim1=-2, dim2=-1)
    if not bool(diagonal.any(-1).all()):
        if any(name == "variance" and not bool(value.any()) for name, value in _parameters(covariance)):
            return "the variance of its kernel is 0", "build the model anew and lower the learning rate"
        return (
            f"the kernel is zero at all {what}",
            f"move the {what} away from where the kernel is zero (the origin, for Linear), or add Constant() to the kernel",
        )
    if fault.is_given and not bool(diagonal.all()):
        where = tuple(torch.nonzero(diagonal == 0)[0].tolist())[-1]
        return f"the kernel is zero at row {where} of the {what}", "leave jitter out, or add White() to the kernel"
    pair = _coinciding(points)
    if fault.is_given and pair is not None:
        return f"rows {pair[0]} and {pair[1]} of the {what} coincide", "leave jitter out, or drop one of them"
    spread = _spread(covariance, points)
    if spread is not None and spread < NARROW:
        return f"the {what} span only {spread:.1g} lengthscales", "scale the inputs with Standardizer"
    if bool((diagonal.amax(-1) > UNEQUAL * diagonal.amin(-1)).any()):
        return (
            f"the variances of the {what} lie between {float(diagonal.min()):.1e} and {float(diagonal.max()):.1e}",
            "scale the inputs with Standardizer",
        )
    values = torch.linalg.eigvalsh(fault.matrix.double())
    if bool((values[..., 0] < NEGATIVE[fault.matrix.dtype] * values[..., -1]).any()):
        return (
            f"its smallest eigenvalue is {float(values.min()):.2g} and its largest {float(values.max()):.2g}, so that the kernel is no covariance "
            "function",
            "take a kernel that is positive definite",
        )
    if fault.is_given:
        return f"jitter {fault.jitter:.0e} is smaller than rounding", "leave jitter out, or give a larger number"
    if fault.matrix.dtype != torch.float64:
        return f"rounding is larger than jitter {fault.jitter:.0e}", "use float64"
    return f"jitter {fault.jitter:.0e} is not enough", "give GaussianProcess(..., jitter=...) a larger number"


def _not_finite(covariance: Covariance, points: Tensor, what: str) -> tuple[str, str]:
    bad = next((name for name, value in _parameters(covariance) if not _is_finite(value)), None)
    if bad is not None:
        return f"the {bad} of its kernel holds NaN or infinity", "build the model anew and lower the learning rate"
    if not _is_finite(points):
        remedy = "build the model anew and lower the learning rate" if what != "inputs" else "drop or fill such rows"
        return f"its {what} hold NaN or infinity", remedy
    return f"its kernel is NaN or infinite at finite {what} and parameters", "scale the inputs with Standardizer"


def _figures(covariance: Covariance, points: Tensor) -> Iterator[str]:
    """Yield the parameters of the kernel, and the range of the points."""
    for name, value in _parameters(covariance):
        low, high = float(value.min()), float(value.max())
        yield f"{name} {low:.3g}" + ("" if low == high else f" to {high:.3g}")
    spread = _spread(covariance, points)
    if spread is not None and _is_finite(points):
        yield f"range {spread:.3g} lengthscales"


def _parameters(covariance: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a covariance function by name, those of its parts among them."""
    if isinstance(covariance, tuple):
        for part in covariance:
            yield from _parameters(part)
    elif is_dataclass(covariance):
        for item in fields(covariance):
            value = getattr(covariance, item.name)
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                is_scale = item.name == "reciprocal"
                yield ("lengthscale", 1 / value.detach()) if is_scale else (item.name, value.detach())
            else:
                yield from _parameters(value)


def _spread(covariance: Covariance, points: Tensor) -> float | None:
    """Return the largest range of the points in one dimension, in lengthscales; nothing for kernels without."""
    if not isinstance(covariance, StationaryCovariance):
        return None
    mapped = covariance.warp(points).detach()
    return float((mapped.amax(-2) - mapped.amin(-2)).max())


def _coinciding(points: Tensor) -> tuple[int, int] | None:
    rows = points.reshape(-1, *points.shape[-2:])
    same = (rows.unsqueeze(-2) == rows.unsqueeze(-3)).all(-1).any(0).triu(1)
    found = torch.nonzero(same)
    return (int(found[0, 0]), int(found[0, 1])) if len(found) else None


def _is_finite(values: Tensor) -> bool:
    return bool(torch.isfinite(values).all())
