"""A toy problem: which points of the unit square lie inside the letters "DGP" ([AVDGP] 6.2), drawn without a font."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_dgp.data.dataset import Dataset
from pyro_dgp.internal.optional import optional

Array = NDArray[np.float64]


def _box(x: Array, y: Array, left: float, right: float, bottom: float, top: float) -> Array:
    horizontal, vertical = np.maximum(left - x, x - right), np.maximum(bottom - y, y - top)
    outside = np.hypot(np.maximum(horizontal, 0), np.maximum(vertical, 0))
    return np.asarray(outside + np.minimum(np.maximum(horizontal, vertical), 0))


def _ellipse(x: Array, y: Array, centre: tuple[float, float], width: float, height: float) -> Array:
    return np.asarray((np.hypot((x - centre[0]) / width, (y - centre[1]) / height) - 1) * min(width, height))


def _ring(x: Array, y: Array, centre: tuple[float, float], width: float, height: float, stroke: float = 0.07) -> Array:
    inner = _ellipse(x, y, centre, width - stroke, height - stroke)
    return np.maximum(_ellipse(x, y, centre, width, height), -inner)


def _level(x: Array, y: Array) -> Array:
    """Negative inside the letters, zero on their outline."""
    letter_d = np.minimum(_box(x, y, 0.05, 0.12, 0.2, 0.8), np.maximum(_ring(x, y, (0.12, 0.5), 0.21, 0.3), 0.12 - x))
    opening = _box(x, y, 0.53, 0.7, 0.48, 0.66)
    letter_g = np.minimum(np.maximum(_ring(x, y, (0.51, 0.5), 0.14, 0.3), -opening), _box(x, y, 0.53, 0.65, 0.41, 0.48))
    letter_p = np.minimum(_box(x, y, 0.70, 0.77, 0.2, 0.8), np.maximum(_ring(x, y, (0.77, 0.63), 0.16, 0.17), 0.77 - x))
    return np.asarray(np.minimum(np.minimum(letter_d, letter_g), letter_p))


def inside_letters(x: Array) -> NDArray[np.bool_]:
    """Whether each of the points ``(N, 2)`` lies inside a letter."""
    return np.asarray(_level(x[:, 0], x[:, 1]) < 0)


def letters(rows: int = 40_000, seed: int = 0) -> Dataset:
    """Points uniform in the unit square and whether they lie inside the letters, 0 or 1; a third of the rows for testing.

    Arrays of NumPy in float64: standardise x, and make tensors with ``torch.as_tensor``. Two thirds are for training, of which a
    quarter is meant for validation: training, test and validation rows are as 3:2:1.

    :param seed: of points and test rows; equal seeds give equal data.
    """
    if rows < 3:
        raise ValueError(f"letters need at least 3 rows, got {rows}")
    generator = np.random.RandomState(seed)
    x = generator.uniform(size=(rows, 2))
    splits = np.zeros((rows, 1), dtype=bool)
    splits[generator.permutation(rows)[: rows // 3]] = True
    return Dataset("letters", x, inside_letters(x).astype(float), splits=splits)


def describe_letters(resolution: int = 2000) -> dict[str, float]:
    """How hard the problem is: ``boundary_length`` of the outlines (the square has sides of 1) and ``share_of_ones``.

    :param resolution: points of the grid in each direction that both are measured on.
    """
    contourpy = optional("contourpy", extra="compare", what="measuring the outlines")
    at = (np.arange(resolution) + 0.5) / resolution
    level = _level(*np.meshgrid(at, at))
    lines: Any = contourpy.contour_generator(at, at, level).lines(0.0)
    length = sum(float(np.hypot(*np.diff(line, axis=0).T).sum()) for line in lines)
    return {"boundary_length": length, "share_of_ones": float((level < 0).mean())}
