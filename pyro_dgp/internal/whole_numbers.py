"""Numbers of things, as arguments."""

from __future__ import annotations

from typing import Any


def whole_number(name: str, value: Any, least: int) -> int:
    """Return an argument that is a whole number; raise for anything else, and for one that is too small.

    :param name: of the argument, for the message.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name} is a whole number, {least} or more, got {value!r}")
    return int(value)
