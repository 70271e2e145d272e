"""Several chains in step: each asks for one gradient at a time, and all that are asked for are computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from pyro_dgp.mcmc.trajectories import Result, Slope, Steps

#: From positions ``(C, n)`` to the slope at each.
Slopes = Callable[[np.ndarray], list[Slope]]


def lockstep(runs: Iterable[Steps[Result]], slopes: Slopes) -> list[Result]:
    """Run computations that ask for slopes to their ends, and return their results in order."""
    runs = list(runs)
    results: dict[int, Result] = {}
    wanted: dict[int, np.ndarray] = {}

    def go_on(number: int, slope: Slope | None) -> None:
        try:
            wanted[number] = next(runs[number]) if slope is None else runs[number].send(slope)
        except StopIteration as end:
            wanted.pop(number, None)
            results[number] = end.value

    for number in range(len(runs)):
        go_on(number, None)
    while wanted:
        for number, slope in zip(list(wanted), slopes(np.stack(list(wanted.values()))), strict=True):
            go_on(number, slope)
    return [results[number] for number in range(len(runs))]
