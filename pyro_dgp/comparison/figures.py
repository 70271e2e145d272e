"""The comparison in one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_dgp.comparison.canvas import blank_figure
from pyro_dgp.comparison.differences import behind
from pyro_dgp.mcmc.diagnostics import doubts

Array = NDArray[Any]
Curves = Mapping[str, Mapping[str, Array]]
Row = Mapping[str, Any]
SCORES = ("nll", "crps", "rmse")
_DIGITS = {"nll": 2, "crps": 3, "rmse": 3, "accuracy": 3, "brier": 3, "ece": 3}
_TITLES = {"accuracy": "accuracy", "brier": "Brier score"}
LEVELS = torch.linspace(0.05, 0.95, 19)

#: Panels of observed against predicted targets side by side.
_COLUMNS = 5

_HELD_OUT, _GREY = "#c0392b", "0.45"
_COLOURS = ("#4c72b0", "#6a9fb5", "#2a9d6f", "#d1793b", "#8a5fa8", "#b5a642", "#5f6b7a", "#b04c72")
FONTS = {"title": 17.0, "name": 14.0, "label": 13.0, "tick": 11.5}


@dataclass(frozen=True)
class Axis:
    """Name of a quantity, and the affine map from its standardised values to its own units."""

    label: str
    mean: float = 0.0
    scale: float = 1.0

    def __call__(self, values: Any) -> Array:
        """Values in their own units."""
        return np.asarray(self.mean + self.scale * values)


STANDARDISED_INPUT, STANDARDISED_TARGET = Axis("input (standardised)"), Axis("target (standardised)")


def plot_comparison(
    rows: Sequence[Row],
    curves: Curves,
    path: Path,
    dataset: str,
    *,
    input_axis: Axis = STANDARDISED_INPUT,
    target_axis: Axis = STANDARDISED_TARGET,
) -> None:
    """Write the figure: predictions of each method, scores and calibration.

    With one input each method has a row of its own: predictive bands over the data, its scores, its calibration. With several inputs
    panels show predicted against observed targets, and the scores stand below.

    :param rows: results, one for each method. ``nll_per_fold``, ``crps_per_fold`` and ``rmse_per_fold``, where they are present, are drawn
        as small dots beside the pooled score.
    :param curves: for each method, arrays ``observed, mean, low, high`` (90 % interval) ``(N_test,)`` and ``coverage``
        ``(len(LEVELS),)``; for one input also ``grid, grid_mean, grid_low, grid_high`` ``(G,)``, ``x_train, y_train`` ``(N,)`` and
        ``x_test`` ``(N_test,)``, and, where present, ``grid_low_50, grid_high_50`` ``(G,)``, the 50 % interval. All are standardised.
    :param input_axis: name and units of the one input.
    :param target_axis: name and units of the target.
    """
    rows = [row for row in rows if row["method"] in curves]
    one_input = "grid" in curves[rows[0]["method"]]
    figure = _by_rows(rows, curves, input_axis, target_axis) if one_input else _by_panels(rows, curves, target_axis)
    figure.suptitle(
        title_of(rows, dataset, curves=curves), fontsize=FONTS["title"], fontweight="bold", x=0.01, ha="left"
    )
    figure.savefig(path, dpi=150)


def _doubts(row: Row) -> list[str]:
    """Symptoms of chains that are not known to have converged, ``not converged`` or ``no R-hat``; none of a method without chains."""
    figures = {"r_hat_max": row["r_hat_max"]} if "r_hat_max" in row else {}
    return [finding.symptom for finding in doubts(figures, 0)]


#: Standard errors of the difference in NLL up to which two methods are not told apart.
LEVEL_ERRORS = 2.0


def title_of(rows: Sequence[Row], dataset: str, what: str = "density", *, curves: Curves | None = None) -> str:
    """One sentence: which method predicts held-out rows best, of those whose chains, if any, are known to have converged, and which these rows do not tell from it.

    :param what: what a method gives the rows: a density, or a probability.
    :param curves: arrays of each method, with the NLL of each row where they have it.
    """
    known = [row for row in rows if np.isfinite(row["nll"]) and not _doubts(row)]
    known = sorted(known, key=lambda row: float(row["nll"]))
    held_out = f"{rows[0]['n_test']} held-out rows" if "folds" not in rows[0] else "held-out rows"
    if len(known) < 2:
        return f"{dataset}: predictions of {held_out}"
    best, worst = known[0], known[-1]
    differences = behind(known, curves or {})
    level = [name for name, (difference, error) in differences.items() if difference <= LEVEL_ERRORS * error]
    if level:
        others = f"; {worst['method']}: {_number(worst['nll'])}" if worst["method"] not in level else ""
        return f"{dataset}: {held_out} do not tell {best['method']} (NLL {_number(best['nll'])}) from {_listed(level)}{others}"
    return (
        f"{dataset}: {best['method']} gives {held_out} the highest {what}, NLL {_number(best['nll'])} "
        f"({worst['method']}: {_number(worst['nll'])})"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _number(value: Any, digits: int = 2) -> str:
    return f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def colour_of(position: int) -> str:
    """The colour of a method by its place in the table."""
    return _COLOURS[position % len(_COLOURS)]


def _by_rows(rows: Sequence[Row], curves: Curves, input_axis: Axis, target_axis: Axis) -> Any:
    """A row of the figure for each method."""
    count = len(rows)
    figure = blank_figure(15.0, 1.85 * count + 2.0)
    grid = figure.add_gridspec(count, 5, width_ratios=[6.2, 1.25, 1.25, 1.25, 1.45])
    bands = grid[:, 0].subgridspec(count, 1, hspace=0.08).subplots(sharex=True, sharey=True, squeeze=False)[:, 0]
    calibrations = grid[:, 4].subgridspec(count, 1, hspace=0.08).subplots(sharex=True, sharey=True, squeeze=False)[:, 0]
    for position, (row, axis, calibration) in enumerate(zip(rows, bands, calibrations, strict=True)):
        curve = curves[row["method"]]
        _draw_bands(axis, curve, colour_of(position), input_axis, target_axis)
        axis.set_title(
            name_of(row, rows), fontsize=FONTS["name"], fontweight="bold", loc="left", color=colour_of(position)
        )
        _draw_calibration(calibration, curve, colour_of(position))
    bands[0].set_ylim(*_limits(curves, rows, target_axis))
    bands[-1].set_xlabel(input_axis.label, fontsize=FONTS["label"])
    bands[count // 2].set_ylabel(target_axis.label, fontsize=FONTS["label"])
    handles, labels = bands[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", fontsize=FONTS["label"], ncols=5, frameon=False)
    calibrations[0].set_title("calibration", fontsize=FONTS["name"])
    calibrations[-1].set_xlabel("level of interval", fontsize=FONTS["label"])
    calibrations[count // 2].set_ylabel("share of targets inside", fontsize=FONTS["label"])
    for column, score in enumerate(SCORES, 1):
        axis = figure.add_subplot(grid[:, column])
        draw_scores(axis, rows, score)
        axis.set_yticks([])
    return figure


def _by_panels(rows: Sequence[Row], curves: Curves, target_axis: Axis) -> Any:
    """Predicted against observed targets in panels, scores below."""
    columns = min(len(rows), _COLUMNS)
    lines = -(-len(rows) // columns)
    below = 0.42 * len(rows) + 2.0
    figure = blank_figure(15.0, 3.2 * lines + below + 0.6)
    top, bottom = figure.subfigures(2, 1, height_ratios=[3.2 * lines, below])
    axes = top.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for position, (row, axis) in enumerate(zip(rows, axes, strict=False)):
        _draw_observed(axis, curves[row["method"]], target_axis)
        axis.set_title(name_of(row, rows), fontsize=FONTS["name"], fontweight="bold", color=colour_of(position))
    for axis in axes[len(rows) :]:
        axis.set_visible(False)
    axes[0].legend(fontsize=FONTS["tick"], loc="upper left")
    top.supxlabel(f"observed {target_axis.label}", fontsize=FONTS["label"])
    top.supylabel("predicted", fontsize=FONTS["label"])
    panels = bottom.subplots(1, 4, width_ratios=[1, 1, 1, 1.1])
    for panel, score in zip(panels[:3], SCORES, strict=True):
        draw_scores(panel, rows, score)
        panel.set_yticks([])
    panels[0].set_yticks(range(len(rows)), [row["method"] for row in rows], fontsize=FONTS["label"])
    for position, row in enumerate(rows):
        _draw_calibration(panels[3], curves[row["method"]], colour_of(position))
    panels[3].set_title("calibration", fontsize=FONTS["name"])
    panels[3].set_xlabel("level of interval", fontsize=FONTS["label"])
    panels[3].set_ylabel("share of targets inside", fontsize=FONTS["label"])
    return figure


def name_of(row: Row, rows: Sequence[Row]) -> str:
    """The method's name, with its training rows where methods differ in them, and a word on chains that are not known to have converged."""
    differ = len({other["n_train"] for other in rows}) > 1
    notes = [f"{row['n_train']} training rows"] if differ else []
    notes += _doubts(row)
    return f"{row['method']} ({', '.join(notes)})" if notes else str(row["method"])


def _limits(curves: Curves, rows: Sequence[Row], axis: Axis) -> tuple[float, float]:
    """The range of the data with a margin: a band that leaves it is cut off."""
    values = np.concatenate(
        [np.r_[curves[row["method"]]["y_train"], curves[row["method"]]["observed"]] for row in rows]
    )
    low, high = float(axis(values.min())), float(axis(values.max()))
    margin = 0.2 * (high - low)
    return low - margin, high + margin


def _draw_bands(axis: Any, curve: Mapping[str, Array], colour: str, input_axis: Axis, target_axis: Axis) -> None:
    x = input_axis(curve["grid"])
    for low, high, strength, label in (
        ("grid_low", "grid_high", 0.22, "90 % interval"),
        ("grid_low_50", "grid_high_50", 0.38, "50 % interval"),
    ):
        if low in curve:
            bounds = target_axis(curve[low]), target_axis(curve[high])
            axis.fill_between(x, *bounds, color=colour, alpha=strength, lw=0, label=label)
    axis.plot(x, target_axis(curve["grid_mean"]), color=colour, lw=1.6, label="mean")
    axis.plot(
        input_axis(curve["x_train"]), target_axis(curve["y_train"]), ".", color=_GREY, ms=3.5, label="training rows"
    )
    axis.plot(
        input_axis(curve["x_test"]),
        target_axis(curve["observed"]),
        "o",
        color=_HELD_OUT,
        ms=4.5,
        mew=0,
        label="held-out rows",
    )
    axis.set_xlim(x.min(), x.max())
    quiet(axis)


def _draw_observed(axis: Any, curve: Mapping[str, Array], target_axis: Axis) -> None:
    observed, mean, low, high = (target_axis(curve[name]) for name in ("observed", "mean", "low", "high"))
    inside = (observed >= low) & (observed <= high)
    error = np.stack([np.maximum(mean - low, 0), np.maximum(high - mean, 0)])
    for mask, colour, label in ((inside, _COLOURS[0], "y in 90 % interval"), (~inside, _HELD_OUT, "y outside")):
        axis.errorbar(
            observed[mask], mean[mask], error[:, mask], color=colour, label=label, fmt=".", ms=4, lw=0.6, alpha=0.8
        )
    ends = [observed.min(), observed.max()]
    axis.plot(ends, ends, color="0.3", lw=1)
    quiet(axis)


def _draw_calibration(axis: Any, curve: Mapping[str, Array], colour: str) -> None:
    axis.plot([0, 1], [0, 1], color="0.6", lw=1)
    axis.plot(LEVELS, curve["coverage"], color=colour, lw=2.2)
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axis.set_xticklabels(["0", "½", "1"])
    axis.set_yticklabels(["0", "½", "1"])
    quiet(axis)


def draw_scores(axis: Any, rows: Sequence[Row], score: str) -> None:
    """Pooled scores as dots, one line for each method from the top, those of single folds as small dots."""
    values = [float(row[score]) for row in rows]
    best = np.nanmax(values) if score == "accuracy" else np.nanmin(values)
    for position, (row, value) in enumerate(zip(rows, values, strict=True)):
        folds = row.get(f"{score}_per_fold", [])
        axis.axhline(position, color="0.88", lw=1, zorder=0)
        axis.plot(folds, [position] * len(folds), "o", color=colour_of(position), ms=5, mew=0, alpha=0.35)
        axis.plot(value, position, "o", color=colour_of(position), ms=11)
        axis.annotate(
            _number(value, _DIGITS[score]),
            (value, position),
            (0, 10),
            textcoords="offset points",
            ha="center",
            fontsize=FONTS["label"],
            fontweight="bold" if value == best else "normal",
        )
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.margins(x=0.3)
    axis.set_title(_TITLES.get(score, score.upper()), fontsize=FONTS["name"])
    axis.set_xlabel("higher is better" if score == "accuracy" else "lower is better", fontsize=FONTS["label"])
    axis.locator_params(axis="x", nbins=3)
    quiet(axis)


def quiet(axis: Any) -> None:
    """No frame but the two axes, and readable numbers."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=FONTS["tick"])
