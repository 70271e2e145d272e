"""The No-U-Turn sampler on vectors: points, leapfrog steps and a trajectory that asks for one step at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")

#: From positions ``(C, n)`` to the log density at each, nats up to a constant, ``(C,)``, and the gradients ``(C, n)``.
Slopes = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

#: Error of the energy, nats, above which a trajectory has diverged.
LARGEST_ERROR = 1000.0


class Random:
    """Random numbers of one chain, whatever else draws random numbers.

    :param seed: a number from which they follow.
    """

    def __init__(self, seed: int) -> None:
        self.generator = np.random.Generator(np.random.PCG64(seed))

    def normal(self, count: int) -> np.ndarray:
        """Draw standard normal numbers."""
        return self.generator.standard_normal(count)

    def uniform(self, count: int) -> np.ndarray:
        """Draw numbers between zero and one."""
        return self.generator.random(count)

    def state(self) -> str:
        """Return the state as text."""
        return json.dumps(self.generator.bit_generator.state)

    def set_state(self, state: str) -> None:
        """Set what ``state`` returned."""
        self.generator.bit_generator.state = json.loads(state)


@dataclass(slots=True)
class Phase:
    """A point of a trajectory.

    :ivar numbers: position, momentum, velocity (the momentum times the variances of the metric) and gradient of the log density, ``(4, n)``:
        one array, so that those of several chains are joined at once.
    :ivar log_density: nats, up to a constant.
    :ivar energy: minus the log density plus the kinetic energy, nats; infinite where it is not finite.
    """

    numbers: np.ndarray
    log_density: float
    energy: float

    @classmethod
    def of(
        cls,
        position: np.ndarray,
        momentum: np.ndarray,
        slope: tuple[float, np.ndarray],
        variances: np.ndarray,
    ) -> Phase:
        """Build the point with its velocity and energy from the log density there and its gradient."""
        log_density, gradient = slope
        velocity = variances * momentum
        energy = 0.5 * float(momentum.dot(velocity)) - log_density
        numbers = np.stack([position, momentum, velocity, gradient])
        return cls(numbers, log_density, energy if math.isfinite(energy) else math.inf)

    @property
    def position(self) -> np.ndarray:
        """Position, ``(n,)``."""
        return self.numbers[0]

    @property
    def momentum(self) -> np.ndarray:
        """Momentum, ``(n,)``."""
        return self.numbers[1]

    @property
    def velocity(self) -> np.ndarray:
        """Momentum times the variances of the metric, ``(n,)``."""
        return self.numbers[2]

    @property
    def gradient(self) -> np.ndarray:
        """Gradient of the log density, ``(n,)``."""
        return self.numbers[3]


@dataclass(slots=True)
class Leap:
    """A leapfrog step that a chain asks for.

    :ivar step_size: negative where the step goes backwards in time.
    :ivar variances: diagonal of the inverse mass matrix.
    """

    start: Phase
    step_size: float
    variances: np.ndarray

    @classmethod
    def onto(cls, position: np.ndarray, variances: np.ndarray) -> Leap:
        """The step of size zero that ends at rest at a position, whose slope is not known yet."""
        at_rest = np.zeros((4, len(position)))
        at_rest[0] = position
        return cls(Phase(at_rest, 0.0, 0.0), 0.0, variances)


def leapfrogs(
    starts: np.ndarray, step_sizes: np.ndarray, variances: np.ndarray, slopes: Slopes
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make leapfrog steps of several chains, whose slopes are asked for at once.

    :param starts: ``numbers`` of their phases, ``(C, 4, n)``; ``step_sizes`` ``(C,)``, ``variances`` ``(C, n)``.
    :returns: numbers ``(C, 4, n)``, log densities and energies ``(C,)`` at the ends.
    """
    ends, steps = np.empty_like(starts), step_sizes[:, None]
    with np.errstate(all="ignore"):  # what is not finite has infinite energy
        half = starts[:, 1] + (0.5 * steps) * starts[:, 3]
        positions = starts[:, 0] + steps * (variances * half)  # contiguous, as a compiled program takes it
        log_densities, ends[:, 3] = slopes(positions)
        ends[:, 0] = positions
        ends[:, 1] = half + (0.5 * steps) * ends[:, 3]
        ends[:, 2] = variances * ends[:, 1]
        energies = 0.5 * np.einsum("cn,cn->c", ends[:, 1], ends[:, 2]) - log_densities
    energies[~np.isfinite(energies)] = np.inf
    return ends, log_densities, energies


@dataclass(slots=True)
class _Tree:
    """A piece of a trajectory.

    :ivar first: its earliest point in time; ``last``, its latest.
    :ivar momentum: sum of the momenta.
    :ivar ends: whether it has turned, so that the trajectory ends.
    """

    first: Phase
    last: Phase
    momentum: np.ndarray
    ends: bool = False


class Trajectory:
    """One trajectory of the No-U-Turn sampler (Hoffman and Gelman 2014) with multinomial draws and the U-turn criterion of Betancourt (2017).

    It is doubled, forwards or backwards in time, until it turns back. The criterion is also asked of each half with the nearest point of
    the other, as in Stan. A chain that yields it is sent the point drawn from it.

    :param start: the point that it goes through.
    :param step_size: of the leapfrog steps.
    :param variances: diagonal of the inverse mass matrix.
    :param max_depth: largest number of doublings.
    :param random: source of random numbers: ``2 + 2**d`` for the doubling number ``d``.
    :ivar n_steps: gradients so far.
    :ivar acceptance: sum over the points of the probability to accept each from the start.
    :ivar diverging: whether the energy has gone astray.
    """

    def __init__(self, start: Phase, step_size: float, variances: np.ndarray, max_depth: int, random: Random) -> None:
        self.start, self.step_size, self.variances, self.max_depth = start, step_size, variances, max_depth
        self.random = random
        self.n_steps, self.acceptance, self.diverging = 0, 0.0, False

    def run(self) -> Generator[Leap, Phase, Phase]:
        """Yield the steps of the trajectory and return the point drawn from it, each with weight ``exp(-energy)``."""
        start = self.start
        tree, draw, log_weight = _Tree(start, start, start.momentum), start, 0.0
        for depth in range(self.max_depth):
            forward, taken, *each = self.random.uniform(2 + 2**depth).tolist()
            is_forward = forward < 0.5
            grown = yield from self._grown(tree.last if is_forward else tree.first, each, is_forward)
            if grown is None:
                break
            new, new_draw, new_weight = grown
            if taken < math.exp(min(0.0, new_weight - log_weight)):
                draw = new_draw
            tree, log_weight = _joined(tree, new, is_forward), log_sum(log_weight, new_weight)
            if tree.ends:
                break
        return draw

    def _grown(
        self, edge: Phase, uniform: list[float], is_forward: bool
    ) -> Generator[Leap, Phase, tuple[_Tree, Phase, float] | None]:
        """Grow as many points after an edge, or before it, as there are random numbers; return them, one drawn from them, and the logarithm of the sum of their weights.

        There is no result where they turn or diverge. Pieces of equal length are joined as soon as there are two, as the leaves of a binary tree are from the
        first to the last.
        """
        step_size = self.step_size if is_forward else -self.step_size
        pieces: list[_Tree] = []
        draw, log_weight = edge, -math.inf
        for count, number in enumerate(uniform, 1):
            edge = yield Leap(edge, step_size, self.variances)
            error = edge.energy - self.start.energy
            self.n_steps += 1
            self.acceptance += math.exp(-error) if error > 0 else 1.0
            if not error < LARGEST_ERROR:
                self.diverging = True
                return None
            log_weight = log_sum(log_weight, -error)
            if number < math.exp(-error - log_weight):
                draw = edge
            piece = _Tree(edge, edge, edge.momentum)
            while count % 2 == 0:
                piece = _joined(pieces.pop(), piece, is_forward)
                if piece.ends:
                    return None
                count //= 2
            pieces.append(piece)
        return pieces[0], draw, log_weight


def _joined(near: _Tree, far: _Tree, is_forward: bool) -> _Tree:
    """Join two neighbouring pieces into one."""
    before, after = (near, far) if is_forward else (far, near)
    first, last, momentum = before.first, after.last, before.momentum + after.momentum
    turns = _turns(momentum, first, last)
    if not turns and first is not before.last:  # of two single points the halves are the whole
        turns = _turns(before.momentum + after.first.momentum, first, after.first) or _turns(
            before.last.momentum + after.momentum, before.last, last
        )
    return _Tree(first, last, momentum, turns)


def _turns(momentum: np.ndarray, first: Phase, last: Phase) -> bool:
    """Whether a piece with this sum of momenta has begun to turn back at either end."""
    return bool(momentum.dot(first.velocity) <= 0 or momentum.dot(last.velocity) <= 0)


def log_sum(a: float, b: float) -> float:
    """``log(exp(a) + exp(b))``; both may be minus infinity."""
    larger, smaller = (a, b) if a >= b else (b, a)
    return larger if smaller == -math.inf else larger + math.log1p(math.exp(smaller - larger))


#: A computation of a chain. It yields leapfrog steps and trajectories, is sent the point at the end of a step and the point drawn from a trajectory, and
#: returns a result.
Steps = Generator[Leap | Trajectory, Phase, Result]
