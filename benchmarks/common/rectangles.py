"""A generator of the task of Rectangles-images: is a rectangle tall or wide?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.tasks import Task

#: Pixels of a side, least difference of the sides of a rectangle, and rows of training and test of the published set.
SIDE, LEAST, TRAINING, TEST = 28, 3, 12_000, 50_000


def rectangles(training: int = TRAINING, test: int = TEST, seed: int = 0) -> Dataset:
    """Images ``(N, 784)`` of a patch of one photograph with a rectangle cut from another laid over it; class 1 is taller than wide.

    The photographs are the two that scikit-learn ships, in grey; which of them lies on top is drawn for each image. Sides have at least 3 pixels and
    differ by at least 3 (Larochelle et al. 2007, section 4.1, whose photographs are others). Test images are cut from the right third of the
    photographs and training images from the rest. The one split is that of the published set.
    """
    generator = np.random.RandomState(seed)
    photographs = _photographs()
    x = np.empty((training + test, SIDE * SIDE))
    y = np.empty(training + test)
    for row in range(len(x)):
        top = generator.randint(2)
        over, under = (_patch(photographs[index], row >= training, generator) for index in (top, 1 - top))
        height, width = _sides(generator)
        first, left = generator.randint(SIDE - height + 1), generator.randint(SIDE - width + 1)
        under[first : first + height, left : left + width] = over[first : first + height, left : left + width]
        x[row], y[row] = under.ravel(), height > width
    mask = np.zeros((len(x), 1), dtype=bool)
    mask[training:] = True
    return Dataset("rectangles", x, y, splits=mask, task=Task("binary", 2), target="taller than wide")


def _photographs() -> list[NDArray[np.float64]]:
    from sklearn.datasets import load_sample_image

    return [load_sample_image(name).mean(-1) / 255 for name in ("china.jpg", "flower.jpg")]


def _patch(photograph: NDArray[np.float64], is_test: bool, generator: np.random.RandomState) -> NDArray[np.float64]:
    rows, columns = photograph.shape
    border = 2 * columns // 3
    left = generator.randint(border, columns - SIDE) if is_test else generator.randint(0, border - SIDE)
    first = generator.randint(0, rows - SIDE)
    return photograph[first : first + SIDE, left : left + SIDE].copy()


def _sides(generator: np.random.RandomState) -> tuple[int, int]:
    """Height and width."""
    while True:
        height, width = generator.randint(3, SIDE + 1, size=2)
        if abs(height - width) >= LEAST:
            return int(height), int(width)
