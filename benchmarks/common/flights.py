"""A generator of the flight-delay kind: eight inputs, a non-stationary mean in which causes multiply, heavy skewed noise of known size.

Delays of a day pile up, and what makes one flight late makes a late one later: the expected delay is the exponential of a sum over inputs. It
changes quickly in rush hours and around holidays and slowly elsewhere. Nothing here is estimated from data, and no method was run before it was fixed.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from pyro_dgp import Stream
from pyro_dgp.data.dataset import Array
from pyro_dgp.data.streams import Block

#: Names and ranges of the inputs, which are scaled to [0, 1].
INPUTS = {
    "month": (1.0, 12.0),
    "day of the month": (1.0, 31.0),
    "day of the week": (1.0, 7.0),
    "hour of departure": (0.0, 24.0),
    "hour of arrival": (0.0, 24.0),
    "air time (h)": (0.5, 8.0),
    "distance (1000 km)": (0.2, 7.0),
    "age of the plane (years)": (0.0, 30.0),
}
#: Variance of the noise as a share of the variance of the targets: the mean squared error of the best predictor of standardised targets.
BAYES_ERROR = 0.775
BLOCK_ROWS = 50_000


def _bump(x: Array, centre: float, width: float) -> Array:
    bump: Array = np.exp(-(((x - centre) / width) ** 2))
    return bump


def draw_inputs(generator: np.random.Generator, rows: int) -> Array:
    """Draw inputs ``(rows, 8)`` in their own units."""
    month, day, weekday = (generator.integers(1, high + 1, rows).astype(float) for high in (12, 31, 7))
    peak = generator.random(rows)
    departure = np.where(
        peak < 0.3,
        generator.normal(8, 1.5, rows),
        np.where(peak < 0.6, generator.normal(17.5, 2, rows), generator.uniform(5, 23, rows)),
    ).clip(0, 23.99)
    air_time = np.exp(generator.normal(0.6, 0.6, rows)).clip(0.5, 8)
    distance = (0.85 * air_time * generator.normal(1, 0.08, rows)).clip(0.2, 7)
    arrival = (departure + air_time + generator.normal(0, 0.3, rows)) % 24
    age = generator.gamma(3, 4, rows).clip(0, 30)
    return np.stack([month, day, weekday, departure, arrival, air_time, distance, age], 1)


def log_delay(x: Array) -> Array:
    """Logarithm of the expected delay, a sum over inputs."""
    month, day, weekday, departure, arrival, air_time, distance, age = x.T
    season = 0.35 * np.cos(2 * np.pi * (month - 7) / 12) + 0.5 * _bump(month, 12, 0.7)
    holidays = 0.6 * _bump(day, 24, 1.5) + 0.3 * _bump(day, 1, 1.0)
    week = 0.3 * _bump(weekday, 5, 0.8) + 0.25 * _bump(weekday, 7, 0.6)
    rush = 0.05 * departure + 0.6 * _bump(departure, 8, 0.8) + 0.7 * _bump(departure, 17.5, 1.2)
    curfew = 0.5 / (1 + np.exp(-3 * (arrival - 21))) + 0.3 * _bump(arrival, 9, 0.8)
    length = -0.15 * air_time + 0.1 * np.sin(2 * distance)
    plane: Array = 0.6 / (1 + np.exp(-0.8 * (age - 15)))
    total: Array = season + holidays + week + rush + curfew + length + plane
    return total


@lru_cache(maxsize=1)
def _moments() -> tuple[float, float]:
    """Mean and standard deviation of the expected delay over the inputs."""
    delay = np.exp(log_delay(draw_inputs(np.random.default_rng(0), 1_000_000)))
    return float(delay.mean()), float(delay.std())


def expected(x: Array) -> Array:
    """Expected standardised target at inputs ``(rows, 8)`` in their own units: its variance is ``1 - BAYES_ERROR``."""
    mean, deviation = _moments()
    found: Array = (np.exp(log_delay(x)) - mean) / deviation * (1 - BAYES_ERROR) ** 0.5
    return found


def scaled(x: Array) -> Array:
    """Inputs in [0, 1]."""
    low, high = np.array(list(INPUTS.values())).T
    found: Array = (x - low) / (high - low)
    return found


def expected_at(x: torch.Tensor) -> torch.Tensor:
    """Expected standardised target at inputs in [0, 1]: the best predictor."""
    low, high = np.array(list(INPUTS.values())).T
    return torch.as_tensor(expected(low + (high - low) * x.double().cpu().numpy())).to(x)


class Flights(Stream):
    """Rows that are drawn block by block, the same ones each time.

    :param rows: number of rows.
    :param seed: another one has other rows.
    :param device: of the batches.
    """

    def __init__(self, rows: int, seed: int, dtype: torch.dtype | None = None, *, device: str = "cpu") -> None:
        super().__init__(dtype, device)
        self.seed = seed
        self.sizes = [min(BLOCK_ROWS, rows - start) for start in range(0, rows, BLOCK_ROWS)]

    def read(self, block: int) -> Block:
        """See :class:`~pyro_dgp.Stream`. Noise is exponential, centred."""
        generator = np.random.default_rng((self.seed, block))
        x = draw_inputs(generator, self.sizes[block])
        noise = (generator.exponential(size=len(x)) - 1) * BAYES_ERROR**0.5
        return scaled(x), expected(x) + noise
