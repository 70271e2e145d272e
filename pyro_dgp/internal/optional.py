"""Packages that few calls need: they come with an extra and are imported when they are used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def optional(module: str, *, extra: str, what: str) -> Any:
    """Import a module of an optional dependency.

    :param module: its full name, ``"matplotlib.figure"``.
    :param extra: the extra of this package that installs it.
    :param what: the work that needs it, as the subject of a sentence: ``"reading CSV"``.
    :raises ImportError: if the package is not installed, with the command that installs it. An installed package that fails to import
        raises its own error.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise _missing(package, extra, what) from error


def require(*packages: str, extra: str, what: str) -> None:
    """Raise the error of :func:`optional` for the first package that is not installed; nothing is imported."""
    for package in packages:
        if find_spec(package) is None:
            raise _missing(package, extra, what)


def _missing(package: str, extra: str, what: str) -> ImportError:
    return ImportError(f"{what} needs {package}: pip install 'pyro-dgp[{extra}]'", name=package)
