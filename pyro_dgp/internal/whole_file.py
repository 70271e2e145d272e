"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Beginning of the names of files that are not whole yet.
_PART = ".part-"
#: Characters of a file's name that the name of its unfinished form has, so that a long name stays one that can be written.
_MOST_CHARACTERS = 40


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under another name in the same folder, bring it to the disk, and give it its name when it is whole.

    What was there before stays until then, and stays if writing fails or is interrupted.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from pyro_dgp.internal.whole_file import write_whole
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a.txt"), lambda path: path.write_text("whole"))
    ...     [path.name for path in Path(folder).iterdir()]
    ['a.txt']

    :param path: the file.
    :param write: writes a file of the name that it is given, which has the ending of ``path``.
    :raises OSError: where the file cannot be written, on a full disk or in a folder that is gone.
    """
    part = path.with_name(f"{_PART}{os.getpid()}-{path.stem[:_MOST_CHARACTERS]}{path.suffix[:_MOST_CHARACTERS]}")
    try:
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        _remove(part)


def write_text(path: Path, text: str) -> None:
    """Write a file of words, in UTF-8, whole or not at all."""
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def remove_parts(folder: Path) -> None:
    """Remove what a killed run left of files that it had not finished."""
    for part in folder.glob(f"{_PART}*"):
        _remove(part)


def _remove(part: Path) -> None:
    """Remove an unfinished file, if there is one; a folder that is gone or cannot be written to has no say in what went wrong before."""
    try:
        part.unlink(missing_ok=True)
    except OSError:
        return
