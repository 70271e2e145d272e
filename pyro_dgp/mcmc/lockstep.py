"""Several chains in step: each asks for leapfrog steps and trajectories, and a step of all of them is made at a time."""

from __future__ import annotations

from collections.abc import Iterable

from pyro_dgp.mcmc.trajectories import Leap, Phase, Result, Slopes, Steps, Trajectory, leapfrog
from pyro_dgp.mcmc.trajectory_arrays import TrajectoryArrays


def lockstep(runs: Iterable[Steps[Result]], slopes: Slopes) -> list[Result]:
    """Run computations of chains of one model to their ends, and return their results in order.

    Each gives what it gives alone (:func:`alone`), up to rounding.
    """
    runs = list(runs)
    if len(runs) == 1:
        return [alone(runs[0], slopes)]
    results: dict[int, Result] = {}

    def next_of(number: int, phase: Phase | None) -> Leap | Trajectory | None:
        try:
            return next(runs[number]) if phase is None else runs[number].send(phase)
        except StopIteration as end:
            results[number] = end.value
            return None

    first = {number: next_of(number, None) for number in range(len(runs))}
    wanted = {number: request for number, request in first.items() if request is not None}
    rows = list(wanted)  # the chain of each row of the arrays
    arrays = TrajectoryArrays(list(wanted.values()))
    while rows:
        ended = []
        for row, phase in arrays.step(slopes):
            request = next_of(rows[row], phase)
            if request is None:
                ended.append(row)
            else:
                arrays.put(row, request)
        if ended:
            left = [row for row in range(len(rows)) if row not in ended]
            rows = [rows[row] for row in left]
            arrays.keep(left)
    return [results[number] for number in range(len(runs))]


def alone(run: Steps[Result], slopes: Slopes) -> Result:
    """Run the computation of one chain to its end."""
    try:
        request = next(run)
        while True:
            if isinstance(request, Trajectory):
                request = run.send(alone(request.run(), slopes))
            else:
                request = run.send(leapfrog(request, slopes))
    except StopIteration as end:
        result: Result = end.value
        return result
