"""Fingerprints of functions, classes and objects, which tell a changed one under an old name."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

#: Packages whose own classes are named in a fingerprint, not looked into.
_LIBRARIES = ("builtins", "collections", "functools", "numpy", "pyro", "pyro_dgp", "torch", "typing")


def fingerprint(value: Any) -> str:
    """A short hash of what a value is: the code of functions and classes, the fields of records, the numbers of a model.

    Functions that this code calls by a global name are not looked into.
    """
    return hashlib.sha256("\n".join(_Facts().of(value)).encode()).hexdigest()[:16]


class _Facts:
    """Lines of text about a value and the values that it holds, each looked into once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}

    def of(self, value: Any) -> Iterator[str]:
        """The lines about one value."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            yield repr(value)
        elif id(value) in self._seen:
            yield "seen"
        else:
            self._seen[id(value)] = value  # held, so that no other value takes its id
            yield type(value).__qualname__
            yield from self._inside(value)

    def _inside(self, value: Any) -> Iterator[str]:
        if isinstance(value, Tensor):
            numbers = value.detach().cpu().double().numpy()
            yield f"{value.dtype} {numbers.shape} {hashlib.sha256(numbers.tobytes()).hexdigest()}"
        elif isinstance(value, type):
            yield from self._class(value)
        else:
            for held in _parts(value):
                yield from self.of(held)

    def _class(self, kind: type) -> Iterator[str]:
        for part in kind.__mro__:
            yield f"{part.__module__}.{part.__qualname__}" if _is_of_library(part) else part.__qualname__
            if not _is_of_library(part):
                for name, held in sorted(vars(part).items()):
                    if not name.startswith("__") or isinstance(held, FunctionType):
                        yield name
                        yield from self.of(getattr(held, "__func__", None) or getattr(held, "fget", None) or held)


def _is_of_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _LIBRARIES


def _parts(value: Any) -> Sequence[Any]:
    """The values that make a value what it is; nothing for an object of an unknown kind."""
    if isinstance(value, nn.Module):
        return [type(value), repr(value), dict(value.state_dict())]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, FunctionType):
        return [
            value.__code__,
            value.__defaults__,
            value.__kwdefaults__,
            [_content(c) for c in value.__closure__ or ()],
        ]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if is_dataclass(value):
        return [item for field in fields(value) for item in (field.name, getattr(value, field.name))]
    if isinstance(value, dict):
        return [item for pair in value.items() for item in pair]
    return value if isinstance(value, tuple | list) else []


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return None
