"""Computations in step give what each gives alone."""

import numpy as np
import pytest

from pyro_dgp.mcmc.lockstep import lockstep
from pyro_dgp.mcmc.trajectories import Leap

VARIANCES = np.array([0.5, 2.0])


def walk(start, count):
    """Make some leapfrog steps and return the last position."""
    at = yield Leap.onto(np.array([start, 1.0]), VARIANCES)
    for _ in range(count):
        at = yield Leap(at, 0.1 * start, VARIANCES)
    return tuple(at.position)


def slopes(positions):
    return -0.5 * (positions**2).sum(1), -positions


@pytest.mark.parametrize("repeats", [1, 3])
def test_each_gives_what_it_gives_alone(repeats):
    """Four computations, and twelve, which are arrays."""
    asked = []

    def counted(positions):
        asked.append(len(positions))
        return slopes(positions)

    plans = repeats * [(1.0, 3), (2.0, 0), (-1.0, 5), (4.0, 3)]
    together = lockstep([walk(*plan) for plan in plans], counted)
    assert together == [lockstep([walk(*plan)], slopes)[0] for plan in plans]
    assert asked == [repeats * count for count in (4, 3, 3, 3, 1, 1)]  # all that is wanted at once, and nothing else


def test_nothing_to_run_asks_for_nothing():
    assert lockstep([], slopes) == []
