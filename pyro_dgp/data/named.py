"""Data sets that need no file: an installed dependency ships them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.reading import load, require_file, with_task
from pyro_dgp.data.splitting import random_folds
from pyro_dgp.internal.optional import optional

#: The line of the photograph, and the distance of its points, in pixels.
LINE, STEP = 150, 2

#: Folds that the scan line is split into.
FOLDS = 4


def scan_line(line: int = LINE, step: int = STEP) -> Dataset:
    """Grey values along one line of a photograph: real data of one input whose smoothness changes from place to place.

    The photograph is ``china.jpg``, which scikit-learn ships: a pagoda and trees (rough) before a sky (smooth). The input is the position
    along the line in pixels, the target the mean of the three colours, 0 (black) to 255. Random rows are held out, a quarter
    in each of four folds: points between neighbours that are known.

    :param line: 0 (top) to 426.
    :param step: pixels between two points; 2 leaves 320 of them.
    """
    optional("PIL", extra="compare", what="reading the photograph of 'scan-line'")
    from sklearn.datasets import load_sample_image

    grey = load_sample_image("china.jpg")[line, ::step].mean(-1)
    position = step * np.arange(len(grey), dtype=float)
    return Dataset(
        "scan-line",
        position[:, None],
        grey,
        splits=random_folds(len(grey), FOLDS),
        columns=("position along the line (pixels)",),
        target="grey value",
    )


def diabetes() -> Dataset:
    """Progression of diabetes in 442 patients from 10 measurements, as scikit-learn ships it."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    return Dataset("diabetes", data.data, data.target, columns=tuple(data.feature_names), target="progression")


#: Data sets by the name that ``--data`` takes in the place of a file.
NAMED: dict[str, Callable[[], Dataset]] = {"scan-line": scan_line, "diabetes": diabetes}


def load_default() -> Dataset:
    """The data set of a comparison that names none: the scan line, with its folds."""
    return scan_line()


def load_named(name: str) -> Dataset:
    """A data set of :data:`NAMED`.

    :raises ValueError: if there is none of that name.
    """
    if name not in NAMED:
        raise ValueError(f"there is no data set {name!r}: choose from {', '.join(NAMED)}, or give a file")
    return NAMED[name]()


def find(source: str | Path, target: str | None = None, task: str | None = None) -> Dataset:
    """A data set by its name or, where no data set has that name, from a file.

    :param target: the target's column, for a table.
    :param task: kind of the target; guessed if not given.
    """
    name = str(source)
    if name not in NAMED:
        try:
            require_file(Path(source))
        except ValueError as error:
            raise ValueError(f"{error}; names of data sets are {', '.join(NAMED)}") from error
        return load(source, target, task)
    dataset = load_named(name)
    if target is not None:
        raise ValueError(f"--target names a column of a table, and {name!r} has one target: {dataset.target}")
    return dataset if task is None else with_task(dataset, task)
