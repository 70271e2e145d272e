"""Checks that data are tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor


def require_tensor(value: Any, what: str, name: str = "x") -> None:
    """Raise ``TypeError`` for data that are no tensor, such as an array of NumPy.

    :param what: the beginning of the sentence, such as ``"targets are"``.
    :param name: what the data are called in code.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} a tensor, not {type(value).__name__}: use torch.as_tensor({name})")


def require_floats(value: Tensor, name: str = "x") -> None:
    """Raise ``TypeError`` for a tensor of whole numbers or truth values, where real numbers are wanted."""
    if not value.is_floating_point():
        kind = str(value.dtype).removeprefix("torch.")
        raise TypeError(f"{name} is {kind}: pass floats, {name}.float()")


def require_tensors_among(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for arrays of NumPy and lists of numbers in the place of inputs or targets, the first two arguments of a model.

    Whatever else a model takes there, such as ``None`` or a list of tensors, is its own affair.
    """
    given = dict(zip(("x", "y"), args, strict=False))
    for name, what in (("x", "training inputs are"), ("y", "targets are")):
        value = given.get(name, kwargs.get(name))
        if isinstance(value, np.ndarray) or _is_of_numbers(value):
            require_tensor(value, what, name)


def _is_of_numbers(value: Any) -> bool:
    """Tell whether a value is a list or tuple of numbers, or of such lists."""
    while isinstance(value, list | tuple) and value and not isinstance(value[0], Real):
        value = value[0]
    return isinstance(value, list | tuple) and bool(value)
