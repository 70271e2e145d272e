"""Step size and metric of Hamiltonian samplers, learned in the warm-up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from pyro_dgp.mcmc.trajectories import Leap, Phase, Random, Steps

#: Share of the warm-up after which windows are long, and share at whose end only the step size is learned.
_EARLY, _METRIC = 0.3, 0.85

#: Draws after which the metric forgets what came before: early in the warm-up, and later.
_SHORT_WINDOW, _LONG_WINDOW = 10, 80

#: Draws from which on a metric is made of them.
_FEWEST = 4

#: Acceptance rates from which on a step size is learned from them alone.
_FEWEST_RATES = 10

#: Constants of dual averaging (Hoffman and Gelman 2014, section 3.2): gamma, t_0 and kappa.
_SHRINKAGE, _DELAY, _DECAY = 0.05, 10.0, 0.75


class DualAveraging:
    """The step size with a wanted acceptance rate, by dual averaging (Hoffman and Gelman 2014, Eq. 6).

    :param target: the wanted rate, between zero and one.
    """

    def __init__(self, target: float) -> None:
        self.target = target
        self.restart(1.0)

    def restart(self, step_size: float) -> None:
        """Begin anew from a step size."""
        self.centre, self.count, self.error = math.log(10 * step_size), 0, 0.0
        self.log_step, self.log_average = math.log(step_size), math.log(step_size)

    def update(self, acceptance_rate: float) -> None:
        """Learn of the acceptance rate of a trajectory."""
        self.count += 1
        weight = 1 / (self.count + _DELAY)
        self.error += weight * (self.target - acceptance_rate - self.error)
        self.log_step = self.centre - math.sqrt(self.count) / _SHRINKAGE * self.error
        share = self.count**-_DECAY
        self.log_average += share * (self.log_step - self.log_average)

    @property
    def learned(self) -> float:
        """Logarithm of the step size that has been learned; few updates count for little beside the one begun from."""
        share = min(1.0, self.count / _FEWEST_RATES)
        return share * self.log_average + (1 - share) * (self.centre - math.log(10))

    def state_dict(self) -> dict[str, Any]:
        """Return all numbers."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned."""
        for name in vars(self):
            setattr(self, name, state[name])


class _Moments:
    """Means and sums of squares of vectors, one at a time (Welford 1962)."""

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(size), np.zeros(size)

    def add(self, vector: np.ndarray) -> None:
        self.count += 1
        difference = vector - self.mean
        self.mean = self.mean + difference / self.count
        self.squares = self.squares + difference * (vector - self.mean)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": torch.from_numpy(self.mean), "squares": torch.from_numpy(self.squares)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.mean, self.squares = state["mean"].cpu().numpy().copy(), state["squares"].cpu().numpy().copy()


class FisherMetric:
    """The diagonal inverse mass matrix of least Fisher divergence (Seyboldt, Carlson and Carpenter 2026): ``sqrt(var(draws) / var(gradients))``.

    For a normal target with independent coordinates it is exact after two draws, since the gradients are linear in the draws. Draws of two windows are kept, so that what a
    chain met on its way to the bulk of the posterior is forgotten.

    :param size: number of coordinates.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.variances = np.ones(size)
        self._kept = (
            _Moments(size),
            _Moments(size),
        )  # of draws and of gradients, since the window before this one began
        self._new = (_Moments(size), _Moments(size))  # since this window began

    def start_at(self, gradient: np.ndarray) -> None:
        """Take the scale of each coordinate from the first gradient."""
        self.variances = 1 / np.clip(np.abs(gradient), 1e-3, 1e3)

    def add(self, at: Phase, window: int) -> bool:
        """Learn of a draw; tell whether a window of this length has ended."""
        for moments in (self._kept, self._new):
            moments[0].add(at.position)
            moments[1].add(at.gradient)
        ended = self._new[0].count >= window
        if ended:
            self._kept, self._new = self._new, (_Moments(self.size), _Moments(self.size))
        draws, gradients = self._kept
        if draws.count >= _FEWEST:
            moved = (draws.squares > 0) & (gradients.squares > 0)  # others stay as they are
            ratio = np.sqrt(draws.squares[moved]) / np.sqrt(gradients.squares[moved])
            self.variances = self.variances.copy()
            self.variances[moved] = np.clip(ratio, 1e-20, 1e20)
        return ended

    def state_dict(self) -> dict[str, Any]:
        """Return all numbers, as tensors."""
        moments = [each.state_dict() for each in (*self._kept, *self._new)]
        return {"variances": torch.from_numpy(self.variances), "moments": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned."""
        if state["variances"].shape != (self.size,):
            raise ValueError("its metric is of another model")
        self.variances = state["variances"].cpu().numpy().copy()
        for moments, each in zip((*self._kept, *self._new), state["moments"], strict=True):
            moments.load_state_dict(each)


class Adaptation:
    """Everything that a chain learns in its warm-up: a metric from its draws and gradients, and a step size from its acceptance rates.

    Windows are those of nutpie: ten draws each in the first third of the warm-up, 80 later; in the last 15 % the metric stays.

    :param size: number of coordinates.
    :param warmup: iterations of the warm-up.
    :param target: wanted acceptance rate.
    :param step_size: the step size, if it is not to be learned.
    """

    def __init__(self, size: int, warmup: int, *, target: float, step_size: float | None) -> None:
        self.warmup, self.fixed = warmup, step_size
        self.metric, self.averaging = FisherMetric(size), DualAveraging(target)
        self.done = 0

    @property
    def step_size(self) -> float:
        """The step size of the next trajectory."""
        if self.fixed is not None:
            return self.fixed
        return math.exp(self.averaging.log_step if self.done < self.warmup else self.averaging.learned)

    def begin(self, at: Phase, random: Random) -> Steps[None]:
        """Choose the first metric and step size at the first point."""
        if self.warmup:
            self.metric.start_at(at.gradient)
        yield from self._find_step(at, random)

    def update(self, at: Phase, acceptance_rate: float, random: Random) -> Steps[None]:
        """Learn of a draw, in the warm-up."""
        if self.done >= self.warmup:
            return
        self.averaging.update(acceptance_rate)
        self.done += 1
        if self.done <= _METRIC * self.warmup:
            is_early = self.done < _EARLY * self.warmup
            has_ended = self.metric.add(at, _SHORT_WINDOW if is_early else _LONG_WINDOW)
            if has_ended and is_early:
                yield from self._find_step(at, random)

    def _find_step(self, at: Phase, random: Random) -> Steps[None]:
        """Double or halve the step size until one leapfrog step crosses the wanted acceptance rate (Hoffman and Gelman 2014, algorithm 4)."""
        if self.fixed is not None:
            return
        step = math.exp(self.averaging.log_step)
        variances, wanted = self.metric.variances, math.log(self.averaging.target)
        direction = 0
        while 1e-10 < step < 1e10:
            momentum = random.normal(len(variances)) / np.sqrt(variances)
            start = Phase.of(at.position, momentum, (at.log_density, at.gradient), variances)
            end = yield Leap(start, step, variances)
            now = 1 if start.energy - end.energy > wanted else -1
            if direction and now != direction:
                break
            direction = now
            step *= 2.0**direction
        self.averaging.restart(step)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next draw depends on."""
        return {
            "done": self.done,
            "metric": self.metric.state_dict(),
            "step size": self.averaging.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned."""
        self.done = state["done"]
        self.metric.load_state_dict(state["metric"])
        self.averaging.load_state_dict(state["step size"])
