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


def is_positive(constraint: Any) -> bool:
    """Tell whether a constraint is that of positive numbers, by softplus or by the exponential; copies of a module have copies of it."""
    if isinstance(constraint, type(POSITIVE)):
        return True
    return isinstance(constraint, type(constraints.positive)) and constraint.lower_bound == 0


def positive(value: float, *shape: int | None) -> Any:
    """A ``PyroParam``: a positive point estimate of the given shape, whose ``None`` entries are left out.

    A tensor as its start is refused. The type is ``Any``, so that type checkers let numbers, tensors and priors be assigned to it.
    """
    require_number(value)
    if not value > 0:
        raise ValueError(f"a parameter of a kernel starts above 0, not at {value}: give a positive number")
    sizes = [size for size in shape if size is not None]
    return PyroParam(torch.full(sizes, float(value)), constraint=POSITIVE, event_dim=len(sizes))


def per_output(kernel: Any, name: str) -> Tensor:
    """Read a scalar parameter of a kernel, ``(*h,)`` or ``(*h, E)``, with the output axis made explicit: ``(*h, E or 1)``."""
    value = _of_shape(kernel, name, (kernel.outputs,))
    return value.unsqueeze(-1) if kernel.outputs is None else value


def per_dimension(kernel: Any, name: str) -> Tensor:
    """Read a lengthscale-like parameter of a kernel with the axes of outputs and inputs explicit: ``(*h, E or 1, 1, D or 1)``."""
    value = _of_shape(kernel, name, (kernel.outputs, kernel.ard))
    if kernel.ard is None:
        value = value.unsqueeze(-1)
    if kernel.outputs is None:
        value = value.unsqueeze(-2)
    return value.unsqueeze(-2)


def _of_shape(kernel: Any, name: str, sizes: tuple[int | None, ...]) -> Tensor:
    """Read a parameter; raise unless it ends in these sizes, whose ``None`` entries are left out."""
    value: Tensor = getattr(kernel, name)
    path = f" ({kernel._pyro_name}.{name})" if kernel._pyro_name else ""
    label = f"{type(kernel).__name__}.{name}{path}"
    require_shape(value, tuple(size for size in sizes if size is not None), label)
    return value


def require_dimensions(x: Tensor, parameter: Tensor) -> None:
    """Raise unless a parameter ``(..., D or 1)`` has an entry for each dimension of the inputs, or one for all."""
    if parameter.shape[-1] not in (1, x.shape[-1]):
        raise ValueError(
            f"a kernel with ard={parameter.shape[-1]} got inputs of {x.shape[-1]} dimensions: make them equal"
        )
