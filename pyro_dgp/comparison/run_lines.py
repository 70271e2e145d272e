"""The file of a sweep: a line of JSON for each run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyro_dgp.comparison.files import Row
from pyro_dgp.internal.errors import first_line, shown
from pyro_dgp.internal.untrusted_files import UnreadableError, require_plain, why
from pyro_dgp.internal.whole_file import write_whole
from pyro_dgp.zoo.settings import Settings

#: Version of the lines; those of a later one are refused.
VERSION = 1

#: Scores that are averaged, which are numbers where a run has them, and times, which every run has.
_SCORES, _TIMES = ("nll", "rmse", "crps", "accuracy", "brier", "ece"), ("seconds", "total_seconds")


def name_of(row: Row) -> tuple[Any, ...]:
    """Return what tells a run from the others of a sweep."""
    return row["dataset"], row["method"], row["split"], row["seed"]


def require_folder(path: Path) -> None:
    """Raise ``ValueError`` where a file of runs cannot be made."""
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {str(path.parent)!r}: make it, or name another --output")


def read_lines(path: Path) -> dict[tuple[Any, ...], Row]:
    """Return the rows of the runs that a file holds. A last line that was cut off is removed from it.

    :raises ValueError: for a file of anything else, which is left as it is.
    """
    try:
        text = _content(path)
        lines = text.split(b"\n")
        rows = [_checked(number, line) for number, line in enumerate(lines[:-1], start=1)]
        if lines[-1] and not (rows or lines[-1].startswith(b'{"')):
            raise UnreadableError("line 1 is no run")
    except UnreadableError as error:
        raise ValueError(f"{str(path)!r} is no file of a sweep ({error}): name another --output") from error
    if lines[-1]:
        whole = text[: len(text) - len(lines[-1])]
        write_whole(path, lambda part: part.write_bytes(whole))
    return {name_of(row): row for row in rows if "error" not in row}


def _content(path: Path) -> bytes:
    """Return what the file holds; nothing where there is no file."""
    try:
        path.lstat()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UnreadableError(why(error)) from error
    require_plain(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableError(why(error)) from error


def _checked(number: int, line: bytes) -> Row:
    """Return the row of a line.

    :raises UnreadableError: with what is wrong with it.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"line {number} is no JSON: {first_line(error)}") from error
    if not isinstance(row, dict) or not isinstance(row.get("settings"), dict):
        raise UnreadableError(f"line {number} is no run")
    version = row.get("version", VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise UnreadableError(f"line {number} is of version {version!r:.20}, and this program reads up to {VERSION}")
    words = [name for name in ("dataset", "method") if not isinstance(row.get(name), str)]
    numbers = [name for name in ("split", "seed") if not isinstance(row.get(name), int)]
    scores = [name for name in _SCORES if name in row and not isinstance(row[name], int | float)]
    needed = () if "error" in row else ("nll", *_TIMES)
    missing = [name for name in needed if not isinstance(row.get(name), int | float)]
    if wrong := [*words, *numbers, *scores, *missing]:
        raise UnreadableError(f"{wrong[0]!r} is missing in line {number}, or of another kind")
    row["settings"] = asdict(Settings()) | row["settings"]  # a setting that is newer than the file had its default
    return row


def append_line(path: Path, row: Row) -> None:
    """Add the row of a run, and bring it to the disk.

    :raises OSError: one sentence if that fails; the lines before stay as they are.
    """
    before = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, before)
        name = f"{row['method']} on {shown(row['dataset'])}"
        raise OSError(
            f"the run of {name} cannot be written to {str(path)!r} ({why(error)}): make room, and repeat the command, which goes on after the "
            "runs before it"
        ) from error


def require_same(path: Path, rows: dict[tuple[Any, ...], Row], keys: Sequence[Row], configs: Sequence[Row]) -> None:
    """Raise ``ValueError`` for a run that the file holds with other settings or data.

    :param keys: names and numbers of the runs that are asked for.
    :param configs: what a run under the same key must share with it.
    """
    for key, config in zip(keys, configs, strict=True):
        row = rows.get(name_of(key))
        other = [] if row is None else [name for name, value in config.items() if row.get(name) != value]
        if row is not None and other:
            name = f"{key['method']} on {shown(key['dataset'])} (split {key['split']}, seed {key['seed']})"
            raise ValueError(
                f"{str(path)!r} holds the run of {name} with {_difference(other[0], row, config)}: repeat that, or name another --output"
            )


def _difference(name: str, row: Row, config: Row) -> str:
    if name != "settings":
        return f"other {name}"
    then, now = row["settings"], config["settings"]
    field = next(each for each in {**now, **then} if then.get(each) != now.get(each))
    return f"{field} {then.get(field)!r}, now {now.get(field)!r}"
