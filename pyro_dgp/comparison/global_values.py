"""Values behind the global names that a function reads, as far as they are the user's own."""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
from collections.abc import Mapping, MutableMapping, MutableSequence, MutableSet
from dataclasses import is_dataclass
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

from pyro_dgp.comparison.code_names import assigned_names, changed_names, read_names

#: Packages whose own classes and functions are named in a fingerprint, not looked into.
LIBRARIES = ("builtins", "collections", "functools", "numpy", "pyro", "pyro_dgp", "torch", "typing")

#: Kinds of values that a function may fill as it runs.
_CONTAINERS = (MutableMapping, MutableSequence, MutableSet)
#: Folders that installed packages lie in.
_INSTALLED = ("site-packages", "dist-packages")


def is_installed(value: Any) -> bool:
    """Tell whether a class or a function is one of this library, of Python or of an installed package; code that runs as ``__main__`` is none."""
    module = getattr(value, "__module__", None) or "builtins"
    top = module.partition(".")[0]
    if module == "__main__":
        return False
    if top in LIBRARIES or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and any(part in _INSTALLED for part in Path(file).parts)


def global_values(function: FunctionType) -> dict[str, Any]:
    """Return the values that a function, and what is defined in it, reads by global names, sorted by these.

    Names with a point, ``settings.width``, are those of a value of a module of the user's own or of a record, see :func:`is_record`. Classes and functions
    that are installed stand as words where they have another name here, or are no part of :data:`LIBRARIES`; where not they are left out, as are modules,
    names without a value, and what the function itself assigns or fills, such as a memo. Nothing is read of a function that is installed.
    """
    if is_installed(function):
        return {}
    found: dict[str, Any] = {}
    code, scope = function.__code__, function.__globals__
    changed, assigned = set(changed_names(code)), set(assigned_names(code))
    for path in {path for path in read_names(code) if path[0] not in assigned}:
        try:
            known, value = _reached(scope, path)
            is_counted = value is not None and not (known in changed and isinstance(value, _CONTAINERS))
        except Exception:  # whatever a stand-in for another object raises
            known, value, is_counted = path[:1], scope[path[0]], True
        if is_counted:
            found[".".join(known)] = value
    return dict(sorted(found.items()))


def _reached(scope: Mapping[str, Any], path: tuple[str, ...]) -> tuple[tuple[str, ...], Any]:
    """Return the value that a path leads to, as far as modules and records lead, and the part of the path that led there; nothing if it is none to count."""
    held: Any = None
    for at, name in enumerate(path):
        inside = attributes(held) if at else scope
        if at and not isinstance(held, ModuleType) and (name not in inside or _is_computed(held, name)):
            return path[:at], _plain(held, path[at - 1])
        if name not in inside:
            return path, None
        held = inside[name]
        if isinstance(held, ModuleType):
            if _is_installed_module(held):
                return path, None
        elif not is_record(held):
            return path[: at + 1], _plain(held, name)
    return path, None if isinstance(held, ModuleType) else _plain(held, path[-1])


def is_record(value: Any) -> bool:
    """Tell whether a value is one of which attributes are read one by one: a namespace, a dataclass, or an object of a class of the user's own."""
    if isinstance(value, type):
        return False
    is_plain = isinstance(value, SimpleNamespace | argparse.Namespace) or is_dataclass(value)
    return is_plain or not is_installed(type(value))


def attributes(value: Any) -> dict[str, Any]:
    """Return what an object holds under names of its own, also under those of ``__slots__``."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(member, MemberDescriptorType):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:  # it has no value yet
                    continue
    return found


def _is_computed(value: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(type(value), name, None), property)


def _plain(value: Any, name: str) -> Any:
    """Return a value as it is, an installed class or function in words, and nothing for one of the libraries that has its own name here."""
    known = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(known, str) or isinstance(value, MethodType):
        return "None" if value is None else value
    is_code = isinstance(value, type | FunctionType | functools._lru_cache_wrapper)
    if is_code and not is_installed(value):
        return value
    module = value.__module__ if is_code or isinstance(value, BuiltinFunctionType) else None
    is_known = (module or "builtins").partition(".")[0] in LIBRARIES
    return None if is_known and known == name else f"{module}.{known}"


def _is_installed_module(module: ModuleType) -> bool:
    top, file = module.__name__.partition(".")[0], getattr(module, "__file__", None)
    is_known = module.__name__ != "__main__" and (top in LIBRARIES or top in sys.stdlib_module_names)
    return is_known or file is None or any(part in _INSTALLED for part in Path(file).parts)
