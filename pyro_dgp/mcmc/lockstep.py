"""Several chains in step: each asks for leapfrog steps and trajectories, and a step of all of them is made at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from pyro_dgp.mcmc.trajectories import Leap, Phase, Result, Slopes, Steps, Trajectory, leapfrogs
from pyro_dgp.mcmc.trajectory_arrays import TrajectoryArrays

#: Chains from which on their trajectories are arrays. A step of arrays takes the time of a step of about a dozen trajectories of points.
_MANY = 12


class _Requests(Protocol):
    """Requests of several chains, with a row for each."""

    def put(self, row: int, request: Leap | Trajectory) -> None: ...

    def keep(self, rows: Sequence[int]) -> None: ...

    def step(self, slopes: Slopes) -> list[tuple[int, Phase]]: ...


def lockstep(runs: Iterable[Steps[Result]], slopes: Slopes) -> list[Result]:
    """Run computations of chains of one model to their ends, and return their results in order.

    Each gives what it gives alone, up to rounding. Few have trajectories of points (:meth:`Trajectory.run`), and many have arrays.
    """
    runs = list(runs)
    many = len(runs) >= _MANY
    if not many:
        runs = [_by_leaps(run) for run in runs]
    results: dict[int, Result] = {}

    def next_of(number: int, phase: Phase | None) -> Leap | Trajectory | None:
        try:
            return next(runs[number]) if phase is None else runs[number].send(phase)
        except StopIteration as end:
            results[number] = end.value
            return None

    first = {number: next_of(number, None) for number in range(len(runs))}
    wanted = {number: request for number, request in first.items() if request is not None}
    rows = list(wanted)  # the chain of each row
    requests: _Requests = (TrajectoryArrays if many else _Leaps)(list(wanted.values()))
    while rows:
        ended = []
        for row, phase in requests.step(slopes):
            request = next_of(rows[row], phase)
            if request is None:
                ended.append(row)
            else:
                requests.put(row, request)
        if ended:
            left = [row for row in range(len(rows)) if row not in ended]
            rows = [rows[row] for row in left]
            requests.keep(left)
    return [results[number] for number in range(len(runs))]


def _by_leaps(run: Steps[Result]) -> Steps[Result]:
    """A computation that asks for each leapfrog step of its trajectories, and for nothing else."""
    phase: Phase | None = None
    while True:
        try:
            request = next(run) if phase is None else run.send(phase)
        except StopIteration as end:
            result: Result = end.value
            return result
        if isinstance(request, Trajectory):
            phase = yield from request.run()
        else:
            phase = yield request


class _Leaps:
    """Leapfrog steps that several chains ask for."""

    def __init__(self, requests: Sequence[Leap | Trajectory]) -> None:
        self.requests = list(requests)

    def put(self, row: int, request: Leap | Trajectory) -> None:
        """Let a row begin what its chain asks for."""
        self.requests[row] = request

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all rows but these."""
        self.requests = [self.requests[row] for row in rows]

    def step(self, slopes: Slopes) -> list[tuple[int, Phase]]:
        """Make the step of every row, and return the point at the end of each."""
        starts = np.array([each.start.numbers for each in self.requests])
        variances = np.array([each.variances for each in self.requests])
        ends = leapfrogs(starts, np.array([each.step_size for each in self.requests]), variances, slopes)
        numbers, densities, energies = ends
        return list(enumerate(map(Phase, numbers, densities.tolist(), energies.tolist())))
