"""Tables 4 and 5 of a report on doubly stochastic inference, made again: one layer, deep GPs of 2 to 5 layers, approximate EP, Bayesian networks.

``python -m benchmarks.studies.report_tables --data FOLDER [--published FOLDER] [--out FILE] [--only D,E] [--methods A,B] [--splits 0,1] [--steps N] [--jobs N] [--device cuda] [--dtype float32] [--figure FILE] [--table]``

[2020-ashman] section 5.1: log-likelihood and RMSE in the units of the target, eight data sets. Models and settings are those of the preset
``ashman2020`` with 5,000 steps of at most 1,000 rows (the report has 20,000 of at most 10,000); ``aep`` takes 50 rows a step, as the report
does, and has the power alpha = 1, which ``aep-2-half`` halves. ``collapsed-2`` is the model of ``dsvi-2`` trained as ``dsvi-collapsed`` is: the best q(v) of the top layer in each of 500 steps of up to 5,000 rows at a rate of 0.05,
whatever ``--steps`` says, with a prior of the hyperparameters. The networks are ``bnn-svi`` and ``pbp``, with 50 hidden units (100 on protein). Five splits of the small sets, three of the
others, one of protein; the report's splits are others. Makes the runs that FILE (one JSON line a run) lacks and prints the tables; ``*`` marks a cell that is worse
than the published one by more than one published standard deviation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import published
from benchmarks.common.baselines import MeanFieldNetwork
from benchmarks.common.data import add_data_option, read_data, require_data
from benchmarks.common.pbp import ProbabilisticBackpropagation
from benchmarks.common.records import kept, read
from pyro_dgp.comparison.carrying_out import Workers
from pyro_dgp.comparison.sweep import Run, complete
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.splitting import held_out_rows
from pyro_dgp.training.loop import steps_for
from pyro_dgp.zoo.architecture import Architecture
from pyro_dgp.zoo.by_collapsed_elbo import ByCollapsedELBO
from pyro_dgp.zoo.inference import Inference
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.presets import PRESETS, wide_isotropic, wide_shallow
from pyro_dgp.zoo.recipes import inducing_points
from pyro_dgp.zoo.settings import Settings

#: Number of splits of each data set, from 0.
SETS = {
    "boston": 5, "energy": 5, "concrete": 5, "wine_red": 5, "kin8nm": 3, "power": 3, "naval": 3, "protein": 1,
}  # fmt: skip
STEPS, ROWS, ROWS_OF_AEP = 5000, 1000, 50
#: Distance from the median of the marks of a panel, in median distances, beyond which a mark is written and not drawn.
FAR = 20.0
ASHMAN = PRESETS["ashman2020"]
#: The power alpha is read by ``aep-2-half`` alone; ``aep-2`` has that of the report, 1.
SETTINGS = replace(ASHMAN.settings, batch_size=ROWS, alpha=0.5)


@dataclass(frozen=True)
class Column:
    """A column of the tables.

    :ivar method: model and inference.
    :ivar settings: its own; the number of epochs follows from that of steps.
    :ivar published: its name in the report, if it has one there.
    :ivar epochs: passes where the method counts steps so, in the place of those that make the asked number of steps.
    """

    method: Method
    settings: Settings = SETTINGS
    published: str = ""
    epochs: int | None = None


def _network(name: str, inference: Inference) -> Column:
    """A network: the Gaussian process that is built for it goes unused."""
    return Column(Method(name, name, "", Architecture(wide_shallow, is_deep=False), inference), SETTINGS, "PBP")


DSVI, AEP = ASHMAN.methods["dsvi"], ASHMAN.methods["aep"]
#: Another way to fit the two layers of ``dsvi-2``: the best q(v) of the top one in each of 500 steps, and a prior of the hyperparameters.
COLLAPSED = ByCollapsedELBO(inducing_points, default_steps=500, spread=1.0)
COLUMNS = {
    **{
        f"svgp-{m}": Column(ASHMAN.methods["svgp"], replace(SETTINGS, inducing=m), f"SGP {m}")
        for m in (100, 500)
    },
    **{f"dsvi-{n}": Column(DSVI, replace(SETTINGS, layers=n), f"DSVI-{n}") for n in (2, 3, 4, 5)},
    "dsvi-2-isotropic": Column(replace(DSVI, architecture=Architecture(wide_isotropic, is_deep=True))),
    "collapsed-2": Column(replace(DSVI, inference=COLLAPSED), replace(SETTINGS, batch_size=None), "DSVI-2", epochs=500),
    "aep-2": Column(AEP, replace(SETTINGS, batch_size=ROWS_OF_AEP, alpha=ASHMAN.settings.alpha), "AEP-2"),
    "aep-2-half": Column(AEP, replace(SETTINGS, batch_size=ROWS_OF_AEP), "AEP-2"),
    "bnn-svi": _network("bnn-svi", MeanFieldNetwork()),
    "pbp": _network("pbp", ProbabilisticBackpropagation()),
}  # fmt: skip
#: Scores of the tables: whether more is better.
IS_BETTER_HIGH = {"log-likelihood": True, "RMSE": False}


def planned(
    sets: list[Dataset],
    names: list[str],
    splits: list[int],
    *,
    steps: int = STEPS,
    device: str = "cpu",
    dtype: str = "float64",
) -> Iterator[Run]:
    """Iterate over the runs that are asked for: all of one split, then those of the next."""
    for split in splits:
        for dataset in sets:
            for name in names if split < SETS[dataset.name] else ():
                column = COLUMNS[name]
                passes = column.epochs or epochs(dataset, split, column.settings, steps)
                settings = replace(column.settings, split=split, epochs=passes, steps=None)
                method = replace(_widened(column.method, dataset), name=name)
                yield Run(dataset, method, settings, dtype=dtype, device=device)


def epochs(dataset: Dataset, split: int, settings: Settings, steps: int) -> int:
    """Passes over the training rows that make a number of steps, or a few more."""
    rows = int((~held_out_rows(dataset, split)).sum())
    return -(-steps // steps_for(1, rows, settings.rows_of_step))


def _widened(method: Method, dataset: Dataset) -> Method:
    """Networks have 100 units on protein."""
    inference = method.inference
    if dataset.name == "protein" and isinstance(inference, MeanFieldNetwork | ProbabilisticBackpropagation):
        return replace(method, inference=replace(inference, hidden=100))
    return method


def of_report(folder: Path) -> pd.DataFrame:
    """Return mean and standard deviation over splits of the report's cells, by data set, method and metric.

    Spreads that are standard errors over 20 splits (the column copied from another paper) are turned into standard deviations.
    """
    cells = published.read(folder)
    cells = cells[(cells["paper"] == "ashman2020") & cells["sd"].notna()].copy()
    cells["sd"] *= np.where(cells["sd_kind"].str.startswith("standard error"), 20**0.5, 1.0)
    return cells.set_index(["dataset", "method", "metric"])[["mean", "sd"]].sort_index()


def runs_of(path: Path) -> pd.DataFrame:
    """Read the runs that a file holds, with both scores in the units of the target."""
    rows = pd.DataFrame([row for row in read(path, "method") if "error" not in row])
    return (
        rows if rows.empty else rows.assign(**{"log-likelihood": -rows["nll_original"], "RMSE": rows["rmse_original"]})
    )


def is_worse(metric: str, mean: float, theirs: pd.Series) -> bool:
    """Whether a mean is behind the published one by more than one published standard deviation."""
    behind = theirs["mean"] - mean if IS_BETTER_HIGH[metric] else mean - theirs["mean"]
    return bool(behind > theirs["sd"])


def table(runs: pd.DataFrame, metric: str, cells: pd.DataFrame | None) -> pd.DataFrame:
    """Return our mean (standard deviation) over splits and the published one, a row for each data set and method."""
    digits = {"naval": 5}
    lines = []
    for name in [name for name in SETS if name in set(runs["dataset"])]:
        for method in [method for method in COLUMNS if method in set(runs["method"])]:
            own = runs[(runs["dataset"] == name) & (runs["method"] == method)][metric]
            if own.empty:
                continue
            show = partial(_shown, digits=digits.get(name, 3) if metric == "RMSE" else 3)
            line = {
                "data": name,
                "method": method,
                "splits": len(own),
                metric: show(own.mean(), own.std() if len(own) > 1 else None),
            }
            key = (name, COLUMNS[method].published, metric)
            if cells is not None:
                theirs = cells.loc[key] if key in cells.index else None
                line["published"] = "" if theirs is None else show(theirs["mean"], theirs["sd"])
                line["behind"] = "*" if theirs is not None and is_worse(metric, own.mean(), theirs) else ""
            lines.append(line)
    return pd.DataFrame(lines)


def _shown(mean: float, spread: float | None, *, digits: int) -> str:
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ({spread:.{digits}f})")


@dataclass(frozen=True)
class Mark:
    """A mean with its standard deviation, if there is one, at a place and in a colour."""

    mean: float
    sd: float | None
    place: float
    color: str


def marks_of(own: pd.DataFrame, cells: pd.DataFrame | None, name: str, metric: str) -> list[Mark]:
    """Return the marks of a panel: ours, and the published ones below them."""
    marks = []
    for place, (method, column) in enumerate(COLUMNS.items()):
        values = own[own["method"] == method][metric]
        if len(values):
            marks.append(Mark(values.mean(), values.std() if len(values) > 1 else None, place - 0.12, "C0"))
        key = (name, column.published, metric)
        if cells is not None and key in cells.index:
            marks.append(Mark(cells.loc[key]["mean"], cells.loc[key]["sd"], place + 0.12, "C1"))
    return marks


def limits(marks: list[Mark]) -> tuple[float, float]:
    """Return the ends of an axis that holds all marks but those that are far from the others."""
    means = np.array([mark.mean for mark in marks])
    apart = np.abs(means - np.median(means))
    near = [mark for mark, distance in zip(marks, apart, strict=True) if distance <= FAR * max(np.median(apart), 1e-12)]
    low = min(mark.mean - (mark.sd or 0.0) for mark in near)
    high = max(mark.mean + (mark.sd or 0.0) for mark in near)
    room = 0.05 * (high - low) or 0.5
    return low - room, high + room


def draw(runs: pd.DataFrame, cells: pd.DataFrame | None, figure: Path) -> None:
    """Draw Figs. 2 and 3: a row for each score, a panel for each data set; filled marks are ours, open ones published, bars standard deviations."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in SETS if name in set(runs["dataset"])]
    canvas = Figure(figsize=(2.3 * len(names), 7), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(2, len(names), squeeze=False)
    for row, metric in zip(panels, IS_BETTER_HIGH, strict=True):
        for axes, name in zip(row, names, strict=True):
            marks = marks_of(runs[runs["dataset"] == name], cells, name, metric)
            low, high = limits(marks)
            for mark in marks:
                if not low <= mark.mean <= high:
                    end = low if mark.mean < low else high
                    label, side = f" {mark.mean:.3g} ", "left" if end == low else "right"
                    axes.text(end, mark.place, label, color=mark.color, fontsize=7, ha=side, va="center")
                    continue
                face = "white" if mark.color == "C1" else mark.color
                axes.errorbar(mark.mean, mark.place, xerr=mark.sd, fmt="o", ms=4, color=mark.color, mfc=face)
            axes.set_xlim(low, high)
            axes.set_title(name, fontsize=9)
            axes.set_xlabel(metric, fontsize=8)
            axes.set_yticks(range(len(COLUMNS)), list(COLUMNS) if axes is row[0] else [], fontsize=8)
            axes.tick_params(axis="x", labelsize=7)
            axes.locator_params(axis="x", nbins=4)
            axes.set_ylim(len(COLUMNS) - 0.5, -0.5)
    canvas.suptitle(
        "filled: measured here; open: published; bars are standard deviations over splits;\na number stands for a mark that is far off",
        fontsize=9,
    )
    figure.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(figure, dpi=120)


def main() -> None:
    """Make the runs that the file lacks, print the tables and draw them."""
    arguments = _parsed()
    if not arguments.table:
        require_data(arguments)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        names = arguments.methods.split(",") if arguments.methods else list(COLUMNS)
        sets = [read_data(name, arguments.data) for name in (arguments.only.split(",") if arguments.only else SETS)]
        splits = [int(number) for number in arguments.splits.split(",")]
        where = {"device": arguments.device, "dtype": arguments.dtype}
        runs = list(planned(sets, names, splits, steps=arguments.steps, **where))
        complete(runs, output=arguments.out, workers=Workers(arguments.jobs), say=partial(print, flush=True))
    kept(arguments.out, "dataset")
    rows = runs_of(arguments.out)
    cells = None if arguments.published is None else of_report(arguments.published)
    for metric in IS_BETTER_HIGH:
        print(table(rows, metric, cells).to_string(index=False), end="\n\n")
    if arguments.figure is not None:
        draw(rows, cells, arguments.figure)


def _parsed() -> argparse.Namespace:
    out = Path("results/report_tables.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--published", type=Path, help="folder of the papers' tables; ours stand alone if not given")
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--only", help="data sets to run, with commas between; all if not given")
    parser.add_argument("--methods", help="methods to run, with commas between; all if not given")
    parser.add_argument("--splits", default="0,1,2,3,4", help="splits, with commas between")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"training steps, {STEPS} if not given; a file of its own for others"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="device that fits and predicts")
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"), help="precision of everything")
    parser.add_argument("--figure", type=Path, help="file of the figure; none is drawn if not given")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
