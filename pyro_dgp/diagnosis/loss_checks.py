"""Checks of the losses of a training run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pyro_dgp.diagnosis.symptoms import Finding, found

#: Shortest run, in steps, whose end tells anything.
SHORTEST = 100
#: Fall of the loss over a tenth of the steps, before the learning rate falls, that counts as still improving: nats a row.
STILL_FALLING = 0.02


def still_falling(losses: Sequence[float]) -> Iterator[Finding]:
    """Find a loss that was still falling when the learning rate began to: the last two tenths of the steps before that are compared.

    :param losses: minus the objective at each step, nats a row.
    """
    tenth = len(losses) // 10
    if len(losses) < SHORTEST:
        return
    values = torch.as_tensor(losses[4 * tenth : 6 * tenth], dtype=torch.float64)
    before, after = values[:tenth], values[tenth:]
    fall = float(before.mean() - after.mean())
    error = float(((before.var() + after.var()) / tenth).sqrt())
    if fall > STILL_FALLING and fall > 3 * error:
        yield found("loss still falling", fall=fall, steps=len(losses))


def falling_at_the_end(losses: Sequence[float]) -> Iterator[Finding]:
    """Find a loss that was still falling in the last tenth of the steps of a descent without a learning rate, such as L-BFGS.

    :param losses: minus the objective at each step, nats a row.
    """
    if len(losses) < SHORTEST:
        return
    fall = losses[-1 - len(losses) // 10] - losses[-1]
    if fall > STILL_FALLING:
        yield found("loss falling at the end", fall=fall, steps=len(losses))
