"""Priors of hyperparameters, moved with the module that has them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Transform
from torch.distributions.transforms import _InverseTransform

#: What a transform keeps of its last call and of its inverse, which point back at it, and their values in a new transform.
_KEPT_BY_TRANSFORMS = {"_inv": None, "_cached_x_y": (None, None)}


def moved(prior: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Return a distribution whose tensors are moved to another device or type, with those of the distributions and transforms inside it.

    :param prior: the distribution, which stays as it is. What is no distribution, such as a function that makes one, is returned unchanged.
    :param move: from a tensor to the same on another device or of another type, as ``torch.nn.Module._apply`` gets it.
    """
    if not isinstance(prior, Distribution | Transform):
        return prior
    if isinstance(prior, _InverseTransform):  # it holds the transform that it inverts
        return moved(prior._inv, move).inv
    result = copy.copy(prior)
    for name, value in vars(prior).items():
        if name in _KEPT_BY_TRANSFORMS:
            result.__dict__[name] = _KEPT_BY_TRANSFORMS[name]
        elif isinstance(value, Tensor):
            result.__dict__[name] = move(value)
        elif isinstance(value, list | tuple) and any(isinstance(each, Transform) for each in value):
            result.__dict__[name] = type(value)(moved(each, move) for each in value)
        elif isinstance(value, Distribution | Transform):
            result.__dict__[name] = moved(value, move)
    return result


def tensor_of(prior: Any) -> Tensor | None:
    """Return the first tensor in a distribution; nothing where there is none."""
    seen: list[Tensor] = []

    def look(value: Tensor) -> Tensor:
        seen.append(value)
        return value

    moved(prior, look)
    return seen[0] if seen else None


def device_of(prior: Any) -> torch.device | None:
    """Return the device of the first tensor in a distribution; nothing where there is none."""
    first = tensor_of(prior)
    return None if first is None else first.device
