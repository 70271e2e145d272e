"""Several chains in step: each asks for one leapfrog step at a time, and all that are asked for are made together."""

from __future__ import annotations

from collections.abc import Iterable

from pyro_dgp.mcmc.trajectories import Leap, Phase, Result, Slopes, Steps, leapfrog


def lockstep(runs: Iterable[Steps[Result]], slopes: Slopes) -> list[Result]:
    """Run computations that ask for leapfrog steps to their ends, and return their results in order."""
    runs = list(runs)
    results: dict[int, Result] = {}
    wanted: dict[int, Leap] = {}

    def go_on(number: int, phase: Phase | None) -> None:
        try:
            wanted[number] = next(runs[number]) if phase is None else runs[number].send(phase)
        except StopIteration as end:
            wanted.pop(number, None)
            results[number] = end.value

    for number in range(len(runs)):
        go_on(number, None)
    while wanted:
        for number, phase in zip(list(wanted), leapfrog(list(wanted.values()), slopes), strict=True):
            go_on(number, phase)
    return [results[number] for number in range(len(runs))]
