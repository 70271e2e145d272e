"""Checks that data are tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor


def require_tensor(value: Any, what: str, name: str = "x") -> None:
    """Raise ``TypeError`` for data that are no tensor, such as an array of NumPy or a column of pandas.

    :param what: the beginning of the sentence, such as ``"targets are"``.
    :param name: what the data are called in code.
    """
    if isinstance(value, Tensor):
        return
    of_pandas, kind = hasattr(value, "to_numpy"), type(value).__name__
    if of_pandas and not all(
        _is_numeric(dtype) for dtype in (getattr(value, "dtypes", ()) if value.ndim > 1 else [value.dtype])
    ):
        remedy = "give each word a number, and dates as days, " if value.ndim > 1 or not _first_of(value, str) else ""
        made = f"tensor({name}.to_numpy())" if remedy else f"as_tensor(pandas.factorize({name})[0])"
        raise TypeError(f"{what} a tensor, not {kind} of words or dates: {remedy}use torch.{made}")
    if _first_of(value, str):
        raise TypeError(
            f"{what} a tensor, not words: number these, torch.as_tensor(pandas.factorize(pandas.Series({name}))[0])"
        )
    made = f"tensor({name}.to_numpy())" if of_pandas else f"as_tensor({name})"
    raise TypeError(f"{what} a tensor, not {kind}: use torch.{made}")


def require_floats(value: Tensor, name: str = "x") -> None:
    """Raise ``TypeError`` for a tensor of whole numbers or truth values, where real numbers are wanted."""
    if not value.is_floating_point():
        kind = str(value.dtype).removeprefix("torch.")
        raise TypeError(f"{name} is {kind}: pass floats, {name}.float()")


def require_tensors_among(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for arrays and columns of other libraries and for lists of numbers or words in the place of inputs or targets, the first two arguments of a model.

    Whatever else a model takes there, such as ``None`` or a list of tensors, is its own affair.
    """
    given = dict(zip(("x", "y"), args, strict=False))
    for name, what in (("x", "training inputs are"), ("y", "targets are")):
        value = kwargs.get(name, given.get(name))
        if name == "y" and name not in kwargs and len(args) > 2 and _first_of(value, str):
            continue  # names of the rows, before the targets
        if _is_array(value) or _first_of(value, Real | str):
            require_tensor(value, what, name)


def _is_array(value: Any) -> bool:
    """Tell whether a value is an array of another library, or a column or a table of pandas."""
    return hasattr(value, "__array__") and not isinstance(value, Tensor) and getattr(value, "ndim", 0) > 0


def _is_numeric(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "fiubc"


def _first_of(value: Any, kind: Any) -> bool:
    """Tell whether a value is an array, a list or a tuple whose first entry is of a kind, or that of its first entry, and so on."""
    is_nested = False
    while isinstance(value, list | tuple) or _is_array(value):
        values = np.asarray(value, dtype=object) if _is_array(value) else value
        if not len(values):
            return False
        value, is_nested = values[0], True
    return is_nested and isinstance(value, kind)


def are_same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal, tensors and lists of them to the last bit, on whatever device they are."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.shape == other.shape and one.dtype == other.dtype
        return same and torch.equal(one.to(other.device), other)
    if type(one) is not type(other):
        return False
    if type(one) is list:
        return len(one) == len(other) and all(map(are_same, one, other))
    return bool(one == other)
