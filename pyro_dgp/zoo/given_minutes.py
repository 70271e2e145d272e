"""Numbers of training steps where the settings give the minutes of a fit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from statistics import median

import torch

from pyro_dgp.training.checkpoints import recorded
from pyro_dgp.training.distributed import require_single_process
from pyro_dgp.training.optimising import Callback

#: Steps that are timed, and the share of the time that is planned for.
TIMED_STEPS, SHARE_OF_TIME = 20, 0.9


def steps_within(minutes: float, trial: Callable[[int, Callback], object], *, start: float, cost: float = 1.0) -> int:
    """Return the number of steps that the time allows, from the median time of 20 steps and the time around these. A run that goes on from a checkpoint keeps the number that it had.

    :param minutes: length of the fit in minutes.
    :param trial: runs the given number of steps on copies, and calls a function after each.
    :param start: time at which the fit began, by ``time.perf_counter``.
    :param cost: steps that the fit makes for each one that is asked for.
    """
    require_single_process("Settings(minutes=...) counts the steps that there is time for")

    def timed() -> int:
        times = [time.perf_counter()]
        with torch.random.fork_rng():
            trial(TIMED_STEPS, lambda *_: times.append(time.perf_counter()))
        end = time.perf_counter()
        gaps = [after - before for before, after in itertools.pairwise(times[1:])]
        a_step = median(gaps) if gaps else end - times[0]  # an already converged fit makes no steps
        around = end - times[0] - sum(gaps)
        left = SHARE_OF_TIME * 60 * minutes - (end - start) - around
        return max(1, int(left / (a_step * cost)))

    return int(recorded(timed))


def remarks_on_time(minutes: float | None, steps: int) -> list[str]:
    """Return a sentence on a fit whose minutes allowed a single step."""
    return ["its minutes allowed a single step: give more of them"] if minutes is not None and steps == 1 else []
