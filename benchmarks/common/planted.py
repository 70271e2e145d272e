"""Data sets with a known function: of many inputs that do not matter, and simulators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.common.simulators import simulated
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.splitting import random_folds

ROWS, INPUTS = 6000, 32


def _dataset(name: str, function: Callable[[np.ndarray], np.ndarray], *, noise: float, seed: int) -> Dataset:
    """Uniform inputs of unit variance, a function of unit variance, and normal noise; ten folds as splits."""
    random = np.random.RandomState(seed)
    x = random.uniform(-1, 1, (ROWS, INPUTS)) * 3**0.5
    f = function(x)
    y = f / f.std() + noise * random.randn(ROWS)
    return Dataset(name, x, y, splits=random_folds(ROWS, 10, seed=seed))


def sum_of_few() -> Dataset:
    """``sin(2 x_1) + 0.7 x_2 x_3 + 0.5 cos(2 x_4)`` of 32 inputs: parts that act by themselves."""
    return _dataset(
        "sum-of-few",
        lambda x: np.sin(2 * x[:, 0]) + 0.7 * x[:, 1] * x[:, 2] + 0.5 * np.cos(2 * x[:, 3]),
        noise=0.22,
        seed=7,
    )


def product_of_few() -> Dataset:
    """``x_1 sin(2.5 x_2) (1 + x_3 / 2)`` of 32 inputs: no input acts by itself, so that fits stop at "all is noise"."""
    return _dataset(
        "product-of-few",
        lambda x: x[:, 0] * np.sin(2.5 * x[:, 1]) * (1 + 0.5 * x[:, 2]),
        noise=0.3,
        seed=11,
    )


#: Data that need no folder, by name.
PLANTED: dict[str, Callable[[], Dataset]] = {
    "sum-of-few": sum_of_few,
    "product-of-few": product_of_few,
    "wing-weight-300": partial(simulated, "wing-weight", 300),
    "wing-weight-3000": partial(simulated, "wing-weight", 3000),
    "robot-arm-300": partial(simulated, "robot-arm", 300),
}
