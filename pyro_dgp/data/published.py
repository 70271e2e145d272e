"""Data sets in the formats in which they are published, from files that the user has."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_dgp.data.dataset import Dataset, check
from pyro_dgp.data.tasks import Task
from pyro_dgp.internal.errors import first_line
from pyro_dgp.internal.optional import optional
from pyro_dgp.internal.untrusted_files import UnreadableError, require_plain

#: Training rows of YearPredictionMSD: those that follow are by other artists.
YEAR_TRAINING_ROWS = 463_715
#: Inputs of the flight data (Hensman, Fusi and Lawrence 2013, section 4), as the files of the Data Expo 2009 call them.
FLIGHT_COLUMNS = ("Month", "DayofMonth", "DayOfWeek", "DepTime", "ArrTime", "AirTime", "Distance")


def load_mnist(folder: str | Path) -> Dataset:
    """Read the four files of MNIST, ``train-images-idx3-ubyte`` and so on, as they are or with ``.gz``: images, 0 to 255.

    Pixels that are the same in all training images, as those of the border, are left out; ``columns`` has the numbers of the others. The one split tests on the last 10,000 images. Sets in the same format, such as Fashion-MNIST, are read too, of any number of images.

    :raises ValueError: one sentence for a file that is missing or is no such file.
    """
    folder = Path(folder)
    parts = []
    for part in ("train", "t10k"):
        images = _idx(_one_of(folder, f"{part}-images-idx3-ubyte", f"{part}-images.idx3-ubyte"))
        digits = _idx(_one_of(folder, f"{part}-labels-idx1-ubyte", f"{part}-labels.idx1-ubyte"))
        if images.ndim != 3 or digits.shape != images.shape[:1]:
            raise ValueError(
                f"the {part} files in {str(folder)!r} have images {images.shape} and labels {digits.shape}: they must be (N, rows, columns) and (N,)"
            )
        parts.append((images.reshape(len(images), -1).astype(float), digits.astype(float)))
    differs = np.ptp(parts[0][0], axis=0) > 0
    train, test = ((images[:, differs], digits) for images, digits in parts)
    data = _joined("mnist", train, test, Task("multiclass", int(max(part[1].max() for part in parts)) + 1))
    return replace(data, columns=tuple(f"pixel {number}" for number in np.flatnonzero(differs)))


def load_rectangles(train: str | Path, test: str | Path) -> Dataset:
    """Read Rectangles-images (Larochelle et al. 2007): text files of 784 numbers and the class in each row; the one split tests on the second."""
    parts = []
    for path in map(Path, (train, test)):
        _require_file(path)
        try:
            rows = np.loadtxt(path, ndmin=2)
        except ValueError as error:
            raise ValueError(f"{path.name!r} is no table of numbers ({error}): give the .amat file") from error
        if rows.shape[1] < 2:
            raise ValueError(f"{path.name!r} has {rows.shape[1]} column: each row has the pixels and then the class")
        parts.append((rows[:, :-1], rows[:, -1]))
    return _joined("rectangles", parts[0], parts[1], Task("binary", 2))


def load_year(path: str | Path, training_rows: int = YEAR_TRAINING_ROWS) -> Dataset:
    """Read ``YearPredictionMSD.txt`` (UCI): no header, the year first, then 90 inputs. The one split tests on the rows after ``training_rows``."""
    path = Path(path)
    _require_file(path)
    pandas = optional("pandas", extra="compare", what=f"reading {path.name!r}")
    try:
        rows = pandas.read_csv(path, header=None).to_numpy(dtype=float)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{path.name!r} is no table of numbers ({error}): give the text file of the archive"
        ) from error
    if len(rows) <= training_rows:
        raise ValueError(
            f"{path.name!r} has {len(rows)} rows, no more than the {training_rows} of training: give the whole file"
        )
    return _joined(
        "year",
        (rows[:training_rows, 1:], rows[:training_rows, 0]),
        (rows[training_rows:, 1:], rows[training_rows:, 0]),
        Task(),
        target="year",
    )


def load_flights(flights: str | Path, planes: str | Path, months: int = 12) -> Dataset:
    """Read flights and planes of the Data Expo 2009, ``2008.csv`` (or ``.csv.bz2``) and ``plane-data.csv``: delays at arrival in minutes.

    The inputs are the seven columns of :data:`FLIGHT_COLUMNS` and the age of the plane in years (Hensman, Fusi and Lawrence 2013). Flights without a
    delay, such as cancelled ones, and those whose plane or an input is unknown are left out. A plane without a year of construction, with the year 0, or with one after
    that of the flight counts as unknown.

    :param months: of the year, from January; Hensman and others 2013 take 4. Papers name 5,929,413 flights of the whole year; the file was not at hand, so that
        the number that this function leaves was not compared with it.
    """
    for path in map(Path, (flights, planes)):
        _require_file(path)
    pandas = optional("pandas", extra="compare", what="reading the flights")
    columns = ["Year", *FLIGHT_COLUMNS, "TailNum", "ArrDelay"]
    try:
        table, aircraft = pandas.read_csv(flights), pandas.read_csv(planes)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(
            f"{str(flights)!r} or {str(planes)!r} is no table ({first_line(error)}): fetch it again"
        ) from error
    for name, needed, found in (("flights", columns, table), ("planes", ["tailnum", "year"], aircraft)):
        missing = [column for column in needed if column not in found.columns]
        if missing:
            raise ValueError(f"the table of {name} has no column {missing[0]!r}: give the files of the Data Expo 2009")
    table = table[table["Month"] <= months][columns]
    built = pandas.to_numeric(aircraft.set_index("tailnum")["year"], errors="coerce")
    age = table["Year"] - table["TailNum"].map(built[~built.index.duplicated() & (built > 0)])
    table["PlaneAge"] = age.where(age >= 0)
    names = (*FLIGHT_COLUMNS, "PlaneAge")
    rows = table[[*names, "ArrDelay"]].dropna().to_numpy(dtype=float)
    dataset = Dataset("flights", rows[:, :-1], rows[:, -1], columns=names, target="arrival delay (minutes)")
    check(dataset)
    return dataset


def _joined(name: str, train: Any, test: Any, task: Task, target: str = "y") -> Dataset:
    """A data set whose one split tests on the second part."""
    if train[0].shape[1] != test[0].shape[1]:
        raise ValueError(
            f"training rows of {name!r} have {train[0].shape[1]} inputs and test rows {test[0].shape[1]}: give files of one set"
        )
    x, y = (np.concatenate(pair) for pair in zip(train, test, strict=True))
    mask = np.zeros((len(x), 1), dtype=bool)
    mask[len(train[0]) :] = True
    dataset = replace(Dataset(name, x, y, splits=mask, target=target), task=task)
    check(dataset)
    return dataset


def _require_file(path: Path) -> None:
    try:
        require_plain(path)
    except UnreadableError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise ValueError(f"there is no file {str(path)!r}: check the path") from error
        raise ValueError(f"{str(path)!r} cannot be read ({error}): check the path") from error


def _one_of(folder: Path, *names: str) -> Path:
    """The first file of these names that is there, with or without ``.gz``."""
    for name in names:
        for ending in ("", ".gz"):
            if (folder / f"{name}{ending}").is_file():
                return folder / f"{name}{ending}"
    raise ValueError(
        f"there is no file {names[0]!r} in {str(folder)!r}, with or without .gz: give the folder of the four files"
    )


#: Bytes that compression can make of one byte at most.
_MOST_INFLATED = 1032

_OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open}


def _idx(path: Path) -> NDArray[np.uint8]:
    """Read an array of bytes in the idx format: two zeros, the type 8, the number of axes, their lengths in 4 bytes each, the values."""
    try:
        with _OPENERS.get(path.suffix, lambda name: name.open("rb"))(path) as file:
            head = file.read(4)
            lengths = file.read(4 * head[3]) if len(head) == 4 else b""
            shape = tuple(int.from_bytes(lengths[at : at + 4], "big") for at in range(0, len(lengths), 4))
            size = math.prod(shape) if shape else 0
            most = _MOST_INFLATED * path.stat().st_size
            content = (
                b"" if size > most else file.read(size + 1)
            )  # no more than it says: a small archive can hold very much
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path.name!r} cannot be read ({error}): fetch it again") from error
    if head[:3] != b"\x00\x00\x08" or not shape or len(content) != size:
        raise ValueError(f"{path.name!r} is no idx file of bytes, or is cut off: fetch it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
