"""Docstrings as Sphinx reads them: tables that are drawn with bars, which ``help()`` shows well, become tables of reStructuredText."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

RULE = re.compile(r"^\s*\|[\s:|-]+\|\s*$")


def cells(line: str) -> list[str]:
    """The cells of a row."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def table(lines: list[str]) -> list[str]:
    """A table with bars as a ``list-table``."""
    indent = re.match(r"\s*", lines[0])[0]  # type: ignore[index]
    rows = [cells(line) for line in lines if not RULE.match(line)]
    body = [f"   {'*' if number == 0 else ' '} - {cell}" for row in rows for number, cell in enumerate(row)]
    return [indent + line if line else "" for line in ["", ".. list-table::", "   :header-rows: 1", "", *body, ""]]


def with_tables(lines: list[str]) -> list[str]:
    """The lines of a docstring, its tables as ``list-table``."""
    found: list[str] = []
    for is_table, group in groupby(lines, key=lambda line: line.lstrip().startswith("|")):
        same = list(group)
        found += table(same) if is_table else same
    return found


def process(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Replace the tables of a docstring in place, as Sphinx's event asks."""
    lines[:] = with_tables(lines)
