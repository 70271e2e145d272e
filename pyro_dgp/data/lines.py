"""Where a row of a table stands in its file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def place(row: int, path: Path | None = None, rows: int = 0) -> str:
    """Return a row in words: its number counted from 0, and the line of its file, counted from 1, where that is known.

    It is known of a text file with a line for each row below the one line of names.

    :param path: the file of the table; ``None`` for data that are in no file.
    :param rows: number of rows of the table.
    """
    line = ""
    if path is not None and path.suffix.lower() == ".csv":
        with suppress(OSError), path.open("rb") as file:
            line = f" (line {row + 2} of the file)" if sum(1 for _ in file) == rows + 1 else ""
    return f"row {row} counted from 0{line}"
