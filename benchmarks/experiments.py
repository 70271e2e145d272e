"""What the accuracy benchmarks share: named methods over data sets and splits, resumable, one JSON line a run, tables and figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pyro_dgp.data.dataset import Dataset, load, load_default, split
from pyro_dgp.prediction.scores import scores
from pyro_dgp.zoo.methods import METHODS, Method
from pyro_dgp.zoo.settings import Settings

SCORES = ("nll", "rmse", "crps")


@dataclass(frozen=True)
class Experiment:
    """Methods with their settings, the splits of each data set, and pairs of methods whose differences are reported."""

    methods: dict[str, Settings]
    splits: dict[str, int]
    keep_beta: bool = True
    differences: tuple[tuple[str, str], ...] = ()
    recipes: Mapping[str, Method] = field(default_factory=lambda: METHODS)

    def runs(self) -> list[tuple[str, str, int]]:
        """(dataset, method, split), one split after another."""
        most = max(self.splits.values())
        return [(d, m, k) for k in range(most) for d, count in self.splits.items() if k < count for m in self.methods]


def run(
    name: str, experiment: Experiment, dataset: str, method: str, settings: Settings, arguments: argparse.Namespace
) -> dict:
    """Train and score one method on split ``settings.split``; targets standardised."""
    number = settings.split
    part = split(read_data(dataset, arguments.data), number, torch.get_default_dtype())
    torch.manual_seed(settings.seed)
    recipe = experiment.recipes[method]
    model = recipe.architecture.build(part.x_train, settings)
    fitted = recipe.inference.run(model, part.x_train, part.y_train, settings, lambda *_: None)
    figures = scores(fitted.predict(part.x_test), part.y_test, part.target_scale)
    return {
        "experiment": name, "dataset": dataset, "method": method, "split": number, "seed": settings.seed,
        **{name: figures[name] for name in SCORES}, "n_train": fitted.rows, "n_test": len(part.x_test),
        "steps": fitted.steps, "seconds": fitted.seconds, "width": settings.width, "inducing": settings.inducing,
        "samples": settings.samples, "batch_size": settings.batch_size, **fitted.diagnostics,
        "dtype": arguments.dtype, "settings": asdict(settings),
    }  # fmt: skip


def known_beta(rows: list[dict], experiment: str, dataset: str, method: str) -> float | None:
    """The one that split 0 found."""
    found = [
        r for r in rows if (r["experiment"], r["dataset"], r["method"], r["split"]) == (experiment, dataset, method, 0)
    ]
    return found[0].get("beta") if found else None


def read(path: Path) -> list[dict]:
    """The runs so far; a last line that was cut off is taken away. A file of anything else is refused, and left as it is."""
    lines = path.read_text().splitlines() if path.exists() else []
    cut = bool(lines) and lines[-1].startswith("{") and not lines[-1].endswith("}")
    whole = lines[:-1] if cut else lines
    try:
        rows = [json.loads(line) for line in whole]
    except json.JSONDecodeError:
        rows = [None]
    if not all(isinstance(row, dict) and "experiment" in row for row in rows):
        sys.exit(f"{path} holds something else than runs, one JSON object a line: name another file")
    if cut:
        path.write_text("".join(line + "\n" for line in whole))
    return rows


def paired(rows: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """NLL of ``first`` minus ``second`` over splits: mean, its standard error, largest, for each set and pooled."""
    wide = rows.pivot_table(index=["dataset", "split"], columns="method", values="nll")[[first, second]].dropna()
    difference = wide[first] - wide[second]
    groups = difference.groupby(level="dataset")
    table = pd.DataFrame({"pairs": groups.size(), "mean": groups.mean(), "sem": groups.sem(), "largest": groups.max()})
    table.loc["pooled"] = [len(difference), difference.mean(), difference.sem(), difference.max()]
    return table.round(3)


def means(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean of each score over splits with its standard error, as text."""
    groups = rows.groupby(["dataset", "method"])[list(SCORES)]
    mean, sem = groups.mean(), groups.sem()
    return mean.map("{:.3f}".format) + sem.map(lambda v: "" if np.isnan(v) else f" ({v:.3f})")


def ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Average rank of each method over the (data set, split) pairs that all methods have run, 1 is best."""
    columns = {}
    for score in SCORES:
        wide = rows.pivot_table(index=["dataset", "split"], columns="method", values=score).dropna()
        columns[f"rank of {score.upper()}"] = wide.rank(axis=1).mean()
    return pd.DataFrame(columns).assign(pairs=len(wide)).round(2)


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Scores of each method on each data set, with standard errors."""
    datasets, methods = list(dict.fromkeys(rows["dataset"])), list(dict.fromkeys(rows["method"]))
    figure = Figure(figsize=(2.0 * len(datasets), 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(SCORES), len(datasets), squeeze=False)
    for column, dataset in enumerate(datasets):
        for line, score in enumerate(SCORES):
            axis = axes[line, column]
            for position, name in enumerate(methods):
                values = rows[(rows["dataset"] == dataset) & (rows["method"] == name)][score]
                error = values.sem() if len(values) > 1 else 0.0
                axis.errorbar(position, values.mean(), error, fmt="o", color=f"C{position}", capsize=3, ms=4)
            axis.set_xticks(
                range(len(methods)), methods if line == len(SCORES) - 1 else [], rotation=60, ha="right", fontsize=7
            )
            axis.tick_params(axis="y", labelsize=7)
            axis.set_xlim(-0.6, len(methods) - 0.4)
            if line == 0:
                count = rows.query("dataset == @dataset")["split"].nunique()
                axis.set_title(f"{dataset}\n{count} split{'s' * (count > 1)}", fontsize=9)
            if column == 0:
                axis.set_ylabel(f"test {score.upper()}")
    figure.suptitle("standardised targets, lower is better;\nbars are standard errors over splits", fontsize=8)
    figure.savefig(path, dpi=120)


def report(
    name: str, experiment: Experiment, path: Path, figures: Path | None, methods: list[str] | None = None
) -> None:
    """Print the tables of one experiment, of some of its methods or all, and draw it."""
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
        draw(rows, figures / f"{name}.png")


def main(experiments: Mapping[str, Experiment], description: str) -> None:
    """Run what the file lacks, then report."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("experiment", choices=experiments)
    parser.add_argument("--only", help="data sets to run, with commas between; all if not given")
    parser.add_argument("--methods", help="methods to run and report, with commas between; all if not given")
    parser.add_argument("--splits", type=int, default=10**6, help="splits of each data set at most")
    parser.add_argument("--out", type=Path, default=Path("results/runs.jsonl"))
    add_shared(parser)
    arguments = parser.parse_args()
    if not arguments.table and arguments.data is None:
        sys.exit("say where the data sets are: --data FOLDER or PYRO_DGP_DATA")
    carry_out(experiments[arguments.experiment], arguments)
    chosen = arguments.methods.split(",") if arguments.methods else None
    report(arguments.experiment, experiments[arguments.experiment], arguments.out, arguments.figures, chosen)


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Options of every accuracy benchmark."""
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("PYRO_DGP_DATA") or None, help="folder of the data sets"
    )
    parser.add_argument("--figures", type=Path, help="folder for the figures")
    parser.add_argument("--steps", type=int, help="training steps about; the zoo's default if not given")
    parser.add_argument("--table", action="store_true", help="run nothing, report what there is")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64", help="of everything")


def carry_out(experiment: Experiment, arguments: argparse.Namespace) -> None:
    """Run what the file lacks, unless only the tables are wanted."""
    torch.set_default_dtype(getattr(torch, arguments.dtype))
    torch.set_num_threads(arguments.threads)
    if not arguments.table:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        go(experiment, arguments)


def read_data(name: str, folder: Path | None) -> Dataset:
    """``NAME.npz`` of the folder; without one the data that an installed dependency ships."""
    return load_default() if folder is None else load(folder / f"{name}.npz")


def go(experiment: Experiment, arguments: argparse.Namespace) -> None:
    """All runs that are asked for and not in the file."""
    name = arguments.experiment
    for dataset, method, number in experiment.runs():
        wanted = not arguments.only or dataset in arguments.only.split(",")
        chosen = not arguments.methods or method in arguments.methods.split(",")
        rows = read(arguments.out)
        key = {"experiment": name, "dataset": dataset, "method": method, "split": number}
        if not wanted or not chosen or number >= arguments.splits:
            continue
        settings = replace(experiment.methods[method], split=number)
        if arguments.steps is not None:
            count = len(split(read_data(dataset, arguments.data), number).x_train)
            settings = replace(settings, epochs=max(1, round(arguments.steps * settings.batch_size / count)))
        if experiment.keep_beta and number > 0 and settings.beta is None:
            settings = replace(settings, beta=known_beta(rows, name, dataset, method))
        done = [row for row in rows if all(row[k] == v for k, v in key.items())]
        if done and (done[0]["settings"], done[0].get("dtype", "float64")) != (asdict(settings), arguments.dtype):
            sys.exit(f"{arguments.out} holds {key} with other settings: name another file, or remove this one")
        if done:
            continue
        row = run(name, experiment, dataset, method, settings, arguments)
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
