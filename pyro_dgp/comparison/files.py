"""The files of a comparison: the table, and for each method its ArviZ file and the curves of the figure."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
Curves = dict[str, np.ndarray]

#: The table of results.
TABLE = "results.json"


def finished_rows(
    output: Path, config: Mapping[str, Any], inferences: Mapping[str, str], *, allows: Callable[[Row, str], bool]
) -> list[Row]:
    """Rows of the methods whose files are all there.

    :param inferences: fingerprints of the inferences that were made by hand, by method.
    :param allows: tells whether a row may have another value of a setting.
    :raises ValueError: if the table was made with other settings, or by another inference under one of the names, or is no table of
        results.
    """
    path = output / TABLE
    if not path.exists():
        return []
    try:
        rows: list[Row] = json.loads(path.read_text())
        changed = [name for row in rows if inferences.get(name := row["method"]) not in (None, row.get("inference"))]
        different = [
            f"{key} {row['config'].get(key)!r} in {row['method']}, now {config.get(key)!r}"
            for row in rows
            for key in sorted({*config, *row["config"]}, key=list({**config, **row["config"]}).index)
            if row["config"].get(key) != config.get(key) and not allows(row, key)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} is not a result of this program ({error}): name another --output") from error
    if different:
        raise ValueError(
            f"the results in {str(output)!r} were made with other settings ({different[0]}): "
            "repeat those, or name another --output"
        )
    if changed:
        raise ValueError(
            f"the results of {changed[0]!r} in {str(output)!r} were made by another inference: give this one another name, or name "
            "another --output"
        )
    return [row for row in rows if all((output / f"{row['method']}.{end}").exists() for end in ("nc", "npz"))]


def make_folder(output: Path) -> None:
    """Make a folder that can be written to.

    :raises ValueError: one sentence if that fails.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the folder {str(output)!r} cannot be made ({error.strerror}): name another --output"
        ) from error
    if not os.access(output, os.W_OK):
        raise ValueError(f"the folder {str(output)!r} cannot be written to: name another --output")


def write_table(output: Path, rows: list[Row]) -> None:
    """Write the table of results."""
    text = json.dumps(rows, indent=2) + "\n"
    atomically(output / TABLE, lambda path: path.write_text(text))


def read_curves(output: Path, method: str) -> Curves:
    """The curves of one method."""
    with np.load(output / f"{method}.npz", allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under another name, and rename it when it is whole."""
    temporary = path.with_name(f".{path.name}")
    write(temporary)
    temporary.replace(path)


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Arrays as ``.npz``, whatever the file is called."""
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
