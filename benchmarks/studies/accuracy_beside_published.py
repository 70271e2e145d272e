"""Accuracy of named methods over data sets and splits, beside published numbers.

``python -m benchmarks accuracy [--methods NAMES] [--data FOLDER] [--published FOLDER] [--json FILE] [--quick]``

Resumable: the file of ``--json`` has one JSON line a run. Without ``--data`` it runs on the data that a dependency ships (diabetes). Targets are
standardised. The splits are not those of the papers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.common import published
from benchmarks.common.data import read_data
from benchmarks.common.experiments import Experiment, add_shared_options, carry_out, report
from benchmarks.common.records import read
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings

SETS = ("energy", "yacht", "concrete", "kin8nm")
QUICK_STEPS = 100
FILE, QUICK_FILE = Path("results/accuracy.jsonl"), Path("results/accuracy-quick.jsonl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--methods", default="svgp,dsvi", help="names of the zoo, with commas between")
    parser.add_argument("--sets", help=f"files of the folder, with commas between; {','.join(SETS)} if not given")
    parser.add_argument("--splits", type=int, default=1, help="splits of each data set")
    parser.add_argument("--published", type=Path, help="folder of the papers' tables as CSV")
    parser.add_argument(
        "--json", type=Path, dest="out", help=f"a line of JSON for each run; {FILE}, with --quick {QUICK_FILE}"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps: shows that it runs, not a result")
    add_shared_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Make the runs that the file lacks and print the tables. Mistakes in the options end the program before anything is trained."""
    methods, sets, scales = _checked(arguments)
    tables = None if arguments.published is None else published.read(arguments.published)
    arguments.out = arguments.out or (QUICK_FILE if arguments.quick else FILE)
    print(f"{len(read(arguments.out))} runs in {arguments.out}")
    if arguments.quick and arguments.steps is None:
        arguments.steps = QUICK_STEPS
    experiment = Experiment(dict.fromkeys(methods, Settings()), dict.fromkeys(sets, arguments.splits), keep_beta=False)
    arguments.experiment, arguments.only, arguments.methods = "accuracy", None, ",".join(methods)
    carry_out(experiment, arguments)
    report("accuracy", experiment, arguments.out, figures=arguments.figures, methods=methods)
    if tables is None:
        print("\nno --published FOLDER: nothing to compare with")
        return
    rows = pd.DataFrame([row for row in read(arguments.out) if row["dataset"] in sets and row["method"] in methods])
    table = published.beside(rows, tables, scales)
    print("\nmeans (standard deviations over splits)\n")
    print("no published number of these" if table.empty else table.to_string(index=False))


def _checked(arguments: argparse.Namespace) -> tuple[list[str], list[str], dict[str, float]]:
    """Return methods, data sets, and the standard deviation of the targets by data set."""
    methods = _names(arguments.methods)
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise SystemExit(f"there is no method {unknown[0]!r}: 'pyro-dgp methods' lists them")
    if arguments.splits < 1:
        raise SystemExit(f"--splits must be at least 1, not {arguments.splits}")
    if arguments.data is None and arguments.sets:
        raise SystemExit("--sets names files of a folder: say which by --data FOLDER or PYRO_DGP_DATA")
    if arguments.data is None:
        print("no --data FOLDER and no PYRO_DGP_DATA: running on diabetes, which scikit-learn ships")
    sets = ["diabetes"] if arguments.data is None else _names(arguments.sets) if arguments.sets else list(SETS)
    try:
        return methods, sets, {name: float(read_data(name, arguments.data).y.std()) for name in sets}
    except ValueError as error:
        raise SystemExit(str(error)) from None


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",")]
