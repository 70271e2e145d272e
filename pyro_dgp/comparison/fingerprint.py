"""Fingerprints of functions, classes and objects, which tell a changed one under an old name."""

from __future__ import annotations

import argparse
import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from pyro.distributions import Distribution as PyroDistribution
from torch import Tensor, nn
from torch.distributions import Distribution, Transform
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import _InverseTransform
from torch.distributions.utils import lazy_property

from pyro_dgp.comparison.global_values import LIBRARIES, global_values, is_installed

#: Attributes that every module has.
_OF_TORCH = frozenset(vars(nn.Module()))

#: Attributes of distributions and of their transforms that their use sets, and that say nothing on them.
_CACHES = ("_validate_args", "_inv", "_cached_x_y")

#: Kinds of values whose words say what they are.
_WORDS = (torch.dtype, torch.device, np.dtype, np.generic, range, PurePath, Enum)

#: The address in the words for an object, which differs from process to process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(value: Any) -> str:
    """A short hash of what a value is: the code of functions and classes, the fields of records, the numbers of a model and its priors.

    It is equal for equal values in every process. Code is looked into with what it reads by global names: numbers, words, arrays, and functions and
    classes of the user's own, see :func:`~pyro_dgp.comparison.global_values.global_values`. Of an object of another kind, such as one of an installed package, its class counts
    alone. What code imports or reads from a file while it runs is not seen.
    """
    return _hashed(_Facts().of(value))


def _hashed(lines: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


class _Facts:
    """Lines of text about a value and the values that it holds, each looked into once."""

    def __init__(self, seen: dict[int, Any] | None = None) -> None:
        self._seen: dict[int, Any] = {} if seen is None else dict(seen)

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
        elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
            values = np.ascontiguousarray(np.ma.filled(value))
            yield f"{value.dtype} {value.shape} {hashlib.sha256(values.tobytes()).hexdigest()}"
        elif isinstance(value, _WORDS):
            yield repr(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, set | frozenset):
            yield from sorted(_hashed(_Facts(self._seen).of(each)) for each in value)
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
    if isinstance(value, dict):
        return [item for pair in value.items() for item in pair]
    if isinstance(value, functools._lru_cache_wrapper):
        return [value.__wrapped__]
    if isinstance(value, np.ndarray):  # of objects
        return list(value.tolist())
    return value if isinstance(value, tuple | list) else _of_object(value)


def _of_object(value: Any) -> Sequence[Any]:
    """The class and the attributes of an object of the user's own, and of plain records; nothing of other objects."""
    if is_installed(type(value)) and not isinstance(value, SimpleNamespace | argparse.Namespace):
        return []
    return [type(value), dict(sorted(getattr(value, "__dict__", {}).items()))]


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
