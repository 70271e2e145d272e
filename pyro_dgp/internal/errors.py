"""Exceptions as text."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

#: Where this package, those installed beside it and Python's own are.
_LIBRARIES = (
    "<",  # code without a file
    f"{Path(__file__).parents[1]}{os.sep}",
    *(f"{sysconfig.get_paths()[name]}{os.sep}" for name in ("purelib", "platlib", "stdlib")),
)


def first_line(error: BaseException) -> str:
    """An exception in one line: its kind, and the first line of its message if it has one."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def place_in_own_code(error: BaseException) -> str:
    """Return the last line of a user's own file that an exception passed, as `` (model.py, line 6)``; nothing where it passed none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def shown(name: str) -> str:
    """Return a name from a file as a sentence can hold it: on one line, and not longer than one."""
    name = name if name.isprintable() else repr(name)
    return name if len(name) <= 80 else f"{name[:77]}..."
