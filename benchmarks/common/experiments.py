"""Named methods over data sets and splits: runs that can be resumed, with tables and a figure at the end.

Each run is one line of JSON in a file. The same command, given again, makes only the runs that the file lacks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pandas as pd
import torch

from benchmarks.common.data import add_data_option, read_data, require_data
from benchmarks.common.records import Record, append, read
from benchmarks.common.score_tables import SCORES, draw_scores, means, paired, ranks
from pyro_dgp.comparison.sweep import Run
from pyro_dgp.data.splitting import split
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class Experiment:
    """Methods over data sets.

    :param methods: settings by name of the method.
    :param splits: number of splits by data set.
    :param keep_beta: whether the beta that was found on split 0 is used on the other splits.
    :param differences: pairs of methods whose differences in NLL are reported.
    :param recipes: model and inference by name of the method; the zoo's own if not given.
    """

    methods: dict[str, Settings]
    splits: dict[str, int]
    keep_beta: bool = True
    differences: tuple[tuple[str, str], ...] = ()
    recipes: Mapping[str, Method] = field(default_factory=lambda: METHODS)

    def runs(self) -> list[tuple[str, str, int]]:
        """Data set, method and split of every run: all runs of one split, then those of the next."""
        most = max(self.splits.values())
        return [(d, m, k) for k in range(most) for d, count in self.splits.items() if k < count for m in self.methods]


def run(key: Record, recipe: Method, settings: Settings, *, data: Path | None, dtype: str) -> Record:
    """Train and score one method on split ``settings.split``, with standardised targets.

    :param key: names the run: ``experiment``, ``dataset``, ``method``, ``split``.
    """
    found = Run(read_data(key["dataset"], data), recipe, settings, dtype).figures()
    settled = recipe.inference.settled(settings)
    shared = ("n_train", "n_test", "steps", "seconds")
    return {
        **key,
        "seed": settings.seed,
        **{name: found.pop(name) for name in (*SCORES, *shared)},
        "width": settings.width,
        "inducing": settings.inducing,
        "samples": settled.num_samples,
        "batch_size": settled.rows_of_step,
        **{name: value for name, value in found.items() if not name.endswith("_original")},
        "dtype": dtype,
        "settings": asdict(settings),
    }


def known_beta(rows: list[Record], key: Record) -> float | None:
    """Return the beta that split 0 of the same experiment, data set and method found, or nothing."""
    first = key | {"split": 0}
    found = [row for row in rows if all(row[name] == value for name, value in first.items())]
    return found[0].get("beta") if found else None


def report(
    name: str, experiment: Experiment, path: Path, *, figures: Path | None, methods: list[str] | None = None
) -> None:
    """Print the tables of one experiment and draw it.

    :param methods: names of the methods to report; all if not given.
    """
    found = [row for row in read(path) if row["experiment"] == name]
    rows = pd.DataFrame([row for row in found if methods is None or row["method"] in methods])
    if rows.empty:
        return
    print("means (standard errors over splits)", means(rows).to_string(), ranks(rows).to_string(), sep="\n\n")
    for first, second in experiment.differences:
        if {first, second} <= set(rows["method"]):
            print(f"\nNLL, {first} minus {second}\n" + paired(rows, first, second).to_string())
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        draw_scores(rows, figures / f"{name}.png")


def main(experiments: Mapping[str, Experiment], description: str, out: Path) -> None:
    """Command line of a study: make the runs that the file lacks, then report.

    :param out: the file of runs where ``--out`` is not given.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("experiment", choices=experiments)
    parser.add_argument("--only", help="data sets to run, with commas between; all if not given")
    parser.add_argument("--methods", help="methods to run and report, with commas between; all if not given")
    parser.add_argument("--splits", type=int, default=10**6, help="splits of each data set at most")
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    add_shared_options(parser)
    arguments = parser.parse_args()
    if not arguments.table:
        require_data(arguments)
    experiment = experiments[arguments.experiment]
    carry_out(experiment, arguments)
    chosen = arguments.methods.split(",") if arguments.methods else None
    report(arguments.experiment, experiment, arguments.out, figures=arguments.figures, methods=chosen)


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every study of accuracy."""
    add_data_option(parser)
    parser.add_argument("--figures", type=Path, help="folder for the figures")
    parser.add_argument("--steps", type=int, help="training steps, roughly; the zoo's default if not given")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64", help="of everything")


def carry_out(experiment: Experiment, arguments: argparse.Namespace) -> None:
    """Make the runs that are asked for and not in the file, unless only the tables are wanted."""
    torch.set_default_dtype(getattr(torch, arguments.dtype))
    torch.set_num_threads(arguments.threads)
    if arguments.table:
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for key in _wanted(experiment, arguments):
        rows = read(arguments.out)
        settings = _settings(experiment, arguments, key, rows)
        done = [row for row in rows if all(row[name] == value for name, value in key.items())]
        of_done = asdict(Settings()) | (done[0]["settings"] if done else {})  # a setting that is newer had its default
        if done and (of_done, done[0].get("dtype", "float64")) != (asdict(settings), arguments.dtype):
            sys.exit(f"{arguments.out} holds {key} with other settings: name another file, or remove this one")
        if done:
            continue
        recipe = experiment.recipes[key["method"]]
        row = run(key, recipe, settings, data=arguments.data, dtype=arguments.dtype)
        append(arguments.out, row)
        print(json.dumps(row), flush=True)


def _wanted(experiment: Experiment, arguments: argparse.Namespace) -> Iterator[Record]:
    """Keys of the runs that the options ask for."""
    sets = arguments.only.split(",") if arguments.only else experiment.splits
    methods = arguments.methods.split(",") if arguments.methods else experiment.methods
    for dataset, method, number in experiment.runs():
        if dataset in sets and method in methods and number < arguments.splits:
            yield {"experiment": arguments.experiment, "dataset": dataset, "method": method, "split": number}


def _settings(experiment: Experiment, arguments: argparse.Namespace, key: Record, rows: list[Record]) -> Settings:
    """Settings of one run: the experiment's, with the split, the number of steps and the beta of split 0."""
    settings = replace(experiment.methods[key["method"]], split=key["split"])
    settled = experiment.recipes[key["method"]].inference.settled(settings)
    if arguments.steps is not None:
        count = len(split(read_data(key["dataset"], arguments.data), key["split"]).x_train)
        settings = replace(settings, steps=None, epochs=max(1, round(arguments.steps * settled.rows_of_step / count)))
    if experiment.keep_beta and key["split"] > 0 and settings.beta is None:
        settings = replace(settings, beta=known_beta(rows, key))
    return settings
