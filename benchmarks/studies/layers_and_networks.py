"""One layer, two and three, and a network in front of them: Figs. 6 and 7 of Jankowiak, Pleiss and Gardner 2020.

``python -m benchmarks.studies.layers_and_networks --data FOLDER [--out FILE] [--only D,E] [--splits N] [--jobs J] [--figures DIR] [--table]``

Fig. 6 compares one layer (``svgp``, ``ppgpr``), two and three layers (``dsvi``, ``dspp``), Fig. 7 these with one and two layers and the same on the features of a
network (``dkl-*``). The zoo's settings, standardised targets, splits of the files from 0 on. Makes the runs that FILE (one JSON line a run) lacks, prints
the tables and draws both figures.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.common.data import add_data_option, read_data, require_data
from benchmarks.common.records import read
from benchmarks.common.score_tables import means
from pyro_dgp import Settings
from pyro_dgp.comparison.sweep import sweep

#: The loss of each pair of one layer and two, and colours of the figures.
PAIRS = {"ELBO": ("svgp", "dsvi"), "predictive": ("ppgpr", "dspp")}
PLAIN = tuple(name for pair in PAIRS.values() for name in pair)
NEURAL = tuple(f"dkl-{name}" for name in PLAIN)
SETS = ("kin8nm", "power", "bike", "protein")
#: What is added to the name of a data set whose runs have three layers.
THREE = ", three layers"


def carry_out(arguments: argparse.Namespace) -> None:
    """Make the runs that the file lacks: one and two layers of all sets, networks, then three layers."""
    data = [read_data(name, arguments.data) for name in arguments.only.split(",")]
    three = [replace(each, name=each.name + THREE) for each in data]
    deep = [name for _, name in PAIRS.values()]
    for sets, methods, settings in (
        (data, PLAIN, Settings()),
        (data, NEURAL, Settings()),
        (three, deep, Settings(layers=3)),
    ):
        sweep(
            sets,
            methods,
            splits=range(arguments.splits),
            settings=settings,
            output=arguments.out,
            jobs=arguments.jobs,
            say=lambda line: print(line, flush=True),
        )


def runs(path: Path) -> pd.DataFrame:
    """Return the runs of a file by the name of the set, with the number of layers in the name of the method where it is three."""
    rows = pd.DataFrame([row for row in read(path, "method") if "error" not in row])
    if rows.empty:
        return rows
    is_three = rows["dataset"].str.endswith(THREE)
    rows["dataset"] = rows["dataset"].str.removesuffix(THREE)
    rows["method"] = rows["method"].where(~is_three, rows["method"] + "-3")
    return rows


def draw(rows: pd.DataFrame, groups: dict[str, list[str]], path: Path) -> None:
    """Draw NLL and RMSE of methods on each set; a line joins the methods of a group, and bars are standard errors over splits."""
    sets = [name for name in SETS if name in set(rows["dataset"])]
    figure = Figure(figsize=(2.6 * len(sets), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(sets), squeeze=False)
    for column, name in enumerate(sets):
        own = rows[rows["dataset"] == name]
        for panel, score in zip(panels[:, column], ("nll", "rmse"), strict=True):
            start = 0
            for number, (label, methods) in enumerate(groups.items()):
                found = [own[own["method"] == method][score] for method in methods]
                at = np.arange(start, start + len(methods))
                errors = [0.0 if len(each) < 2 else each.sem() for each in found]
                panel.errorbar(
                    at, [each.mean() for each in found], errors, fmt="o-", ms=4, color=f"C{number}", label=label
                )
                start += len(methods)
            ticks = [method for methods in groups.values() for method in methods]
            panel.set_xticks(range(len(ticks)), ticks if score == "rmse" else [], rotation=60, ha="right", fontsize=7)
            panel.tick_params(axis="y", labelsize=7)
        panels[0, column].set_title(name, fontsize=9)
    panels[0, 0].set_ylabel("test NLL, nats a row")
    panels[1, 0].set_ylabel("test RMSE")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=7)
    figure.suptitle("standardised targets, lower is better", fontsize=9)
    figure.savefig(path, dpi=110)


def report(path: Path, figures: Path | None) -> None:
    """Print means over splits, and draw the two figures."""
    rows = runs(path)
    if rows.empty:
        return
    print("means (standard errors over splits)", means(rows).to_string(), sep="\n\n")
    wide = rows.pivot_table(index=["dataset", "split"], columns="method", values=["nll", "rmse"])
    for title, pairs in {
        "three layers less two": [(f"{deep}-3", deep) for _, deep in PAIRS.values()],
        "two layers less one": [(deep, one) for one, deep in PAIRS.values()],
        "with a network less without": list(zip(NEURAL, PLAIN, strict=True)),
    }.items():
        print(f"\n{title}: mean difference of NLL, and of RMSE, over sets and splits")
        for first, second in pairs:
            if {first, second} <= set(rows["method"]):
                changes = [(wide[score][first] - wide[score][second]).dropna() for score in ("nll", "rmse")]
                print(
                    f"{first:<10} {second:<8} {changes[0].mean():7.3f} {changes[1].mean():7.3f}  {len(changes[0])} pairs"
                )
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        draw(rows, {label: [one, deep, f"{deep}-3"] for label, (one, deep) in PAIRS.items()}, figures / "layers.png")
        draw(rows, {"without a network": list(PLAIN), "with a network": list(NEURAL)}, figures / "networks.png")


def main() -> None:
    """Make the runs that the file lacks, then report."""
    out = Path("results/layers_and_networks.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--only", default=",".join(SETS), help="data sets, with commas between; all if not given")
    parser.add_argument("--splits", type=int, default=1, help="splits of each set, from 0 on (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--figures", type=Path, help="folder for the figures")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    if not arguments.table:
        require_data(arguments)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        carry_out(arguments)
    report(arguments.out, arguments.figures)


if __name__ == "__main__":
    main()
