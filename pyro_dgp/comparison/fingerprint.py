"""Fingerprints of functions, classes and objects, which tell a changed one under an old name."""

from __future__ import annotations

import argparse
import functools
import hashlib
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, time, timedelta, tzinfo
from enum import Enum
from numbers import Number
from operator import attrgetter, itemgetter, methodcaller
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch
from pyro.distributions import Distribution as PyroDistribution
from torch import Tensor, nn
from torch.distributions import Distribution, Transform
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import _InverseTransform
from torch.distributions.utils import lazy_property

from pyro_dgp.comparison.global_values import LIBRARIES, attributes, global_values, is_installed

#: Attributes that every module has.
_OF_TORCH = frozenset(vars(nn.Module()))

#: Attributes of distributions and of their transforms that their use sets, and that say nothing on them.
_CACHES = ("_validate_args", "_inv", "_cached_x_y")

#: Kinds of values whose words say what they are.
_WORDS = (torch.dtype, torch.device, np.dtype, np.generic, range, PurePath, Enum)

#: Kinds of values of Python's own whose words say what they are.
_PLAIN = (Number, date, time, timedelta, tzinfo)

#: Functions that are compiled, whose code cannot be looked into.
_COMPILED = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, np.ufunc)

#: The address in the words for an object, which differs from process to process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(value: Any) -> str:
    """A short hash of what a value is: the code of functions and classes, the fields of records, the numbers of a model and its priors.

    It is equal for equal values in every process. Code is looked into with what it reads by global names: numbers, words, arrays, and functions and
    classes of the user's own, see :func:`~pyro_dgp.comparison.global_values.global_values`. Compiled functions count by their names. Of an object of another kind, such as one of an installed package, its class counts
    alone, as of one that cannot be looked into. What code imports or reads from a file while it runs is not seen.
    """
    return _hashed(_Facts().of(value))


def fingerprints_of_globals(value: Any) -> dict[str, str]:
    """Fingerprints of what a function, the methods of a class, or those of an object's class read by global names, by these."""
    if isinstance(value, functools.partial):
        return fingerprints_of_globals(value.func)
    value = getattr(value, "__func__", value) if isinstance(value, MethodType) else value
    if isinstance(value, FunctionType):
        functions = [value]
    else:
        kind = value if isinstance(value, type) else type(value)
        own = [held for part in kind.__mro__ if not is_installed(part) for held in vars(part).values()]
        functions = [held for held in own if isinstance(held, FunctionType)]
    return {name: fingerprint(held) for function in functions for name, held in global_values(function).items()}


def _hashed(lines: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Line:
    """A line of text among values that are still to be looked into."""

    text: str


class _Facts:
    """Lines of text about a value and the values that it holds, each looked into once."""

    def __init__(self, seen: dict[int, tuple[int, Any]] | None = None) -> None:
        self._seen: dict[int, tuple[int, Any]] = {} if seen is None else dict(seen)

    def of(self, value: Any) -> Iterator[str]:
        """The lines about one value, however deep it is; of an object that cannot be looked into its class alone."""
        waiting = [value]
        while waiting:
            held = waiting.pop()
            if type(held) is _Line:
                yield held.text
            elif id(held) in self._seen:
                yield f"value {self._seen[id(held)][0]} again"
            else:
                lines, inside = self._looked_into(held)
                yield from lines
                waiting += reversed(inside)

    def _looked_into(self, value: Any) -> tuple[list[str], list[Any]]:
        """Return lines about a value, and lines and values that follow."""
        try:
            if value is None or isinstance(value, bool | int | float | complex | str | bytes):
                return [repr(value)], []
            self._seen[id(value)] = len(self._seen), value  # held, so that no other value takes its id
            return [type(value).__qualname__], list(self._inside(value))
        except Exception:  # whatever it is, a comparison goes on
            return [type(value).__qualname__], []

    def _inside(self, value: Any) -> Iterator[Any]:
        if isinstance(value, Tensor):
            yield from _of_tensor(value)
        elif isinstance(value, np.ndarray) and not (value.dtype.hasobject or value.dtype.kind == "T"):
            values = np.ascontiguousarray(np.ma.filled(value))
            yield _Line(f"{value.dtype} {value.shape} {hashlib.sha256(values.tobytes()).hexdigest()}")
        elif isinstance(value, _WORDS):
            yield _Line(repr(value))
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, set | frozenset):
            yield from map(_Line, sorted(_hashed(_Facts(self._seen).of(each)) for each in value))
        else:
            yield from _parts(value)

    def _class(self, kind: type) -> Iterator[Any]:
        for part in kind.__mro__:
            yield _Line(f"{part.__module__}.{part.__qualname__}" if _is_of_library(part) else part.__qualname__)
            if not _is_of_library(part):
                for name, held in sorted(vars(part).items()):
                    if not name.startswith("__") or isinstance(held, FunctionType):
                        yield _Line(name)
                        yield _behind(held)


def _behind(held: Any) -> Any:
    """The function of a method or a property of a class, and another value as it is."""
    try:
        if isinstance(held, functools.cached_property):
            return held.func
        return getattr(held, "__func__", None) or getattr(held, "fget", None) or held
    except Exception:  # whatever a stand-in for another object raises
        return held


def _of_tensor(value: Tensor) -> Iterator[Any]:
    """The kind, the shape and the numbers of a tensor, of a sparse one with their places; a tensor on no device has no numbers."""
    kind, value = f"{value.dtype} {tuple(value.shape)}", value.detach()
    if value.is_meta:
        yield _Line(kind)
    elif value.layout != torch.strided:
        sparse = value.to_sparse_coo().coalesce()
        yield from (_Line(kind), sparse.indices(), sparse.values())
    else:
        real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        numbers = real.cpu().double().numpy()
        yield _Line(f"{kind} {hashlib.sha256(numbers.tobytes()).hexdigest()}")


def _is_of_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in LIBRARIES


def _parts(value: Any) -> Sequence[Any]:
    """The values that make a value what it is; nothing for an object of an unknown kind."""
    if isinstance(value, nn.Module):
        words = _ADDRESS.sub("", repr(value))
        return [type(value), words, dict(value.state_dict()), *map(_of_module, value.modules())]
    if isinstance(value, Distribution | PyroDistribution):
        return [type(value), _of_distribution(value)]
    if isinstance(value, Transform | Constraint):
        made_of = {name: held for name, held in sorted(vars(value).items()) if name not in _CACHES}
        return [type(value), made_of, value._inv if isinstance(value, _InverseTransform) else None]
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
            *([read] if (read := global_values(value)) else []),
        ]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if is_dataclass(value):
        return [item for field in fields(value) for item in (field.name, getattr(value, field.name))]
    if isinstance(value, dict | MappingProxyType):
        return [item for pair in value.items() for item in pair]
    if isinstance(value, _COMPILED):
        return _of_compiled(value)
    if isinstance(value, _PLAIN) and is_installed(type(value)):
        return [repr(value)]
    if isinstance(value, re.Pattern):
        return [value.pattern, value.flags]
    if isinstance(value, itemgetter | attrgetter | methodcaller):
        return [value.__reduce__()]
    if type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "to_numpy"):
        return [value.to_numpy(), *(getattr(value, name, None) for name in ("index", "columns"))]
    if isinstance(value, functools._lru_cache_wrapper):
        return [value.__wrapped__]
    if isinstance(value, np.ndarray):  # of objects
        return [value.shape, *value.ravel().tolist()]
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    if type(value) is deque:
        return [value.maxlen, *value]
    return value if isinstance(value, tuple | list) else _of_object(value)


def _of_compiled(function: Any) -> Sequence[Any]:
    """The name of a compiled function, and the object that it is a method of."""
    owner = getattr(function, "__self__", None)
    name = [getattr(function, "__module__", None), getattr(function, "__qualname__", function.__name__)]
    return name if isinstance(owner, ModuleType | type) else [*name, owner]


def _of_object(value: Any) -> Sequence[Any]:
    """The class and the attributes of an object of the user's own, and of plain records; nothing of other objects."""
    if is_installed(type(value)) and not isinstance(value, SimpleNamespace | argparse.Namespace):
        return []
    return [type(value), dict(sorted(attributes(value).items()))]


def _of_module(module: nn.Module) -> dict[str, Any]:
    """Facts of a module besides its state and its own modules: its class, its attributes, priors and constraints, and what of it is trained."""
    own = {name: held for name, held in vars(module).items() if name not in _OF_TORCH and not name.startswith("_pyro")}
    return {
        "class": type(module),
        "attributes": dict(sorted(own.items())),
        "priors": dict(getattr(module, "_pyro_samples", {})),
        "constraints": dict(getattr(module, "_pyro_params", {})),
        "trained": [name for name, each in module.named_parameters(recurse=False) if each.requires_grad],
        "constants": {name: module._buffers[name] for name in sorted(module._non_persistent_buffers_set)},
    }


def _of_distribution(distribution: Any) -> dict[str, Any]:
    """The parameters of a distribution, and what it is made of, such as another one and transforms of it."""
    kind = type(distribution)
    try:
        parameters = {name: getattr(distribution, name) for name in sorted(distribution.arg_constraints)}
    except NotImplementedError:  # the class does not say what its parameters are
        parameters = {}
    held = {
        name: value
        for name, value in sorted(vars(distribution).items())
        if name not in (*parameters, *_CACHES) and not isinstance(getattr(kind, name, None), lazy_property)
    }
    return parameters | held


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return None
