"""The results as aligned text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Column = tuple[str, str, Callable[[Any], str]]

COLUMNS: tuple[Column, ...] = (
    ("method", "method", str),
    ("n_train", "n_train", str),
    ("n_validation", "n_val", str),
    ("folds", "folds", str),
    ("steps", "steps", str),
    ("beta", "beta", lambda beta: beta if isinstance(beta, str) else f"{beta:g}"),
    ("nll", "NLL", "{:.3f}".format),
    ("behind", "behind", "{:.3f}".format),
    ("behind_error", "+-", "{:.3f}".format),
    ("rmse", "RMSE", "{:.3f}".format),
    ("crps", "CRPS", "{:.3f}".format),
    ("accuracy", "accuracy", "{:.3f}".format),
    ("brier", "Brier", "{:.3f}".format),
    ("ece", "ECE", "{:.3f}".format),
    ("train_seconds", "train s", "{:.1f}".format),
    ("predict_seconds", "predict s", "{:.1f}".format),
    ("divergences", "div.", str),
    ("r_hat_max", "R-hat", "{:.2f}".format),
    ("ess_min", "ESS", "{:.0f}".format),
)


GAP_COLUMNS: tuple[Column, ...] = (
    ("method", "method", str),
    ("hyperparameters", "hyperparameters", str),
    ("gap_mean", "mean of f", "{:.3f}".format),
    ("gap_sd", "log sd of f", "{:.3f}".format),
    ("gap_wasserstein", "Wasserstein", "{:.3f}".format),
    ("gap_kl", "KL of y", "{:.4f}".format),
    ("approximates_posterior", "approximates", lambda value: "yes" if value else "no"),
)


def gap_table(rows: Sequence[dict[str, Any]]) -> str:
    """Distances from the sampler as aligned text."""
    title = f"distance from {rows[0]['reference']}, averages over test inputs, in its standard deviations and nats:"
    return f"{title}\n{table(rows, GAP_COLUMNS)}"


def table(rows: Sequence[dict[str, Any]], columns: Sequence[Column] = COLUMNS) -> str:
    """The results as aligned text, a line for each method; columns that no row has are left out."""
    shown = [column for column in columns if any(column[0] in row for row in rows)]
    cells = [[title for _, title, _ in shown]]
    for row in rows:
        cells.append([_cell(row.get(key), form) for key, _, form in shown])
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    lines = []
    for line in cells:
        first = line[0].ljust(widths[0])
        lines.append("  ".join([first, *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]))
    return "\n".join(lines)


def _cell(value: Any, form: Callable[[Any], str]) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return form(value)
