"""The files of a comparison: the table, and for each method its ArviZ file and the curves of the figure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pyro_dgp.export.arviz_groups import bytes_of
from pyro_dgp.internal.untrusted_files import UnreadableError, read_npz, require_plain
from pyro_dgp.internal.whole_file import write_text, write_whole

Row = dict[str, Any]
Curves = dict[str, np.ndarray]

#: The table of results.
TABLE = "results.json"

#: Bytes of a netCDF file besides its arrays.
_OVERHEAD = 1 << 16

#: Bytes of a file that are written at once where a disk cannot set them aside.
_BLOCK = 1 << 20

#: Arrays that the figure needs of a method: those of classes, or those of real numbers and counts.
_CURVES = ({"confidence", "right"}, {"observed", "coverage", "mean", "low", "high"})

#: Array of the NLL of each test row, fold by fold, nats. The files of earlier versions have none.
ROW_NLL = "row_nll"

#: Groups that the ArviZ file of every method has.
_GROUPS = ("observed_data", "constant_data")


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
    write_text(output / TABLE, json.dumps(rows, indent=2) + "\n")


def write_arviz(path: Path, data: Any) -> None:
    """Write an ArviZ object as netCDF.

    The room is set aside first: HDF5 ends the whole process where a disk becomes full while it closes a file.

    :raises OSError: where the file cannot be written.
    """

    def write(part: Path) -> None:
        _require_room(part, bytes_of(data) + _OVERHEAD)
        data.to_netcdf(str(part))

    write_whole(path, write)


def _require_room(path: Path, size: int) -> None:
    """Raise ``OSError`` where a disk has no room for a file of that size."""
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
            return
        for start in range(0, size, _BLOCK):
            file.write(bytes(min(_BLOCK, size - start)))
        file.flush()
        os.fsync(file.fileno())


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as ``.npz``."""
    write_whole(path, lambda part: _save(part, arrays))


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_curves(output: Path, method: str) -> Curves:
    """Read the curves of one method.

    :raises UnreadableError: for a file that does not hold them.
    """
    curves = read_npz(output / f"{method}.npz")
    if not any(set(curves) >= names for names in _CURVES):
        raise UnreadableError(f"it has {', '.join(curves) or 'nothing'}, and not the curves of a method")
    if wrong := [name for name, values in curves.items() if values.ndim != 1 or values.dtype.kind not in "fiub"]:
        raise UnreadableError(f"its array {wrong[0]!r} is no curve")
    return curves


def require_arviz(path: Path) -> None:
    """Raise ``UnreadableError`` for what is no ArviZ file, or one that was cut off, which its length tells; its data are not read."""
    import h5py

    require_plain(path)
    try:
        with h5py.File(path, "r") as file:
            missing = [group for group in _GROUPS if group not in file]
    except Exception as error:  # whatever HDF5 makes of bytes that are not its own
        raise UnreadableError("it is cut off, or no netCDF file") from error
    if missing:
        raise UnreadableError(f"it has no group {missing[0]!r}")
