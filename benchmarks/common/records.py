"""Files of runs: one JSON object a line, so that an interrupted study can go on where it stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read(path: Path, key: str = "experiment") -> list[Record]:
    """Read the runs of a file; a file that does not exist holds none.

    A last line that was cut off by an interruption is removed from the file. A file of anything else is refused and left as it is.

    :param key: a name that every run of this study has.
    """
    lines = path.read_text().splitlines() if path.exists() else []
    cut = bool(lines) and lines[-1].startswith("{") and not lines[-1].endswith("}")
    whole = lines[:-1] if cut else lines
    try:
        rows = [json.loads(line) for line in whole]
    except json.JSONDecodeError:
        rows = [None]
    if not all(isinstance(row, dict) and key in row for row in rows):
        sys.exit(f"{path} holds something else than runs, one JSON object a line with {key!r}: name another file")
    if cut:
        path.write_text("".join(line + "\n" for line in whole))
    return rows


def kept(path: Path, key: str = "experiment") -> list[Record]:
    """Read the runs of a file as :func:`read` does; exit with a sentence if it holds none."""
    rows = read(path, key)
    if not rows:
        sys.exit(f"{path} holds no runs: name a file of them by --out, such as benchmarks/results/{path.name}")
    return rows


def append(path: Path, row: Record) -> None:
    """Add one run to the end of a file."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def agrees(row: Record, wanted: Record) -> bool:
    """Whether a run has all of these values. A run that names no dtype was made in float64."""
    return all(row.get(name, "float64" if name == "dtype" else None) == value for name, value in wanted.items())
