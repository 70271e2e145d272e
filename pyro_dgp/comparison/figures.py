"""The comparison in one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_dgp.comparison.canvas import blank_figure

Array = NDArray[Any]
Curves = Mapping[str, Mapping[str, Array]]
SCORES = ("nll", "rmse", "crps")
LEVELS = torch.linspace(0.05, 0.95, 19)


def plot_comparison(rows: Sequence[Mapping[str, Any]], curves: Curves, path: Path, dataset: str) -> None:
    """Write the figure.

    :param rows: results, one for each method.
    :param curves: for each method, arrays ``observed, mean, low, high`` (90 % interval) ``(N_test,)`` and ``coverage``;
        for one input also ``grid, grid_mean, grid_low, grid_high``, ``x_train, y_train``.
    """
    names = [row["method"] for row in rows if row["method"] in curves]
    columns = max(len(names), 4)
    figure = blank_figure(3.1 * columns, 6.6)
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.05, 1])
    axes = top.subplots(1, len(names), squeeze=False, sharey=True)[0]
    sizes = {row["method"]: row["n_train"] for row in rows}
    one_input = "grid" in curves[names[0]]
    for axis, name in zip(axes, names, strict=True):
        (_bands if one_input else _observed)(axis, curves[name])
        axis.set_title(f"{name} ({sizes[name]} training rows)" if len(set(sizes.values())) > 1 else name)
    axes[0].legend(fontsize=7, loc="upper left")
    axes[0].set_ylabel("target (standardised)" if one_input else "predicted (standardised)")
    panels = bottom.subplots(1, 4, width_ratios=[1.15, 1, 1, 1])
    _calibration(panels[0], names, curves)
    for axis, score in zip(panels[1:], SCORES, strict=True):
        _bars(axis, rows, score)
    figure.suptitle(
        f"{dataset}, {rows[0]['n_test']} test rows; scores on the standardised target, lower is better", fontsize=10
    )
    figure.savefig(path, dpi=130)


def _colour(position: int) -> str:
    return f"C{position}"


def _bands(axis: Any, curve: Mapping[str, Array]) -> None:
    axis.fill_between(curve["grid"], curve["grid_low"], curve["grid_high"], alpha=0.25, lw=0, label="90 % of y")
    axis.plot(curve["grid"], curve["grid_mean"], lw=1.5, label="mean")
    axis.plot(curve["x_train"], curve["y_train"], ".", color="0.4", ms=3, label="training data")
    axis.plot(curve["x_test"], curve["observed"], "x", color="C3", ms=4, label="test data")
    axis.set_xlabel("input (standardised)")


def _observed(axis: Any, curve: Mapping[str, Array]) -> None:
    observed, mean = curve["observed"], curve["mean"]
    inside = (observed >= curve["low"]) & (observed <= curve["high"])
    error = np.stack([np.maximum(mean - curve["low"], 0), np.maximum(curve["high"] - mean, 0)])
    style = {"fmt": ".", "ms": 3, "lw": 0.6}
    for mask, colour, label in ((inside, "C0", "90 % interval holds y"), (~inside, "C3", "it does not")):
        axis.errorbar(observed[mask], mean[mask], error[:, mask], color=colour, label=label, **style)
    ends = [observed.min(), observed.max()]
    axis.plot(ends, ends, color="0.3", lw=1)
    axis.set_xlabel("observed (standardised)")


def _calibration(axis: Any, names: Sequence[str], curves: Curves) -> None:
    axis.plot([0, 1], [0, 1], color="0.3", lw=1)
    for position, name in enumerate(names):
        axis.plot(LEVELS, curves[name]["coverage"], "-", color=_colour(position), label=name, lw=1.5)
    axis.set_xlabel("nominal level of the central interval")
    axis.set_ylabel("share of test targets inside")
    axis.set_title("calibration")
    axis.legend(fontsize=7)


def _bars(axis: Any, rows: Sequence[Mapping[str, Any]], score: str) -> None:
    values = [row[score] for row in rows]
    names = [row["method"] for row in rows]
    bars = axis.bar(range(len(rows)), values, color=[_colour(i) for i in range(len(rows))])
    axis.bar_label(bars, [f"{value:.3f}" for value in values], fontsize=7, padding=2)
    axis.axhline(0, color="0.3", lw=0.8)
    axis.set_xticks(range(len(rows)), names, rotation=35, ha="right", fontsize=8)
    axis.margins(y=0.15)
    axis.set_title(f"test {score.upper()}")
