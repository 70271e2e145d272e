"""Values behind the global names that a function reads, as far as they are the user's own."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

#: Packages whose own classes and functions are named in a fingerprint, not looked into.
LIBRARIES = ("builtins", "collections", "functools", "numpy", "pyro", "pyro_dgp", "torch", "typing")

#: Instructions that read a global name, and those that read an attribute of what was read before.
_READS, _ATTRIBUTES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"), ("LOAD_ATTR", "LOAD_METHOD")
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

    The names of a value of a module of the user's own have a point, ``settings.width``. Classes and functions that are installed stand as words where
    they have another name here, or are no part of :data:`LIBRARIES`; where not they are left out, as are modules and names without a value. Nothing is read of
    a function that is installed.
    """
    if is_installed(function):
        return {}
    found: dict[str, Any] = {}
    for path in set(_paths(function.__code__)):
        held: Any = function.__globals__
        for at, name in enumerate(path):
            inside = held if at == 0 else vars(held)
            if name not in inside:
                break
            held = inside[name]
            if not isinstance(held, ModuleType):
                if (value := _plain(held, name)) is not None:
                    found[".".join(path[: at + 1])] = value
                break
            if _is_installed_module(held):
                break
    return dict(sorted(found.items()))


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


def _paths(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Iterate over the global names that code reads, each with the attributes that are read of it at once."""
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _READS:
            if path:
                yield path
            path = (str(instruction.argval),)
        elif instruction.opname in _ATTRIBUTES and path:
            path = (*path, str(instruction.argval))
        elif instruction.opname != "CACHE" and path:
            yield path
            path = ()
    if path:
        yield path
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _paths(constant)
