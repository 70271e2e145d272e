"""Types of the parameters of a class: those of ``__init__``, where an attribute of the class has the same name and another type."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

from sphinx.util.typing import stringify_annotation


def take(app: Any, what: str, name: str, value: Any, *others: Any) -> None:
    """Note the types of the parameters of a class, in the place of those that Sphinx found."""
    if inspect.isclass(value) and inspect.isfunction(value.__init__):
        hints = get_type_hints(value.__init__, include_extras=True)
        types = {key: stringify_annotation(hint, "smart") for key, hint in hints.items() if key != "return"}
        app.env.temp_data["annotations"].setdefault(name, {}).update(types)
