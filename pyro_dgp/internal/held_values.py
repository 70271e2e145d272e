"""Values that modules hold besides their parameters, buffers and parts: numbers, tensors, and containers of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor, nn

#: Types that are compared by value: whether a module trains, a jitter, a number of samples.
PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, tuple, Size)
#: What torch itself keeps on a module, but for whether it trains.
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}
#: Entries of an attribute, with those of containers in it, and numbers of an array, that are compared, at most.
_MOST_ENTRIES, _MOST_NUMBERS = 300, 10_000

#: A module's place among all, and the name of an attribute.
Place = tuple[int, str]


class _TooLargeError(Exception):
    """Ends the reading of an attribute with too many entries."""


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


def held_values(modules: Iterable[nn.Module], given: Iterable[Tensor] = ()) -> tuple[tuple[Place, Any], ...]:
    """Return the values that modules hold, in a form that can be compared and hashed.

    Objects of other types are left out, and so are tensors that autograd has computed, from parameters, and attributes of too many entries.

    :param given: parameters and buffers, which are left out.
    """
    held = []
    known = {id(tensor) for tensor in given}
    for number, module in enumerate(modules):
        for name, value in vars(module).items():
            if name in _OF_TORCH or name.startswith("_pyro"):
                continue
            kind = type(value)
            try:
                form = (kind, value) if kind in PLAIN else _form(value, known, [_MOST_ENTRIES])
            except _TooLargeError:
                continue
            if form is not None:
                held.append(((number, name), form))
    return tuple(held)


def _form(value: Any, known: set[int], left: list[int]) -> Any:
    """Return a value in a form that can be compared; ``None`` for one of another type.

    :param known: ids of the tensors that are left out.
    :param left: number of entries that may still be looked at.
    """
    left[0] -= 1
    if left[0] < 0:
        raise _TooLargeError
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if isinstance(value, Tensor):
        return None if id(value) in known or value.grad_fn is not None else _form_of_tensor(value)
    if isinstance(value, np.ndarray | np.generic):
        is_plain = value.dtype.kind in "biufcSU" and value.size <= _MOST_NUMBERS
        return (kind, value.shape, value.dtype.str, value.tobytes()) if is_plain else SameObject(value)
    if isinstance(value, dict):
        return kind, tuple([(_form(key, known, left), _form(each, known, left)) for key, each in value.items()])
    return (kind, tuple([_form(each, known, left) for each in value])) if kind in _CONTAINERS else None


def _form_of_tensor(value: Tensor) -> Any:
    """Return the numbers of a small tensor on the processor, which ``tensor.data`` may change unseen, and any other tensor as an object."""
    is_plain = type(value) is Tensor and value.layout == torch.strided and value.device.type == "cpu"
    if not is_plain or value.numel() > _MOST_NUMBERS or value.is_quantized:
        return SameObject(value)
    numbers = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return value.shape, value.dtype, value.requires_grad, numbers.numpy().tobytes()
