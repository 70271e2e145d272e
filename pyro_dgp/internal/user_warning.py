"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings

#: Modules whose frames are passed over: a warning points at the first line outside of them.
PASSED_OVER = ["pyro_dgp", "pyro", "torch", "contextlib", "functools"]


def warn_user(message: str) -> None:
    """Warn with the place of the innermost call that comes from outside the library, Pyro and torch.

    A level that is counted by hand would change with every function between, such as a decorator of Pyro's.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_passed_over(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def is_passed_over(module: str) -> bool:
    """Tell whether a module is the library's, Pyro's or torch's, or one that stands between functions and their wrappers."""
    return any(module == name or module.startswith(f"{name}.") for name in PASSED_OVER)
