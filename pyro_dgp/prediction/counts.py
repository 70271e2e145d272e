"""Distribution functions of counts, as sums of probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

#: Values of a count that are summed over, at most.
MOST = 1_000_000


def cumulative(pmf: Callable[[Tensor], Tensor], low: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over the values of a count from ``low`` on: the value and the probability of at most that value.

    :param pmf: from a value, in the shape of ``low``, to its probability.
    """
    total = torch.zeros(())
    for step in range(MOST):
        value = low + step
        total = total + pmf(value)
        yield value, total
    raise ValueError(
        f"counts above {MOST} have no sum of probabilities here: scale the targets, or stay with log_prob, mean and sample"
    )


def summed_cdf(pmf: Callable[[Tensor], Tensor], low: Tensor, value: Tensor) -> Tensor:
    """Return ``p(y <= value)``, elementwise.

    :param low: the least value of each count, in the shape of ``value``.
    """
    result, top = torch.zeros_like(value), value.floor()
    for at, total in cumulative(pmf, low):
        result = torch.where(at <= top, total, result)
        if bool((at >= top).all()):
            return result
    raise AssertionError("unreachable")


def summed_quantile(pmf: Callable[[Tensor], Tensor], low: Tensor, levels: Tensor) -> Tensor:
    """Return the least value whose cdf reaches a level, for each of several levels ``(Q,)``: ``(Q, ...)``."""
    target = levels.reshape(-1, *[1] * low.dim()) - 8 * torch.finfo(levels.dtype).eps
    result = low.new_full((len(levels), *low.shape), torch.nan)
    for at, total in cumulative(pmf, low):
        result = torch.where(result.isnan() & (total >= target), at, result)
        if not bool(result.isnan().any()):
            return result
    raise AssertionError("unreachable")
