"""Leapfrog steps and trajectories of several chains as arrays with a row for each chain, one step of all at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyro_dgp.mcmc.trajectories import LARGEST_ERROR, Leap, Phase, Slopes, Trajectory, leapfrogs

#: Vectors of a piece of a trajectory: momenta of its first and last point, in the order in which they were reached, and the sums of all momenta of the
#: doubling before it and up to its end. All are times the square root of the metric's variances, so that products with velocities are products of two.
_FIRST, _LAST, _BEFORE, _AFTER = range(4)

#: What must be positive for two neighbouring pieces not to have turned: products of three sums with ends of the pieces (see :meth:`TrajectoryArrays._join`).
_SUMS, _POINTS = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 3, 0, 2, 1, 3])


class TrajectoryArrays:
    """Requests of several chains as arrays: a :class:`Leap` or a :class:`Trajectory` each, whose random numbers and results are those of :meth:`Trajectory.run`.

    Each step of a doubling ends pieces of 1, 2, 4, ... points. The last piece of each length that waits for its neighbour is kept, with the
    trajectory before the doubling as the longest. All pairs of neighbours that a step of any chain completes are looked at together, so that a
    step takes the same number of operations however many chains there are.

    :param requests: one for each row.
    """

    def __init__(self, requests: Sequence[Leap | Trajectory]) -> None:
        count, size = len(requests), 0 if not requests else len(requests[0].variances)
        self.requests = list(requests)
        self._rows = np.arange(count)
        self._is_leap = np.ones(count, bool)
        self._edge = np.zeros((count, 4, size))  # of the next step, which starts there
        self._variances, self._scales = np.ones((count, size)), np.ones((count, size))
        # Of the trajectory: its ends in time, the point drawn from it, and others of its numbers.
        self._ends, self._draw = np.zeros((count, 2, 4, size)), np.zeros((count, 4, size))
        self._total, self._density, self._energy = (np.zeros(shape) for shape in ((count, size), count, count))
        self._start_energy, self._weight, self._acceptance = (np.zeros(count) for _ in range(3))
        self._n_steps, self._depth, self._deepest = (np.zeros(count, int) for _ in range(3))
        self._has_moved = np.zeros(count, bool)
        # Of the doubling: as above, and what belongs to it alone.
        self._pieces = np.zeros((count, 1, 4, size))
        self._new, self._sum = np.zeros((count, 4, size)), np.zeros((count, size))
        self._new_density, self._new_energy, self._new_weight = (np.zeros(count) for _ in range(3))
        self._step, self._taken, self._count = np.zeros(count), np.zeros(count), np.zeros(count, int)
        self._side = np.zeros(count, int)
        self._uniform = np.zeros((count, 1))
        for row, request in enumerate(requests):
            self.put(row, request)

    def put(self, row: int, request: Leap | Trajectory) -> None:
        """Let a row begin what its chain asks for."""
        self.requests[row], start = request, request.start
        self._variances[row] = request.variances
        self._scales[row] = np.sqrt(request.variances)
        self._is_leap[row] = isinstance(request, Leap)
        if isinstance(request, Leap):
            self._edge[row], self._step[row] = start.numbers, request.step_size
            self._count[row], self._depth[row] = 0, 0
            return
        self._ends[row], self._draw[row] = start.numbers, start.numbers
        self._total[row] = self._scales[row] * start.momentum
        self._density[row], self._energy[row], self._start_energy[row] = start.log_density, start.energy, start.energy
        self._weight[row], self._acceptance[row], self._n_steps[row], self._depth[row] = 0.0, 0.0, 0, 0
        self._has_moved[row], self._deepest[row] = False, request.max_depth
        self._pieces = _grown_to(self._pieces, request.max_depth + 1)
        self._double(self._rows[row : row + 1])

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all rows but these."""
        self.requests = [self.requests[row] for row in rows]
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, value[list(rows)])
        self._rows = np.arange(len(rows))

    def step(self, slopes: Slopes) -> list[tuple[int, Phase]]:
        """Make a step of every row, and return the rows that have what they asked for, with the point to be sent to each."""
        ends, densities, energies = leapfrogs(self._edge, self._step, self._variances, slopes)
        self._edge = ends
        self._n_steps += 1
        self._count += 1
        with np.errstate(all="ignore"):  # what is not finite has infinite energy
            errors = energies - self._start_energy
            diverged = ~(errors < LARGEST_ERROR)
            self._draw_one(ends, densities, energies, errors)
            momenta = self._scales * ends[:, 1]
            is_complete = self._count == 1 << self._depth
            levels = np.frexp((self._count & -self._count).astype(float))[1] - 1  # how often two divides each count
            has_turned, is_over = self._join(momenta, levels + is_complete)
        stops = has_turned | diverged | self._is_leap
        waits = (~(stops | is_complete)).nonzero()[0]
        if len(waits):
            self._store(waits, levels[waits], momenta)
        grown = (is_complete & ~stops).nonzero()[0]
        if len(grown):
            stops[self._grown(grown, ends, is_over)] = True
        return [(row, self._result(row, densities, energies, diverged)) for row in stops.nonzero()[0].tolist()]

    def _draw_one(self, ends: np.ndarray, densities: np.ndarray, energies: np.ndarray, errors: np.ndarray) -> None:
        """Let the new points have their shares in the draws from the doublings."""
        weights = np.exp(-errors)
        self._acceptance += np.where(errors > 0, weights, 1.0)
        self._new_weight = np.logaddexp(self._new_weight, -errors)
        rows = (self._uniform[self._rows, self._count - 1] < np.exp(-errors - self._new_weight)).nonzero()[0]
        self._new[rows], self._new_density[rows], self._new_energy[rows] = ends[rows], densities[rows], energies[rows]

    def _join(self, momenta: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tell in which rows a piece of the doubling has turned, and in which the trajectory with the whole doubling has.

        The newest piece of each of the ``levels`` lengths is joined to its neighbour. The sum of all momenta is compared with the first and last point,
        and the sum over each piece with the nearest point of the other is compared with its own.
        """
        newest = self._pieces[:, 0]
        newest[:, _FIRST], newest[:, _LAST], newest[:, _BEFORE] = momenta, momenta, self._sum
        self._sum += momenta
        newest[:, _AFTER] = self._sum
        rows, lengths = (np.arange(self._pieces.shape[1] - 1) < levels[:, None]).nonzero()
        has_turned, is_over = np.zeros((2, len(momenta)), bool)
        if not len(rows):
            return has_turned, is_over
        near, after = self._pieces[rows, lengths + 1], self._sum[rows]
        middle = near[:, _AFTER]
        points = np.empty((len(rows), 4, momenta.shape[1]))
        points[:, :2] = near[:, : _LAST + 1]
        points[:, 2], points[:, 3] = self._pieces[rows, lengths, _FIRST], momenta[rows]
        sums = np.empty((len(rows), 3, momenta.shape[1]))
        np.subtract(after, near[:, _BEFORE], out=sums[:, 0])
        np.subtract(middle + points[:, 2], near[:, _BEFORE], out=sums[:, 1])
        np.subtract(after + points[:, 1], middle, out=sums[:, 2])
        products = sums @ points.swapaxes(1, 2)
        turns = (products[:, _SUMS, _POINTS] <= 0).any(1)
        is_whole = lengths == self._depth[rows]
        has_turned[rows[turns & ~is_whole]] = True
        is_over[rows[turns & is_whole]] = True
        return has_turned, is_over

    def _store(self, rows: np.ndarray, level: np.ndarray, momenta: np.ndarray) -> None:
        """Let the longest piece that has just ended wait for its neighbour."""
        piece = self._pieces[rows, level]
        piece[:, _LAST], piece[:, _AFTER] = momenta[rows], self._sum[rows]
        self._pieces[rows, level + 1] = piece

    def _grown(self, rows: np.ndarray, ends: np.ndarray, is_over: np.ndarray) -> np.ndarray:
        """Join complete doublings to their trajectories, begin the next ones, and return the rows that have none."""
        new, old = self._new_weight[rows], self._weight[rows]
        taken = rows[self._taken[rows] < np.exp(np.minimum(0.0, new - old))]
        self._draw[taken], self._has_moved[taken] = self._new[taken], True
        self._density[taken], self._energy[taken] = self._new_density[taken], self._new_energy[taken]
        self._weight[rows] = np.logaddexp(old, new)
        self._ends[rows, self._side[rows]] = ends[rows]
        self._total[rows] += self._sum[rows]
        self._depth[rows] += 1
        stops = is_over[rows] | (self._depth[rows] == self._deepest[rows])
        goes_on = rows[~stops]
        if len(goes_on):
            self._double(goes_on)
        return rows[stops]

    def _double(self, rows: np.ndarray) -> None:
        """Begin to double the trajectories of some rows, each at an end drawn at random."""
        for row in rows.tolist():
            request, length = self.requests[row], 2 ** int(self._depth[row])
            assert isinstance(request, Trajectory)
            self._uniform = _grown_to(self._uniform, length)
            numbers = request.random.uniform(2 + length)
            self._uniform[row, :length], self._taken[row] = numbers[2:], numbers[1]
            self._side[row] = side = int(numbers[0] < 0.5)
            self._step[row] = request.step_size if side else -request.step_size
        sides = self._side[rows]
        self._edge[rows] = edges = self._ends[rows, sides]
        self._count[rows], self._new_weight[rows], self._sum[rows] = 0, -np.inf, 0.0
        waits, scales = np.zeros((len(rows), *self._pieces.shape[2:])), self._scales[rows]
        waits[:, _FIRST], waits[:, _LAST] = scales * self._ends[rows, 1 - sides, 1], scales * edges[:, 1]
        waits[:, _BEFORE] = -self._total[rows]
        self._pieces[rows, self._depth[rows] + 1] = waits

    def _result(self, row: int, densities: np.ndarray, energies: np.ndarray, diverged: np.ndarray) -> Phase:
        """The point to be sent to the chain of a row, whose trajectory learns its figures."""
        request = self.requests[row]
        if isinstance(request, Leap):
            return Phase(self._edge[row].copy(), float(densities[row]), float(energies[row]))
        request.n_steps, request.acceptance = int(self._n_steps[row]), float(self._acceptance[row])
        request.diverging = bool(diverged[row])
        if not self._has_moved[row]:
            return request.start
        return Phase(self._draw[row].copy(), float(self._density[row]), float(self._energy[row]))


def _grown_to(array: np.ndarray, columns: int) -> np.ndarray:
    """An array with so many columns at least, new ones full of zeros."""
    missing = columns - array.shape[1]
    return np.concatenate([array, np.zeros((len(array), missing, *array.shape[2:]))], 1) if missing > 0 else array
