"""Data sets of a textbook, An Introduction to Statistical Learning (James, Witten, Hastie, Tibshirani and Taylor 2023), from its package ``ISLP``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.reading import load

#: Share of the rows that are test rows of a split, splits, and the seed of these.
TEST_SHARE, SPLITS, SEED = 0.3, 5, 20


@dataclass(frozen=True)
class Table:
    """A table of the package.

    :ivar file: its name there, without the ending.
    :ivar target: the column to predict.
    :ivar left_out: columns that name a row, are constant, or tell the target.
    """

    file: str
    target: str
    _: KW_ONLY
    left_out: Sequence[str] = ()


#: Tables by the name of the data set: fuel use of cars, sales of car seats in 400 simulated shops, graduation rates of colleges, and wages.
TEXTBOOK = {
    "isl-auto": Table("Auto", "mpg", left_out=("name",)),
    "isl-carseats": Table("Carseats", "Sales"),
    "isl-college": Table("College", "Grad.Rate"),
    "isl-wage": Table("Wage", "wage", left_out=("logwage", "region")),
}


def textbook(name: str) -> Dataset:
    """Read a data set of the textbook, with random splits of which three tenths of the rows are test rows.

    :raises ModuleNotFoundError: where the package is not installed.
    """
    import pandas as pd

    found = find_spec("ISLP")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            f"{name} is a data set of the package ISLP: install it with pip install --no-deps ISLP, or leave the set out"
        )
    wanted = TEXTBOOK[name]
    table = pd.read_csv(Path(found.origin).parent / "data" / f"{wanted.file}.csv").drop(columns=list(wanted.left_out))
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.csv"
        table.to_csv(path, index=False)
        data = load(path, target=wanted.target, task="regression")
    rows, random = len(data.x), np.random.RandomState(SEED)
    splits = np.zeros((rows, SPLITS), dtype=bool)
    for k in range(SPLITS):
        splits[random.permutation(rows)[: round(TEST_SHARE * rows)], k] = True
    return replace(data, splits=splits)
