"""The comparison of classifiers in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pyro_dgp.comparison.canvas import blank_figure
from pyro_dgp.comparison.figures import FONTS, Curves, Row, colour_of, draw_scores, name_of, quiet, title_of
from pyro_dgp.prediction.reliability import Reliability, binned

SCORES = ("nll", "accuracy", "brier", "ece")
#: Panels side by side, and bins of a diagram: fewer than those of the calibration error, whose bins of a few rows are noise to the eye.
_COLUMNS, _BINS = 5, 10


def plot_classes(rows: Sequence[Row], curves: Curves, path: Path, dataset: str) -> None:
    """Write the figure: a reliability diagram of each method, the scores below.

    :param rows: results, one for each method, with the scores of classes.
    :param curves: for each method, arrays ``confidence`` and ``right`` ``(N_test,)``: the probability of the most probable class of a row, and
        1 where it is the true one.
    """
    rows = [row for row in rows if row["method"] in curves]
    columns = min(len(rows), _COLUMNS)
    lines, below = -(-len(rows) // columns), 0.42 * len(rows) + 2.0
    figure = blank_figure(15.0, 3.4 * lines + below + 0.6)
    top, bottom = figure.subfigures(2, 1, height_ratios=[3.4 * lines, below])
    axes = top.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for position, (row, axis) in enumerate(zip(rows, axes, strict=False)):
        curve = curves[row["method"]]
        diagram = binned(torch.as_tensor(curve["confidence"]), torch.as_tensor(curve["right"]), _BINS)
        draw_reliability(axis, diagram, colour_of(position))
        axis.set_title(name_of(row, rows), fontsize=FONTS["name"], fontweight="bold", color=colour_of(position))
    for axis in axes[len(rows) :]:
        axis.set_visible(False)
    top.supxlabel("probability of the most probable class (area of a dot: rows)", fontsize=FONTS["label"])
    top.supylabel("share of rows that are right", fontsize=FONTS["label"])
    for panel, score in zip(bottom.subplots(1, len(SCORES)), SCORES, strict=True):
        draw_scores(panel, rows, score)
        names = [row["method"] for row in rows] if score == SCORES[0] else []
        panel.set_yticks(range(len(names)), names, fontsize=FONTS["label"])
    title = title_of(rows, dataset, "probability", curves=curves)
    figure.suptitle(title, fontsize=FONTS["title"], fontweight="bold", x=0.01, ha="left")
    figure.savefig(path, dpi=150)


def draw_reliability(axis: Any, diagram: Reliability, colour: str) -> None:
    """Draw a reliability diagram: on the diagonal predictions are calibrated."""
    axis.plot([0, 1], [0, 1], color="0.6", lw=1)
    areas = 20 + 380 * diagram.count / diagram.count.max()
    axis.plot(diagram.confidence, diagram.accuracy, color=colour, lw=1.6)
    axis.scatter(diagram.confidence, diagram.accuracy, s=areas, color=colour, alpha=0.55, lw=0)
    axis.set(xlim=(0, 1.02), ylim=(0, 1.02), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    quiet(axis)
