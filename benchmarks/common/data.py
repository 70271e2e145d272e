"""The folder of data sets, which is not part of this project, as a command-line option."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.common.planted import PLANTED
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.named import load_default
from pyro_dgp.data.reading import load


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--data FOLDER``; environment variable ``PYRO_DGP_DATA`` is its default."""
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("PYRO_DGP_DATA") or None, help="folder of the data sets"
    )


def require_data(arguments: argparse.Namespace) -> None:
    """End the program with one sentence where no folder is given."""
    if arguments.data is None:
        sys.exit("say where the data sets are: --data FOLDER or PYRO_DGP_DATA")


def read_data(name: str, folder: Path | None) -> Dataset:
    """Read a planted data set, or ``NAME.npz`` of the folder; without a folder, the data that an installed dependency ships."""
    if name in PLANTED:
        return PLANTED[name]()
    return load_default() if folder is None else load(folder / f"{name}.npz")
