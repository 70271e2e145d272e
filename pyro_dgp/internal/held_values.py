"""Values that modules hold besides their parameters, buffers and parts: numbers, tensors, and containers of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Size, Tensor, nn

#: Types that are compared by value: whether a module trains, a jitter, a number of samples.
PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, tuple, dict, Size)
#: What torch itself keeps on a module, but for whether it trains.
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}
#: Entries of a container, and numbers of an array, that are looked at, at most; a larger one is compared by identity.
_MOST = 1000

#: A module's place among all, and the name of an attribute.
Place = tuple[int, str]


class SameObject:
    """Object that is compared by identity, and a tensor by its version too, which each change in place raises. It is kept, so that no other takes its place in memory."""

    __slots__ = ("held", "version")

    def __init__(self, held: Any) -> None:
        self.held = held
        self.version = held._version if isinstance(held, Tensor) and not held.is_inference() else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and self.held is other.held and self.version == other.version

    def __hash__(self) -> int:
        return hash((id(self.held), self.version))


def held_values(modules: Iterable[nn.Module]) -> tuple[tuple[Place, Any], ...]:
    """Return the values that modules hold, in a form that can be compared and hashed; those of other types are left out."""
    held = []
    for number, module in enumerate(modules):
        for name, value in vars(module).items():
            if name in _OF_TORCH or name.startswith("_pyro"):
                continue
            kind = type(value)
            form = (kind, value) if kind in PLAIN else _form(value)
            if form is not None:
                held.append(((number, name), form))
    return tuple(held)


def _form(value: Any) -> Any:
    """Return a value in a form that can be compared; ``None`` for one of another type."""
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if isinstance(value, np.generic):
        return kind, value.item()
    if isinstance(value, Tensor):
        return SameObject(value)
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype.str, value.tobytes()) if value.size <= _MOST else SameObject(value)
    if kind not in _CONTAINERS:
        return None
    if len(value) > _MOST:
        return SameObject(value)
    if kind is dict:
        return kind, tuple([(_form(key), _form(each)) for key, each in value.items()])
    return kind, tuple([_form(each) for each in value])
