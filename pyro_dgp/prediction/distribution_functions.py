"""Distribution functions of mixtures, and their inverses: by the components' own cdf, by sums over counts without one, by bisection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.likelihoods.refinement import NotResolvedError
from pyro_dgp.likelihoods.supports import between, bounds, cdf_within, innermost
from pyro_dgp.prediction.component_densities import log_prob_of
from pyro_dgp.prediction.counts import SummedCounts
from pyro_dgp.prediction.known_counts import KnownCounts
from pyro_dgp.prediction.once_differentiable import OnceDifferentiable
from pyro_dgp.prediction.point_values import PointValues
from pyro_dgp.prediction.support_ends import SupportEnd, are_masses, at_ends, support_ends
from pyro_dgp.prediction.target_kinds import is_discrete, moment

#: Halvings of the bracket of a quantile, and how many at most where one component is far wider than the others.
_HALVINGS, _MOST_HALVINGS = 60, 1200
#: Doublings of that bracket at most: from a thousandth to the largest number there is.
_MOST_DOUBLINGS = 1100
#: Rise of the distribution function in a bracket that counts as none, in units of rounding.
_ROOM = 100.0
#: Most numbers of components and counts that a distribution function of counts is evaluated at together.
_MOST = 200_000


class DistributionFunction:
    """The distribution function F of a mixture whose components are distributions of single numbers.

    F is differentiable in what the components are made of, and so are the quantiles of real targets: by the implicit
    function theorem a quantile q has the derivative ``dq = -dF(q) / p(q)``, with p the density. Second derivatives of quantiles are right too;
    third ones are not.

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
        weights = log_weights.exp()  # Logarithms are rounded: without the division F would not reach one.
        self._weights = (weights / weights.sum()).reshape(-1, *[1] * (len(components.batch_shape) - 1))
        self._counts = self._as_counts() if is_discrete(components) and bool(self.low.isfinite().all()) else None

    def __call__(self, value: Tensor) -> Tensor:
        """Return ``p(y <= value)``, elementwise: 0 below the support of y, and 1 above it."""
        if self._counts is not None:
            return self._counts.cdf(value)
        is_below, is_above = value < self.low, value > self.high
        inside = between(self.low, self.high, is_discrete=is_discrete(self.components))
        try:
            probability = cdf_within(self.components, torch.where(is_below | is_above, inside, value))
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{type(innermost(self.components)).__name__} has no cdf, which quantiles, intervals and the PIT need: give the likelihood a "
                "distribution with one, or stay with log_prob, mean and sample"
            ) from error
        probability = torch.where(is_above, 1.0, torch.where(is_below, 0.0, probability))
        return (self._weights * probability).sum(0)

    def around(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return F just below real values, and at them: they differ at an end of the support that has a probability of its own."""
        reached = before = self(value)
        for end in self._ends(value):
            before = torch.where(value == end.value, end.before.clamp_min(0.0), before)
        return before, reached

    def quantile(self, level: Tensor) -> Tensor:
        """Return the least value at which F reaches a level, for each of several levels ``(Q,)``: ``(Q, N, ...)``."""
        if isinstance(self.components, PointValues):
            return self.components.quantile(level, self.log_weights)
        with torch.no_grad():
            if self._counts is not None:
                return self._counts.quantile(level)
            found = self._bisected(level)
        return self._differentiable(found) if torch.is_grad_enabled() else found

    def _differentiable(self, found: Tensor) -> Tensor:
        """Return quantiles, ``(Q, N, ...)``, with their derivatives in what the components are made of.

        ``q - (F(q) - level) / p`` with p constant is a step of Newton's method. At the root it keeps the value, and makes the derivatives right
        to one order more than those of q are.
        """
        reached = self._at(found)
        if not reached.requires_grad:
            return found
        density, is_smooth = self._density(found)
        # An end with a probability of its own stands still.
        density = density.where(~are_masses(self._ends(found), found), torch.inf)
        first = found - (reached - reached.detach()) / density
        if not is_smooth:
            return OnceDifferentiable.apply(first, type(innermost(self.components)).__name__)  # type: ignore[no-any-return]
        again = self._at(first)
        return first - (again - again.detach()) / density

    def _density(self, found: Tensor) -> tuple[Tensor, bool]:
        """Return the slope of F at quantiles, and that it has one; otherwise the density, from which autograd's slope of F differs."""
        value = found.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self._at(value).sum(), value, allow_unused=True, retain_graph=True)
        if slope is not None and not bool((slope <= 0).any()):
            return slope, True
        with torch.no_grad():
            return torch.stack([(self._weights * self.components.log_prob(each).exp()).sum(0) for each in found]), False

    def _at(self, values: Tensor) -> Tensor:
        """Return F at several values of each row, ``(Q, N, ...)``."""
        return torch.stack([self(each) for each in values])

    def squared_distance(self, value: Tensor) -> Tensor:
        """Return ``sum_k (F(k) - 1[value <= k])^2`` over the values k of a count, the CRPS, elementwise; NaN at NaN."""
        counts, finite = self._required_counts(), value.isfinite()
        score = counts.squared_distance(torch.where(finite, value, counts.least))
        return torch.where(finite, score, value.abs())

    def summed(self, term: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the sum over all values k of a count of a smooth term that is next to nothing where ``p(y = k)`` is, ``(N,)``.

        :param term: from values ``(K, N)`` to terms of that shape.
        """
        return self._required_counts().summed(
            lambda values: torch.cat([term(part) for part in values.split(self._many)])
        )

    def _required_counts(self) -> KnownCounts | SummedCounts:
        if self._counts is None:
            raise NotImplementedError(
                f"{type(innermost(self.components)).__name__} has no least value, from which sums over its values begin: take log_prob or sample"
            )
        return self._counts

    def _as_counts(self) -> KnownCounts | SummedCounts:
        """Return the counts, by their distribution function if the components have one."""
        least = self.low.expand(self.components.batch_shape).amin(0)
        try:
            with torch.no_grad():
                cdf_within(self.components, least)
        except NotImplementedError:
            return SummedCounts(self._probability, least, *self._moments())
        return KnownCounts(self._reached, least)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation of a count, ``(N, ...)``; NaN where the components do not tell theirs."""
        with torch.no_grad():
            try:
                mean, variance = moment(self.components, "mean"), moment(self.components, "variance")
            except (NotImplementedError, NotResolvedError):
                unknown = self.low.new_full(self.components.batch_shape[1:], torch.nan)
                return unknown, unknown
            total = (self._weights * mean).sum(0)
            return total, (self._weights * (variance + (mean - total).square())).sum(0).sqrt()

    @property
    def _many(self) -> int:
        """Number of values of each row that are evaluated together."""
        return max(1, _MOST // max(1, torch.Size(self.components.batch_shape).numel()))

    def _reached(self, values: Tensor) -> Tensor:
        """Return F of a count at several values of each row, ``(K, N, ...)``, by the components' own distribution function."""
        parts = []
        for value in values.unsqueeze(1).split(self._many):
            inside = torch.minimum(torch.maximum(value, self.low), self.high)
            probability = torch.where(value >= self.high, 1.0, cdf_within(self.components, inside))
            parts.append((self._weights * torch.where(value < self.low, 0.0, probability)).sum(1))
        return torch.cat(parts)

    def _probability(self, value: Tensor) -> Tensor:
        """Return ``p(y = value)`` of a count, ``(N, ...)``."""
        inside = torch.minimum(torch.maximum(value, self.low), self.high)
        probability = torch.where(inside == value, log_prob_of(self.components, inside).exp(), 0.0)
        return (self._weights * probability).sum(0)

    def _bisected(self, level: Tensor) -> Tensor:
        mean, _ = around = _place_of(self.components, self.log_weights)
        target = level.reshape(-1, *[1] * (mean.dim() - 1))
        low, high = at_ends(self._ends(mean), *self._bracketed(*around, target=target), target=target)
        for step in range(_MOST_HALVINGS):
            if step >= _HALVINGS and not bool((self._rise(low, high) > _ROOM * torch.finfo(low.dtype).eps).any()):
                break
            middle = 0.5 * low + 0.5 * high
            below = self._at(middle) < target
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return torch.where(self._at(high).isnan(), torch.nan, high)

    def _bracketed(self, mean: Tensor, scale: Tensor, *, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return ends ``(Q, N, ...)`` between which quantiles lie; heavy tails reach far beyond ten standard deviations.

        Rows where F is NaN have none, and keep the ends that they begin with.
        """
        info = torch.finfo(mean.dtype)
        room = (4 * info.eps * mean.abs()).clamp(min=1e-3)  # more than rounding, also far from zero
        low = (mean - 10 * scale - room).amin(0).expand(len(target), *mean.shape[1:]).clamp(min=info.min).clone()
        high = (mean + 10 * scale + room).amax(0).expand(low.shape).clamp(max=info.max).clone()
        for _ in range(_MOST_DOUBLINGS):
            short, long = self._at(high) < target, self._at(low) >= target
            if not bool((short | long).any()):
                break
            width = (high - low).clamp(max=info.max)
            low = torch.where(long, (low - width).clamp(min=info.min), low)
            high = torch.where(short, (high + width).clamp(max=info.max), high)
        return low, high

    def _ends(self, like: Tensor) -> Iterator[SupportEnd]:
        """Iterate over the ends of the support, ``(N, ...)``, of the type of a tensor."""
        shape = self.components.batch_shape
        return support_ends(self, self.low.expand(shape).amin(0).to(like), self.high.expand(shape).amax(0).to(like))

    def _rise(self, low: Tensor, high: Tensor) -> Tensor:
        """Return by how much F rises in brackets ``(Q, N, ...)`` that hold a number between their ends; 0 in others."""
        middle = 0.5 * (low + high)
        rises = torch.stack([self(b) - self(a) for a, b in zip(low, high, strict=True)])
        return torch.where((middle > low) & (middle < high), rises, 0.0)


def _place_of(components: Distribution, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each component lies and how wide it is, roughly: by its moments, or by some draws where they are not known."""
    try:
        mean, scale = moment(components, "mean"), moment(components, "variance").sqrt()
    except (NotImplementedError, NotResolvedError):
        with torch.random.fork_rng(), torch.no_grad():
            draws = components.sample((32,)).to(like)
        mean, scale = draws.mean(0), draws.std(0)
    mean, scale = (values if values.is_floating_point() else values.to(like) for values in (mean, scale))
    return mean.nan_to_num(0.0, 0.0, 0.0), scale.nan_to_num(1.0, 1.0)  # heavy tails have none
