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
    """Return the number of steps that the time allows, by that of a few. A run that goes on from a checkpoint keeps the number that it had.

    :param minutes: of the fit.
    :param trial: makes so many steps on copies of all that they change, and calls a function after each step.
    :param start: when the fit began, by ``time.perf_counter``.
    :param cost: steps that the fit makes for each one that is asked for.
    """
    require_single_process("Settings(minutes=...) counts the steps that there is time for")

    def timed() -> int:
        times = [time.perf_counter()]
        with torch.random.fork_rng():
            trial(TIMED_STEPS, lambda *_: times.append(time.perf_counter()))
        gaps = [after - before for before, after in itertools.pairwise(times[1:])]
        a_step = median(gaps) if gaps else time.perf_counter() - times[0]  # a fit that is at its end makes no steps
        left = SHARE_OF_TIME * 60 * minutes - (time.perf_counter() - start)
        return max(1, int(left / (a_step * cost)))

    return int(recorded(timed))


def remarks_on_time(minutes: float | None, steps: int) -> list[str]:
    """Return a sentence on a fit whose minutes allowed a single step."""
    return ["its minutes allowed a single step: give more of them"] if minutes is not None and steps == 1 else []
