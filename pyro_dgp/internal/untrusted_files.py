"""Files that come from outside: what is no plain file is refused, and what a file says of itself is not believed before it is checked."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from pyro_dgp.internal.errors import first_line

#: Bytes that deflate can make of one byte at most, and those that it may add to a short file.
_MOST_INFLATED, _SLACK = 1032, 65_536


class UnreadableError(ValueError):
    """A file that cannot be read; the message is the reason, without the name of the file."""


def require_plain(path: Path) -> None:
    """Raise for anything but a plain file that may be read: reading a pipe would wait for ever.

    :raises UnreadableError: with the reason, as the end of a sentence that begins with the file.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise UnreadableError(why(error)) from error
    if stat.S_ISDIR(mode):
        raise UnreadableError("it is a folder")
    if not stat.S_ISREG(mode):
        raise UnreadableError("it is a pipe or a device, and no file")
    if not os.access(path, os.R_OK):
        raise UnreadableError("it may not be read")


def why(error: OSError | ValueError) -> str:
    """Return the reason for an error of the operating system, in a few words."""
    number = getattr(error, "errno", None)
    if number == errno.ELOOP:
        return "it is a link that leads back to itself"
    if number == errno.ENAMETOOLONG:
        return "its name is too long"
    if number == errno.ENOENT:
        return "it is gone"
    return str(getattr(error, "strerror", None) or first_line(error))


def read_json(path: Path) -> Any:
    """Read a file of JSON.

    :raises UnreadableError: for anything else.
    """
    require_plain(path)
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UnreadableError(why(error)) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(first_line(error)) from error


def read_npz(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Read arrays of numbers and words from ``.npz``, in the byte order of this machine.

    Sizes are checked before anything is read: that of each array against the length of its part of the archive, that length
    against what compression can make of the bytes that are there, and the sum of all against the memory of the machine. No
    object is unpickled.

    :param names: names of arrays that are read if they are there; all if not given.
    :raises UnreadableError: for anything that is no such archive.
    """
    require_plain(path)
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            parts = {part.filename.removesuffix(".npy"): part for part in archive.infolist()}
            chosen = {name: part for name, part in parts.items() if names is None or name in names}
            _require_possible(chosen, path.stat().st_size)
            return {name: _array(archive, name, part) for name, part in chosen.items()}
    except UnreadableError:
        raise
    except Exception as error:  # whatever bytes that are no archive make of the parsers
        raise UnreadableError(first_line(error)) from error


def _require_possible(parts: dict[str, zipfile.ZipInfo], size: int) -> None:
    """Raise for parts that cannot be as long as they are said to be."""
    for name, part in parts.items():
        most = _MOST_INFLATED * part.compress_size + _SLACK if part.compress_type else part.compress_size
        if part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UnreadableError(f"the array {name!r} is compressed in a way that NumPy does not write")
        if part.compress_size > size or part.file_size > most:
            raise UnreadableError(f"the array {name!r} claims {part.file_size} bytes, which the file cannot hold")
    total = sum(part.file_size for part in parts.values())
    if total > memory():
        raise UnreadableError(f"its arrays have {total:.3g} bytes, more than the memory of this machine")


def _array(archive: zipfile.ZipFile, name: str, part: zipfile.ZipInfo) -> np.ndarray:
    """Read one array, if its header fits its length."""
    with archive.open(part) as file:
        shape, dtype, length = _header(file, name)
    if dtype.hasobject:
        raise UnreadableError(f"the array {name!r} holds objects, not numbers")
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != part.file_size - length:
        raise UnreadableError(
            f"the array {name!r} has shape {shape} of {dtype} by its header and {part.file_size - length} bytes"
        )
    with archive.open(part) as file:
        values: np.ndarray = npy.read_array(file, allow_pickle=False)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _header(file: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and type of an array, and the length of the header that says so."""
    version = npy.read_magic(file)
    if version > (3, 0):
        raise UnreadableError(
            f"the array {name!r} has format {version[0]}.{version[1]}, which is newer than this program"
        )
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype, file.tell()


def memory() -> float:
    """Return the bytes of memory of this machine; infinity where it does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
