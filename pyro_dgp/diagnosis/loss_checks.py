"""Checks of the losses of a training run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

import torch

from pyro_dgp.diagnosis.symptoms import Finding, found

#: Shortest run, in steps, that a tenth of tells anything.
SHORTEST = 100
#: Shortest run that a fifth of tells anything. Of shorter runs nothing is known but that they are short.
FEWEST = 20
#: Fall of the loss over a tenth of the steps, before the learning rate falls, that counts as still improving: nats a row.
STILL_FALLING = 0.02


def still_falling(losses: Sequence[float]) -> Iterator[Finding]:
    """Find a loss that was still falling when the learning rate began to, after three fifths of the steps, and runs of few steps.

    The last two tenths of the steps before that are compared; of fewer than :data:`SHORTEST` steps the last two fifths.

    :param losses: minus the objective at each step, nats a row.
    """
    steps = len(losses)
    if steps < FEWEST:
        yield from _few_steps(losses)
        return
    parts, name = (10, "tenth") if steps >= SHORTEST else (5, "fifth")
    end, part = 6 * steps // 10, steps // parts
    values = torch.as_tensor(losses[end - 2 * part : end], dtype=torch.float64)
    before, after = values[:part], values[part:]
    fall = float(before.mean() - after.mean())
    error = float(((before.var() + after.var()) / part).sqrt())
    if fall > STILL_FALLING * 10 / parts and fall > 3 * error:
        yield found("loss still falling", fall=fall, part=name, steps=steps)


def _few_steps(losses: Sequence[float]) -> Iterator[Finding]:
    """Find a run of a few steps whose loss did not stand still."""
    steps = len(losses)
    if steps == 1 or (steps > 1 and abs(fmean(losses[: steps // 2]) - fmean(losses[steps // 2 :])) > STILL_FALLING):
        yield found("few steps", steps="one step" if steps == 1 else f"{steps} steps")


def falling_at_the_end(losses: Sequence[float]) -> Iterator[Finding]:
    """Find a loss that was still falling in the last tenth of the steps of a descent without a learning rate, such as L-BFGS.

    Of fewer than :data:`FEWEST` steps it is the last one. A single step tells nothing but that it is one.
    """
    steps = len(losses)
    if steps == 1:
        yield from _few_steps(losses)
    if steps < 2:
        return
    fall = losses[-1 - max(1, steps // 10)] - losses[-1]
    if fall > STILL_FALLING:
        part = f"tenth of the {steps} steps" if steps >= FEWEST else f"of the {steps} steps"
        yield found("loss falling at the end", fall=fall, part=part)
