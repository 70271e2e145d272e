"""Slice sampling of one number at a time, with widths that are learned during the warm-up (Neal 2003)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def slice_sample(
    log_density: Callable[[float], float], start: float, *, at_start: float, width: float, most_steps: int = 8
) -> tuple[float, int]:
    """One update that leaves the density invariant: stepping out, then shrinking (Neal 2003, Figs. 3 and 5).

    :param log_density: unnormalised log density, nats; minus infinity where the density is zero.
    :param at_start: log density at ``start``.
    :param width: first size of the interval.
    :param most_steps: largest number of times that the interval is widened, both sides together.
    :returns: the new point, at which the last evaluation was, or ``start`` if none was found; and the number of evaluations.
    """
    level = at_start + math.log(_uniform())
    low = start - width * _uniform()
    high = low + width
    left = int(most_steps * _uniform())
    evaluations = 0
    for side, steps in ((-1, left), (1, most_steps - 1 - left)):
        for _ in range(steps):
            edge = low if side < 0 else high
            evaluations += 1
            if log_density(edge) <= level:
                break
            low, high = (low - width, high) if side < 0 else (low, high + width)
    while True:
        point = low + (high - low) * _uniform()
        evaluations += 1
        if log_density(point) > level:
            return point, evaluations
        if high - low < 1e-12 * max(1.0, abs(start)):
            return start, evaluations
        low, high = (point, high) if point < start else (low, point)


def elliptical_slice(log_likelihood: Callable[[Tensor], float], start: Tensor, at_start: float) -> tuple[Tensor, int]:
    """One update of standard normal ``start`` given a likelihood (Murray, Adams and MacKay 2010, Fig. 2).

    The update has no tuning and nearly always moves: on the ellipse through ``start`` and a new normal draw, the bracket of angles
    shrinks towards ``start`` until the likelihood is above the slice.

    :param at_start: log likelihood at ``start``, nats.
    :returns: as :func:`slice_sample`.
    """
    level = at_start + math.log(_uniform())
    other = torch.randn_like(start)
    angle = 2 * math.pi * _uniform()
    low, high = angle - 2 * math.pi, angle
    evaluations = 0
    while True:
        point = start * math.cos(angle) + other * math.sin(angle)
        evaluations += 1
        if log_likelihood(point) > level:
            return point, evaluations
        if high - low < 1e-12:
            return start, evaluations
        low, high = (angle, high) if angle < 0 else (low, angle)
        angle = low + (high - low) * _uniform()


def _uniform() -> float:
    """A uniform draw from (0, 1], so that its logarithm is finite."""
    return 1.0 - float(torch.rand(()))
