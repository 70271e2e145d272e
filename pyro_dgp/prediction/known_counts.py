"""Quantiles and the ranked score of counts that have a distribution function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_dgp.prediction.count_panels import PanelSum
from pyro_dgp.prediction.count_search import least_reaching

#: Probability above the last value of a sum over a count, and the same in units of rounding.
_LEFT_OUT, _ROUNDINGS = 1e-9, 4.0
#: Size of a sum of terms whose relative error is that of larger sums.
_SMALL = 1e-2


@dataclass(frozen=True)
class KnownCounts:
    """Counts whose distribution function F is known, however large they are.

    :ivar function: F, from values ``(K, N, ...)``, some for each count, to values of that shape.
    :ivar least: the least value of each count, ``(N, ...)``.
    """

    function: Callable[[Tensor], Tensor]
    least: Tensor

    def cdf(self, value: Tensor) -> Tensor:
        """Return ``F(value)``, elementwise."""
        return self.function(value.reshape(-1, *self.least.shape)).reshape(value.shape)

    def quantile(self, levels: Tensor) -> Tensor:
        """Return the least value at which F reaches a level, for each of several levels ``(Q,)``: ``(Q, ...)``."""
        target = (levels.double() * (1 - 8 * torch.finfo(levels.dtype).eps)).reshape(-1, *[1] * self.least.dim())
        target = target.expand(len(levels), *self.least.shape)
        found = least_reaching(lambda at: self.function(at).double(), self.least.double(), target)
        return found.to(self.least)

    def squared_distance(self, value: Tensor) -> Tensor:
        """Return ``sum_k (F(k) - 1[value <= k])^2`` over the values k, elementwise.

        The sum ends where F is above ``1 - d``, d = 1e-9 or some units of rounding; what is left out is at most d times ``E max(y - k, 0)`` of the last k.
        """
        cut = value.detach().double().flatten()

        def summand(at: Tensor) -> Tensor:
            return (self._flat(at) - (cut <= at).to(at)).square()

        with torch.no_grad():
            panels, total = self._panels(cut).refined(summand)
        if torch.is_grad_enabled() and self.cdf(value).requires_grad:
            total = panels.value(summand)
        return total.to(self.least).reshape(self.least.shape)

    def summed(self, term: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the sum over all values k of a smooth term that is next to nothing where the probability of k is, ``(N,)``.

        :param term: from values ``(K, N)`` to terms of that shape.
        """
        with torch.no_grad():
            panels, _ = self._panels(self.least.double()).refined(self._spread)
            return panels.refined(term, floor=_SMALL)[1].to(self.least)

    def _flat(self, at: Tensor) -> Tensor:
        """Return F at numbers ``(K, R)``, with R the number of counts."""
        return self.function(at.unflatten(1, self.least.shape)).double().flatten(1)

    def _spread(self, at: Tensor) -> Tensor:
        """Return ``F (1 - F)``, which no panel sums well that is long beside the steps of F."""
        reached = self._flat(at)
        return reached * (1 - reached)

    def _panels(self, cut: Tensor) -> PanelSum:
        full = 1 - max(_LEFT_OUT, _ROUNDINGS * torch.finfo(self.least.dtype).eps)
        return PanelSum.up_to(full, self._flat, self.least.double().flatten(), cut)
