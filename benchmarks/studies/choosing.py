"""What each method loses to the best one, by rows, inputs and noise of the data: the table and the figure of the page on choosing a method.

``python -m benchmarks.studies.choosing [--fits FILE] [--figure FILE]``

Runs nothing. Reads the runs of ``held_aside`` and takes every pair of data set and split that all methods of the table have run. The regret of a method
is its NLL minus the lowest of the methods, nats a row; that of CRPS is a share of the lowest. Noise is the share of the variance of test targets that the
best method leaves.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.common.records import read

METHODS = ("vecchia-gp", "svgp", "sgpr", "ppgpr", "dsvi", "dsvi-collapsed", "gamma-dgp", "aep", "dspp")
#: Number of inputs of each data set; of simulations by the name of the formula.
INPUTS = {
    "boston": 13,
    "concrete": 8,
    "energy": 8,
    "wine_red": 11,
    "yacht": 6,
    "diabetes": 10,
    "naval": 14,
    "bike": 17,
    "friedman1": 10,
    "friedman2": 4,
    "friedman3": 4,
    "borehole": 8,
    "otl-circuit": 6,
    "piston": 7,
}
#: Bounds of a property between its groups, and the names of these.
GROUPS: dict[str, tuple[list[float], tuple[str, ...]]] = {
    "rows": ([600, 5000], ("up to 600 rows", "600 to 5,000 rows", "more than 5,000 rows")),
    "inputs": ([6.5], ("up to 6 inputs", "7 inputs or more")),
    "noise": ([0.01, 0.2], ("less than 1 % noise", "1 to 20 % noise", "more than 20 % noise")),
}


def properties(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the regrets of each method on each set and split, and what the data are like: wide, a row for each set and split."""
    wide = {
        score: rows.pivot_table(index=["dataset", "split"], columns="method", values=score)[list(METHODS)].dropna()
        for score in ("nll", "crps", "rmse", "seconds")
    }
    nll, crps = wide["nll"], wide["crps"]
    found = {f"nll {name}": nll[name] - nll.min(axis=1) for name in METHODS}
    found |= {f"crps {name}": crps[name] / crps.min(axis=1) - 1 for name in METHODS}
    found |= {f"rank {name}": nll.rank(axis=1)[name] for name in METHODS}
    found |= {f"seconds {name}": wide["seconds"][name] for name in METHODS}
    table = pd.DataFrame(found)
    first = rows[rows["method"] == METHODS[0]].set_index(["dataset", "split"])
    table["rows"] = first["n_train"]
    names = table.index.get_level_values("dataset")
    table["inputs"] = [INPUTS[name] if name in INPUTS else INPUTS[name.rpartition("-")[0]] for name in names]
    table["noise"] = wide["rmse"].min(axis=1) ** 2
    return table


def grouped(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of each group, with the group of all first."""
    groups = {"all": table}
    for name, (bounds, names) in GROUPS.items():
        number = np.searchsorted(bounds, table[name])
        groups |= {label: table[number == k] for k, label in enumerate(names) if (number == k).any()}
    return groups


def markdown(table: pd.DataFrame) -> str:
    """Return the table of the page."""
    lines = ["| data | sets | " + " | ".join(f"`{name}`" for name in METHODS) + " |", "|---" * (len(METHODS) + 2) + "|"]
    for label, own in grouped(table).items():
        cells = [f"{own[f'nll {name}'].mean():.2f}, {own[f'crps {name}'].mean():.0%}" for name in METHODS]
        sets = own.index.get_level_values("dataset").nunique()
        lines.append(f"| {label} | {sets} | {' | '.join(cells)} |")
    ranks = [f"{table[f'rank {name}'].mean():.1f}" for name in METHODS]
    most = [f"{table[f'nll {name}'].max():.2f}" for name in METHODS]
    seconds = [f"{table[f'seconds {name}'].median():.0f}" for name in METHODS]
    for label, cells in {"mean rank": ranks, "largest regret": most, "seconds, median": seconds}.items():
        lines.append(f"| {label} | | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw the regret in NLL by rows, inputs and noise, a point for each set."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(GROUPS), sharey=True)
    labels = {"rows": "training rows", "inputs": "inputs", "noise": "share of the variance that the best leaves"}
    for axis, (name, label) in zip(axes, labels.items(), strict=True):
        _draw_one(axis, table, name)
        axis.set_xlabel(label)
    axes[0].set_ylabel("NLL behind the best, nats a row")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=9, loc="outside upper center", ncols=len(METHODS))
    figure.savefig(path, dpi=120)


def _draw_one(axis: Axes, table: pd.DataFrame, name: str) -> None:
    axis.set_yscale("symlog", linthresh=0.05, linscale=0.8)
    axis.set_xscale("linear" if name == "inputs" else "log")
    if name == "rows":
        axis.set_xticks([300, 1000, 3000, 10000], ["300", "1,000", "3,000", "10,000"])
        axis.xaxis.set_minor_formatter(NullFormatter())
    for number, method in enumerate(METHODS):
        aside = number - (len(METHODS) - 1) / 2
        x = table[name] + 0.09 * aside if name == "inputs" else table[name] * 1.05**aside
        axis.plot(x, table[f"nll {method}"], "PosD^vXh*"[number], ms=5, alpha=0.8, label=method)
    axis.set_ylim(-0.01, None)
    axis.set_yticks([0, 0.02, 0.05, 0.1, 0.2, 0.5, 1], ["0", "0.02", "0.05", "0.1", "0.2", "0.5", "1"])
    axis.grid(alpha=0.3)


def main() -> None:
    """Print the table, and draw the figure."""
    fits = Path("benchmarks/results/held_aside.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fits", type=Path, default=fits, help=f"file of held_aside; {fits} if not given")
    parser.add_argument("--figure", type=Path, help="file of the figure; none is drawn if not given")
    arguments = parser.parse_args()
    rows = pd.DataFrame([row for row in read(arguments.fits, "method") if "error" not in row])
    table = properties(rows)
    print(markdown(table))
    if arguments.figure is not None:
        draw(table, arguments.figure)


if __name__ == "__main__":
    main()
