"""Tables and the figure of scores: rows have ``dataset, method, split`` and the three scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

SCORES = ("nll", "rmse", "crps")


def means(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean of each score over splits with its standard error, as text."""
    groups = rows.groupby(["dataset", "method"])[list(SCORES)]
    mean, sem = groups.mean(), groups.sem()
    return mean.map("{:.3f}".format) + sem.map(lambda v: "" if np.isnan(v) else f" ({v:.3f})")


def ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Average rank of each method (1 is best) over the pairs of data set and split that all methods have run."""
    columns = {}
    for score in SCORES:
        wide = rows.pivot_table(index=["dataset", "split"], columns="method", values=score).dropna()
        columns[f"rank of {score.upper()}"] = wide.rank(axis=1).mean()
    return pd.DataFrame(columns).assign(pairs=len(wide)).round(2)


def paired(rows: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """NLL of ``first`` minus ``second`` on equal splits: mean, standard error and largest, by data set and over all."""
    wide = rows.pivot_table(index=["dataset", "split"], columns="method", values="nll")[[first, second]].dropna()
    difference = wide[first] - wide[second]
    groups = difference.groupby(level="dataset")
    table = pd.DataFrame({"pairs": groups.size(), "mean": groups.mean(), "sem": groups.sem(), "largest": groups.max()})
    table.loc["pooled"] = [len(difference), difference.mean(), difference.sem(), difference.max()]
    return table.round(3)


def draw_scores(rows: pd.DataFrame, path: Path) -> None:
    """Draw the scores of each method on each data set, with standard errors over splits."""
    datasets, methods = list(dict.fromkeys(rows["dataset"])), list(dict.fromkeys(rows["method"]))
    figure = Figure(figsize=(2.0 * len(datasets), 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(SCORES), len(datasets), squeeze=False)
    for column, dataset in enumerate(datasets):
        own = rows[rows["dataset"] == dataset]
        for axis, score in zip(axes[:, column], SCORES, strict=True):
            _draw_methods(axis, own, score, methods)
        axes[-1, column].set_xticks(range(len(methods)), methods, rotation=60, ha="right", fontsize=7)
        count = own["split"].nunique()
        axes[0, column].set_title(f"{dataset}\n{count} split{'s' * (count > 1)}", fontsize=9)
    for axis, score in zip(axes[:, 0], SCORES, strict=True):
        axis.set_ylabel(f"test {score.upper()}")
    figure.suptitle("standardised targets, lower is better;\nbars are standard errors over splits", fontsize=8)
    figure.savefig(path, dpi=120)


def _draw_methods(axis: Axes, rows: pd.DataFrame, score: str, methods: list[str]) -> None:
    for position, name in enumerate(methods):
        values = rows[rows["method"] == name][score]
        error = values.sem() if len(values) > 1 else 0.0
        axis.errorbar(position, values.mean(), error, fmt="o", color=f"C{position}", capsize=3, ms=4)
    axis.set_xticks(range(len(methods)), [])
    axis.tick_params(axis="y", labelsize=7)
    axis.set_xlim(-0.6, len(methods) - 0.4)
