"""Exceptions as text."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """An exception in one line: its kind, and the first line of its message if it has one."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def shown(name: str) -> str:
    """Return a name from a file as a sentence can hold it: on one line, and not longer than one."""
    name = name if name.isprintable() else repr(name)
    return name if len(name) <= 80 else f"{name[:77]}..."
