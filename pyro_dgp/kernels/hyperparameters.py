"""Positive parameters of kernels, and their shapes: one for all outputs and inputs, or one for each."""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Tensor

from pyro_dgp.internal.parameters import require_number, require_shape

#: Constraint of positive parameters: softplus, whose steps do not grow with the value as those of exp do.
POSITIVE = constraints.softplus_positive


def positive(value: float, *shape: int | None) -> Any:
    """A ``PyroParam``: a positive point estimate of the given shape, whose ``None`` entries are left out.

    A tensor as its start is refused. The type is ``Any``, so that type checkers let numbers, tensors and priors be assigned to it.
    """
    require_number(value)
    if not value > 0:
        raise ValueError(f"a parameter of a kernel starts above 0, not at {value}: give a positive number")
    sizes = [size for size in shape if size is not None]
    return PyroParam(torch.full(sizes, float(value)), constraint=POSITIVE, event_dim=len(sizes))


def per_output(value: Tensor, outputs: int | None) -> Tensor:
    """Return a scalar parameter, ``(*h,)`` or ``(*h, E)``, with the output axis made explicit: ``(*h, E or 1)``."""
    _require_shape(value, (outputs,))
    return value.unsqueeze(-1) if outputs is None else value


def per_dimension(value: Tensor, outputs: int | None, ard: int | None) -> Tensor:
    """Return a lengthscale-like parameter with the axes of outputs and inputs explicit: ``(*h, E or 1, 1, D or 1)``."""
    _require_shape(value, (outputs, ard))
    if ard is None:
        value = value.unsqueeze(-1)
    if outputs is None:
        value = value.unsqueeze(-2)
    return value.unsqueeze(-2)


def _require_shape(value: Tensor, sizes: tuple[int | None, ...]) -> None:
    require_shape(value, tuple(size for size in sizes if size is not None), "a kernel parameter")


def require_dimensions(x: Tensor, parameter: Tensor) -> None:
    """Raise unless a parameter ``(..., D or 1)`` has an entry for each dimension of the inputs, or one for all."""
    if parameter.shape[-1] not in (1, x.shape[-1]):
        raise ValueError(
            f"a kernel with ard={parameter.shape[-1]} got inputs of {x.shape[-1]} dimensions: make them equal"
        )
