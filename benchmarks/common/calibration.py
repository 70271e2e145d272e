"""Calibration of classifiers in a study: figures of a run beside the bins of its curve, and the drawing of curves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.reliability import calibration_band, reliability
from pyro_dgp.prediction.scores import scores

#: Bins of a curve, of equal width.
BINS = 15
#: Images of a bin that is drawn, at least: the share of right ones of fewer is chance.
LEAST = 10


def calibration_figures(prediction: Prediction, y: Tensor) -> dict[str, Any]:
    """Return the scores of predicted classes, the band of a calibrated model's error and the bins of the calibration curve."""
    low, high = calibration_band(prediction, y)
    curve = {key: values.tolist() for key, values in vars(reliability(prediction, y, BINS)).items()}
    return {**scores(prediction, y), "ece_low": low, "ece_high": high, "curve": curve}


def pooled(curves: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Return one calibration curve of the rows of several, such as those of all splits."""
    bins: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for curve in curves:
        for point in zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True):
            bins[min(math.floor(point[0] * BINS), BINS - 1)].append(point)
    found: dict[str, list[float]] = {"confidence": [], "accuracy": [], "count": []}
    for _, points in sorted(bins.items()):
        rows = sum(count for *_, count in points)
        found["confidence"].append(sum(confidence * count for confidence, _, count in points) / rows)
        found["accuracy"].append(sum(accuracy * count for _, accuracy, count in points) / rows)
        found["count"].append(rows)
    return found


def _with_many_images(curve: Mapping[str, Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the confidence and the accuracy of the bins that have more than a few images."""
    points = zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True)
    kept = [(confidence, accuracy) for confidence, accuracy, count in points if count >= LEAST]
    return [confidence for confidence, _ in kept], [accuracy for _, accuracy in kept]


def draw_calibration(curves: Iterable[tuple[str, Mapping[str, Sequence[float]]]], figure: Path) -> None:
    """Draw the share of right images against confidence, a line for each named curve and a grey one where both agree. Bins of few images are left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(4.5, 4.2), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    lines = [(name, *_with_many_images(curve)) for name, curve in curves]
    lowest = min((min(confidence) for _, confidence, _ in lines if confidence), default=0.5)
    axes.plot([lowest, 1], [lowest, 1], color="0.6", lw=1)
    for name, confidence, accuracy in lines:
        axes.plot(confidence, accuracy, "o-", ms=3, lw=1, label=name)
    axes.set(xlabel="probability of the chosen class", ylabel="share of images that are right")
    axes.legend(fontsize=7)
    figure.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(figure, dpi=120)
