"""Exceptions as text."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """An exception in one line: its kind, and the first line of its message if it has one."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
