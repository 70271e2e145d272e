"""Computations in step give what each gives alone."""

import numpy as np

from pyro_dgp.mcmc.lockstep import lockstep


def walk(start, count):
    """Follow gradients for some steps and return the last position."""
    position = np.array([start])
    for _ in range(count):
        _, gradient = yield position
        position = position + 0.1 * gradient
    return float(position[0])


def slopes(positions):
    return [(0.0, -position) for position in positions]


def test_each_gives_what_it_gives_alone():
    asked = []

    def counted(positions):
        asked.append(len(positions))
        return slopes(positions)

    plans = [(1.0, 3), (2.0, 0), (-1.0, 5), (4.0, 3)]
    together = lockstep([walk(*plan) for plan in plans], counted)
    assert together == [lockstep([walk(*plan)], slopes)[0] for plan in plans]
    assert asked == [3, 3, 3, 1, 1]  # all that is wanted at once, and nothing else


def test_nothing_to_run_asks_for_nothing():
    assert lockstep([], slopes) == []
