"""The search for quantiles of counts that have a distribution function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Factor by which the number of values in a first bracket grows, how often at most, and most steps of the search in the bracket.
_GROWTH, _BRACKETS, _STEPS = 8.0, 330, 4000
#: Share of a bracket, in units of its starting length, by which a step is taken nearer to the middle.
_TRUNCATION = 0.2


def least_reaching(cdf: Callable[[Tensor], Tensor], least: Tensor, target: Tensor) -> Tensor:
    """Return the least whole number k, from ``least`` on, with ``F(k) >= target``: ``(Q, ...)``; NaN where F is NaN.

    A bracket becomes eight times as long until it holds k. It then shrinks by the ITP method (Oliveira and Takahashi 2021): a step of regula falsi that is moved towards
    the middle, and never so far from it that bisection would be much faster.

    :param cdf: F, from values ``(Q, ...)`` to values of that shape.
    :param least: the least value of each count.
    :param target: ``(Q, ...)``, above 0 and below 1.
    """
    low, below = (least - 1).expand(target.shape), -target
    high = least.expand(target.shape)
    above = cdf(high) - target
    for step in range(_BRACKETS):
        short = (above < 0) & high.isfinite()
        if not bool(short.any()):
            break
        low, below = torch.where(short, high, low), torch.where(short, above, below)
        high = torch.where(short, least + _GROWTH ** (step + 1) - 1, high)
        above = torch.where(short, cdf(high) - target, above)
    bracket = _Bracket(low, below, high, above)
    for step in range(_STEPS):
        at = bracket.proposal(step)
        if bool(((at <= bracket.low) | (at >= bracket.high)).all()):
            break
        bracket = bracket.narrowed(at, cdf(at) - target)
    found = torch.where(bracket.above < 0, torch.inf, bracket.high)
    return torch.where(bracket.above.isnan(), torch.nan, found)


class _Bracket:
    """Whole numbers of which F at the one is below a target, and at the other not.

    :param below: how far F is above the target at ``low``, a negative number; ``above`` likewise at ``high``.
    :param length: length of the first bracket, by default that of this one.
    """

    def __init__(
        self, low: Tensor, below: Tensor, high: Tensor, above: Tensor, *, length: Tensor | None = None
    ) -> None:
        self.low, self.below, self.high, self.above = low, below, high, above
        self._first = high - low if length is None else length

    def proposal(self, step: int) -> Tensor:
        """Return the number to look at next, which lies between the ends unless they are neighbours."""
        length = self.high - self.low
        middle = self.low + 0.5 * length
        crossing = self.low + length * (self.below / (self.below - self.above)).nan_to_num(0.5)
        sign = (middle - crossing).sign()
        moved = crossing + sign * torch.minimum(_TRUNCATION * length.square() / self._first, (middle - crossing).abs())
        # What bisection would have left after as many steps, one of them given away, bounds the distance from the middle.
        room = (self._first * 0.5**step - 0.5 * length).clamp_min(0.0)
        at = torch.where((moved - middle).abs() <= room, moved, middle - sign * room).floor()
        first = torch.maximum(self.low + 1, torch.nextafter(self.low, self.high))
        last = torch.minimum(self.high - 1, torch.nextafter(self.high, self.low))
        return torch.where(first <= last, torch.minimum(torch.maximum(at, first), last), self.low)

    def narrowed(self, at: Tensor, excess: Tensor) -> _Bracket:
        """Return the bracket with an end moved to a number between its ends, of which F minus the target is known."""
        inside = (at > self.low) & (at < self.high)
        down, up = inside & (excess >= 0), inside & (excess < 0)
        return _Bracket(
            torch.where(up, at, self.low), torch.where(up, excess, self.below),
            torch.where(down, at, self.high), torch.where(down, excess, self.above),
            length=self._first,
        )  # fmt: skip
