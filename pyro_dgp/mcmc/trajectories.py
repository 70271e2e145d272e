"""The No-U-Turn sampler on vectors, as a generator that asks for one leapfrog step at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Sequence
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

    def uniform(self) -> float:
        """Draw a number between zero and one."""
        return self.generator.random()

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


#: A computation that yields leapfrog steps, is sent the point at the end of each, and returns a result.
Steps = Generator[Leap, Phase, Result]


def leapfrog(leaps: Sequence[Leap], slopes: Slopes) -> list[Phase]:
    """Make leapfrog steps of several chains, whose slopes are asked for at once."""
    starts = np.concatenate([leap.start.numbers for leap in leaps]).reshape(len(leaps), 4, -1)
    variances = np.concatenate([leap.variances for leap in leaps]).reshape(len(leaps), -1)
    steps = np.array([leap.step_size for leap in leaps])[:, None]
    ends = np.empty_like(starts)
    with np.errstate(all="ignore"):  # what is not finite has infinite energy
        half = starts[:, 1] + (0.5 * steps) * starts[:, 3]
        positions = starts[:, 0] + steps * (
            variances * half
        )  # an array of its own, contiguous, as a compiled program takes it
        log_densities, ends[:, 3] = slopes(positions)
        ends[:, 0] = positions
        ends[:, 1] = half + (0.5 * steps) * ends[:, 3]
        ends[:, 2] = variances * ends[:, 1]
        energies = 0.5 * (ends[:, 1] * ends[:, 2]).sum(1) - log_densities
    energies[~np.isfinite(energies)] = np.inf
    return [Phase(*end) for end in zip(ends, log_densities.tolist(), energies.tolist(), strict=True)]


@dataclass(slots=True)
class _Tree:
    """A piece of a trajectory.

    :ivar first: its earliest point in time; ``last``, its latest.
    :ivar draw: the point drawn from it, each with weight ``exp(-energy)``.
    :ivar log_weight: logarithm of the sum of the weights.
    :ivar momentum: sum of the momenta.
    :ivar ends: whether it has turned, or diverged, so that the trajectory ends.
    """

    first: Phase
    last: Phase
    draw: Phase
    log_weight: float
    momentum: np.ndarray
    ends: bool = False


class Trajectory:
    """One trajectory of the No-U-Turn sampler (Hoffman and Gelman 2014) with multinomial draws and the U-turn criterion of Betancourt (2017).

    It is doubled, forwards or backwards in time, until it turns back. The criterion is also asked of each half with the nearest point of
    the other, as in Stan.

    :param step_size: of the leapfrog steps.
    :param variances: diagonal of the inverse mass matrix.
    :param max_depth: largest number of doublings.
    :param random: source of random numbers.
    :ivar n_steps: gradients so far.
    :ivar acceptance: sum over the points of the probability to accept each from the start.
    :ivar diverging: whether the energy has gone astray.
    """

    def __init__(self, step_size: float, variances: np.ndarray, max_depth: int, random: Random) -> None:
        self.step_size, self.variances, self.max_depth, self.random = step_size, variances, max_depth, random
        self.n_steps, self.acceptance, self.diverging = 0, 0.0, False
        self._energy = 0.0

    def run(self, start: Phase) -> Steps[Phase]:
        """Yield the steps of the trajectory through ``start`` and return the point drawn from it."""
        self._energy = start.energy
        tree = _Tree(start, start, start, 0.0, start.momentum)
        for depth in range(self.max_depth):
            is_forward = self.random.uniform() < 0.5
            new = yield from self._grown(tree.last if is_forward else tree.first, depth, is_forward)
            if new.ends:
                break
            draw = new.draw if self._happens(new.log_weight - tree.log_weight) else tree.draw
            tree = _joined(tree, new, is_forward, draw, log_sum(tree.log_weight, new.log_weight))
            if tree.ends:
                break
        return tree.draw

    def _grown(self, edge: Phase, depth: int, is_forward: bool) -> Steps[_Tree]:
        """Build the ``2**depth`` points after an edge, or before it; fewer where they turn or diverge.

        Pieces of equal length are joined as soon as there are two, as the leaves of a binary tree are from the first to the last.
        """
        step_size = self.step_size if is_forward else -self.step_size
        pieces: list[_Tree] = []
        for count in range(1, 2**depth + 1):
            edge = yield Leap(edge, step_size, self.variances)
            error = edge.energy - self._energy
            self.n_steps += 1
            self.acceptance += math.exp(-error) if error > 0 else 1.0
            piece = _Tree(edge, edge, edge, -error, edge.momentum, not error < LARGEST_ERROR)
            if piece.ends:
                self.diverging = True
                return piece
            while count % 2 == 0:
                near, far = pieces.pop(), piece
                log_weight = log_sum(near.log_weight, far.log_weight)
                draw = far.draw if self._happens(far.log_weight - log_weight) else near.draw
                piece = _joined(near, far, is_forward, draw, log_weight)
                if piece.ends:
                    return piece
                count //= 2
            pieces.append(piece)
        return pieces[0]

    def _happens(self, log_probability: float) -> bool:
        """Draw whether something of this probability happens; from one on it is certain."""
        return bool(log_probability >= 0 or self.random.uniform() < math.exp(log_probability))


def _joined(near: _Tree, far: _Tree, is_forward: bool, draw: Phase, log_weight: float) -> _Tree:
    """Join two neighbouring pieces into one, with the point drawn from both."""
    before, after = (near, far) if is_forward else (far, near)
    first, last, momentum = before.first, after.last, before.momentum + after.momentum
    turns = _turns(momentum, first, last)
    if not turns and first is not before.last:  # of two single points the halves are the whole
        turns = _turns(before.momentum + after.first.momentum, first, after.first) or _turns(
            before.last.momentum + after.momentum, before.last, last
        )
    return _Tree(first, last, draw, log_weight, momentum, turns)


def _turns(momentum: np.ndarray, first: Phase, last: Phase) -> bool:
    """Whether a piece with this sum of momenta has begun to turn back at either end."""
    return bool(momentum.dot(first.velocity) <= 0 or momentum.dot(last.velocity) <= 0)


def log_sum(a: float, b: float) -> float:
    """``log(exp(a) + exp(b))``; both may be minus infinity."""
    larger, smaller = (a, b) if a >= b else (b, a)
    return larger if smaller == -math.inf else larger + math.log1p(math.exp(smaller - larger))
