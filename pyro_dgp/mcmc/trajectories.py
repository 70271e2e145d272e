"""The No-U-Turn sampler on vectors, as a generator that asks for one gradient at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

#: Log density at a position, nats up to a constant, and its gradient.
Slope = tuple[float, np.ndarray]

Result = TypeVar("Result")

#: A computation that yields positions, is sent the slope at each, and returns a result.
Steps = Generator[np.ndarray, Slope, Result]

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

    :ivar velocity: the momentum times the variances of the metric.
    :ivar energy: minus the log density plus the kinetic energy, nats; infinite where it is not finite.
    """

    position: np.ndarray
    momentum: np.ndarray
    velocity: np.ndarray
    log_density: float
    gradient: np.ndarray
    energy: float

    @classmethod
    def of(cls, position: np.ndarray, momentum: np.ndarray, slope: Slope, variances: np.ndarray) -> Phase:
        """Build the point with its velocity and energy."""
        log_density, gradient = slope
        velocity = variances * momentum
        energy = 0.5 * float(momentum.dot(velocity)) - log_density
        return cls(position, momentum, velocity, log_density, gradient, energy if math.isfinite(energy) else math.inf)


def leapfrog(at: Phase, step_size: float, variances: np.ndarray) -> Steps[Phase]:
    """Make one leapfrog step, forwards in time where the step size is positive."""
    half = at.momentum + (0.5 * step_size) * at.gradient
    position = at.position + step_size * (variances * half)
    slope = yield position
    return Phase.of(position, half + (0.5 * step_size) * slope[1], slope, variances)


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
        """Yield positions of the trajectory through ``start`` and return the point drawn from it."""
        self._energy = start.energy
        tree = _Tree(start, start, start, 0.0, start.momentum)
        for depth in range(self.max_depth):
            is_forward = self.random.uniform() < 0.5
            new = yield from self._grown(tree.last if is_forward else tree.first, depth, is_forward)
            if new.ends:
                break
            draw = new.draw if self._happens(new.log_weight - tree.log_weight) else tree.draw
            tree = self._joined(tree, new, is_forward, draw)
            if tree.ends:
                break
        return tree.draw

    def _grown(self, edge: Phase, depth: int, is_forward: bool) -> Steps[_Tree]:
        """Build the ``2**depth`` points after an edge, or before it; fewer where they turn or diverge."""
        if depth == 0:
            phase = yield from leapfrog(edge, self.step_size if is_forward else -self.step_size, self.variances)
            error = phase.energy - self._energy
            self.n_steps += 1
            self.acceptance += math.exp(-max(error, 0.0))
            has_diverged = not error < LARGEST_ERROR
            self.diverging = self.diverging or has_diverged
            return _Tree(phase, phase, phase, -error, phase.momentum, has_diverged)
        near = yield from self._grown(edge, depth - 1, is_forward)
        if near.ends:
            return near
        far = yield from self._grown(near.last if is_forward else near.first, depth - 1, is_forward)
        if far.ends:
            return far
        draw = far.draw if self._happens(far.log_weight - log_sum(near.log_weight, far.log_weight)) else near.draw
        return self._joined(near, far, is_forward, draw)

    def _happens(self, log_probability: float) -> bool:
        """Draw whether something of this probability happens; from one on it is certain."""
        return bool(log_probability >= 0 or self.random.uniform() < math.exp(log_probability))

    @staticmethod
    def _joined(near: _Tree, far: _Tree, is_forward: bool, draw: Phase) -> _Tree:
        """Join two neighbouring pieces into one, with the point drawn from both."""
        before, after = (near, far) if is_forward else (far, near)
        momentum = before.momentum + after.momentum
        turns = _turns(momentum, before.first, after.last)
        if not turns and before.first is not before.last:  # of two single points the halves are the whole
            turns = _turns(before.momentum + after.first.momentum, before.first, after.first) or _turns(
                before.last.momentum + after.momentum, before.last, after.last
            )
        log_weight = log_sum(near.log_weight, far.log_weight)
        return _Tree(before.first, after.last, draw, log_weight, momentum, turns)


def _turns(momentum: np.ndarray, first: Phase, last: Phase) -> bool:
    """Whether a piece with this sum of momenta has begun to turn back at either end."""
    return bool(momentum.dot(first.velocity) <= 0 or momentum.dot(last.velocity) <= 0)


def log_sum(a: float, b: float) -> float:
    """``log(exp(a) + exp(b))``; both may be minus infinity."""
    larger, smaller = (a, b) if a >= b else (b, a)
    return larger if smaller == -math.inf else larger + math.log1p(math.exp(smaller - larger))
