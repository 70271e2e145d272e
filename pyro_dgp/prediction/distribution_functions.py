"""Distribution functions of mixtures, and their inverses: by the components' own cdf, by sums over counts, by bisection."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.prediction.counts import cumulative, summed_cdf, summed_quantile
from pyro_dgp.prediction.point_values import PointValues
from pyro_dgp.prediction.target_kinds import bounds, innermost, is_discrete, moment

#: Halvings of the bracket of a quantile, and how many at most where one component is far wider than the others.
_HALVINGS, _MOST_HALVINGS = 60, 1200
#: Rise of the distribution function in a bracket that counts as none, in units of rounding.
_ROOM = 100.0


class DistributionFunction:
    """The distribution function F of a mixture whose components are distributions of single numbers.

    F is differentiable in what the components are made of, and so are the quantiles of real targets: by the implicit
    function theorem a quantile q has the derivative ``dq = -dF(q) / p(q)``, with p the density.

    :param components: elementwise components, ``(S, N, ...)``.
    :param log_weights: log weights ``(S,)``.

    >>> import pyro.distributions as dist, torch
    >>> from pyro_dgp.prediction.distribution_functions import DistributionFunction
    >>> counts = DistributionFunction(dist.Poisson(torch.full((1, 1), 2.0)), torch.zeros(1))
    >>> counts.quantile(torch.tensor([0.5, 0.9])).tolist()
    [[2.0], [4.0]]
    """

    def __init__(self, components: Distribution, log_weights: Tensor) -> None:
        self.components, self.log_weights = components, log_weights
        self.low, self.high = (bound.to(log_weights) for bound in bounds(components))
        self._weights = log_weights.exp().reshape(-1, *[1] * (len(components.batch_shape) - 1))
        self._counted = is_discrete(components) and bool(self.low.isfinite().all())

    def __call__(self, value: Tensor) -> Tensor:
        """Return ``p(y <= value)``, elementwise: 0 below the support of y, and 1 above it."""
        if self._counted:
            most = torch.where(value.isinf(), self._least, value)
            result = summed_cdf(self._probability, self._least, most.clamp_min(self._least - 1))
            return torch.where(value == torch.inf, 1.0, result)
        is_below, is_above = value <= self.low, value > self.high
        inside = torch.where(self.high.isinf(), self.low + 1, 0.5 * (self.low + self.high))
        try:
            probability = self.components.cdf(torch.where(is_below | is_above, inside, value))
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{type(innermost(self.components)).__name__} has no cdf, which quantiles, intervals and the PIT need: give the likelihood a "
                "distribution with one, or stay with log_prob, mean and sample"
            ) from error
        probability = torch.where(is_above, 1.0, torch.where(is_below, 0.0, probability))
        return (self._weights * probability).sum(0)

    def quantile(self, level: Tensor) -> Tensor:
        """Return the least value at which F reaches a level, for each of several levels ``(Q,)``: ``(Q, N, ...)``."""
        if isinstance(self.components, PointValues):
            return self.components.quantile(level, self.log_weights)
        with torch.no_grad():
            if self._counted:
                return summed_quantile(self._probability, self._least, level)
            found = self._bisected(level)
        if not torch.is_grad_enabled():
            return found
        reached = torch.stack([self(each) for each in found])
        if not reached.requires_grad:
            return found
        with torch.no_grad():
            density = torch.stack([(self._weights * self.components.log_prob(each).exp()).sum(0) for each in found])
        return found - (reached - reached.detach()) / density

    def squared_distance(self, value: Tensor) -> Tensor:
        """Return ``sum_k (F(k) - 1[value <= k])^2`` over the values k of a count, the CRPS, elementwise."""
        score, top = torch.zeros_like(value), float(value.max())
        before = torch.zeros_like(value)
        for at, reached in cumulative(self._probability, self._least):
            score = score + (reached - (value <= at).to(reached)).square()
            # All is reached, or all that numbers of this precision add up to.
            is_full = (reached > 1 - 1e-9) | ((reached > 0.5) & (reached == before))
            if float(at.max()) >= top and bool(is_full.all()):
                break
            before = reached
        return score

    @property
    def _least(self) -> Tensor:
        """The least value of y in each row, ``(N, ...)``."""
        return self.low.expand(self.components.batch_shape).amin(0)

    def _probability(self, value: Tensor) -> Tensor:
        """Return ``p(y = value)`` of a count, ``(N, ...)``."""
        inside = torch.minimum(torch.maximum(value, self.low), self.high)
        probability = torch.where(inside == value, self.components.log_prob(inside).exp(), 0.0)
        return (self._weights * probability).sum(0)

    def _bisected(self, level: Tensor) -> Tensor:
        mean, scale = moment(self.components, "mean"), moment(self.components, "variance").sqrt()
        mean, scale = mean.nan_to_num(0.0, 0.0, 0.0), scale.nan_to_num(1.0, 1.0)  # heavy tails have none
        low = (mean - 10 * scale).amin(0).expand(*level.shape, *mean.shape[1:]).clone() - 1e-3
        high = (mean + 10 * scale).amax(0).expand(low.shape).clone() + 1e-3
        target = level.reshape(-1, *[1] * (mean.dim() - 1))

        def is_below(values: Tensor) -> Tensor:
            return torch.stack([self(each) for each in values]) < target

        for _ in range(60):  # heavy tails reach beyond the bracket
            short = is_below(high)
            long = ~is_below(low)
            if not bool((short | long).any()):
                break
            width = high - low
            low, high = torch.where(long, low - width, low), torch.where(short, high + width, high)
        for step in range(_MOST_HALVINGS):
            if step >= _HALVINGS and not bool((self._rise(low, high) > _ROOM * torch.finfo(low.dtype).eps).any()):
                break
            middle = 0.5 * (low + high)
            below = is_below(middle)
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high

    def _rise(self, low: Tensor, high: Tensor) -> Tensor:
        """Return by how much F rises in brackets ``(Q, N, ...)`` that hold a number between their ends; 0 in others."""
        middle = 0.5 * (low + high)
        rises = torch.stack([self(b) - self(a) for a, b in zip(low, high, strict=True)])
        return torch.where((middle > low) & (middle < high), rises, 0.0)
