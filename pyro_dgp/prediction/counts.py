"""Distribution functions of counts, as sums of probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Values of a count that are summed over, at most.
MOST = 100_000
#: Standard deviations above its mean up to which the values of a count are expected to matter in a sum over all.
_FAR = 6.0
#: Probability that a sum may lack at its end, as rounding of the terms leaves it; in single precision more.
_MISSING, _MISSING_IN_FLOAT32 = 1e-3, 5e-3


@dataclass(frozen=True)
class SummedCounts:
    """Counts whose distribution function F is summed up value by value.

    :ivar pmf: from a value, in the shape of ``least``, to its probability.
    :ivar least: the least value of each count.
    :ivar mean: mean of each count, NaN where it is not known.
    :ivar scale: standard deviation of each count, NaN where it is not known.
    """

    pmf: Callable[[Tensor], Tensor]
    least: Tensor
    mean: Tensor
    scale: Tensor

    def cdf(self, value: Tensor) -> Tensor:
        """Return ``F(value)``, elementwise."""
        top = torch.where(value.isfinite(), value, self.least).clamp_min(self.least - 1).floor()
        self._require(top)
        result = torch.zeros_like(value)
        for at, total in self._cumulative():
            result = torch.where(at <= top, total, result)
            if bool((at >= top).all()):
                break
        return torch.where(value.isnan(), value, torch.where(value == torch.inf, 1.0, result))

    def quantile(self, levels: Tensor) -> Tensor:
        """Return the least value at which F reaches a level, for each of several levels ``(Q,)``: ``(Q, ...)``.

        By Cantelli's inequality the quantile of a level p is at least ``mean - scale sqrt((1 - p) / p)``.
        """
        level = levels.reshape(-1, *[1] * self.least.dim())
        self._require(self.mean - self.scale * ((1 - level) / level).sqrt())
        target = level * (1 - 8 * torch.finfo(levels.dtype).eps)
        result = self.least.new_full((len(levels), *self.least.shape), torch.nan)
        for at, total in self._cumulative():
            result = torch.where(result.isnan() & (total >= target), at, result)
            if not bool(result.isnan().any()):
                break
        return result

    def squared_distance(self, value: Tensor) -> Tensor:
        """Return ``sum_k (F(k) - 1[value <= k])^2`` over the values k, elementwise."""
        self._require(self.mean + _FAR * self.scale)
        self._require(value)
        score, before, top = torch.zeros_like(value), torch.zeros_like(value), float(value.max())
        for at, reached in self._cumulative():
            score = score + (reached - (value <= at).to(reached)).square()
            if float(at.max()) >= top and self._is_full(at, reached, before):
                break
            before = reached
        return score

    def summed(self, term: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the sum over all values k of a term that is next to nothing where the probability of k is, ``(N,)``.

        :param term: from values ``(1, N)`` to terms of that shape.
        """
        self._require(self.mean + _FAR * self.scale)
        result, before = torch.zeros_like(self.least), torch.zeros_like(self.least)
        for at, reached in self._cumulative():
            result = result + term(at.unsqueeze(0))[0].to(result)
            if self._is_full(at, reached, before):
                break
            before = reached
        return result

    def _cumulative(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over values from the least on: the value and the probability of at most that value."""
        total = torch.zeros((), dtype=torch.float64, device=self.least.device)
        for step in range(MOST):
            value = self.least + step
            total = (total + self.pmf(value).double()).clamp_max(1.0)
            yield value, total.to(value)
        raise ValueError(too_many(MOST))

    def _is_full(self, at: Tensor, reached: Tensor, before: Tensor) -> bool:
        """Tell whether sums of probabilities hold all, or all that numbers of their precision add up to.

        A sum that stands still may stand in a gap between two groups of values, as that of a count that is zero or near 1,000.

        :param before: the sums without their last terms.
        """
        missing = _MISSING if at.dtype == torch.float64 else _MISSING_IN_FLOAT32
        is_far = (at >= self.mean + _FAR * self.scale) | self.mean.isnan() | self.scale.isnan()
        stands = (reached == before) & (reached > 1 - missing) & is_far
        return bool(((reached > 1 - 1e-9) | stands).all())

    def _require(self, top: Tensor) -> None:
        """Raise where a sum up to these values has too many terms; NaN counts as few."""
        count = float((top - self.least).nan_to_num(0.0, torch.inf).max())
        if count > MOST:
            raise ValueError(too_many(count))


def too_many(count: float) -> str:
    """Return the sentence that refuses a sum over some number of values."""
    return (
        f"the counts reach {count:.3g} values and more, whose probabilities are summed one by one, {MOST} at most: give the likelihood a distribution "
        "with a cdf, or stay with log_prob, mean and sample"
    )
