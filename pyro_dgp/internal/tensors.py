"""A check that data are tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def require_tensor(value: Any, what: str, name: str = "x") -> None:
    """Raise ``TypeError`` for data that are no tensor, such as an array of NumPy.

    :param what: the beginning of the sentence, such as ``"targets are"``.
    :param name: what the data are called in code.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} a tensor, not {type(value).__name__}: use torch.as_tensor({name})")
