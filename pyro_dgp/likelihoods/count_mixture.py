"""Distributions of counts whose log mean is normal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Size, Tensor

from pyro_dgp.internal.views import Integrated
from pyro_dgp.likelihoods.conditional import RowObservation
from pyro_dgp.likelihoods.moments import Moments


@runtime_checkable
class _Counts(Protocol):
    """The part of a likelihood of counts that its mixture reads."""

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log int p(y_n | f_n) N(f_n) df_n``."""

    def predictive_cdf(self, y: Tensor, f: Moments) -> Tensor:
        """``int P(y'_n <= y_n | f_n) N(f_n) df_n``."""

    def moments(self, f: Moments) -> Moments:
        """Mean and variance of y."""

    def given(self, f: Tensor) -> RowObservation:
        """p(y | f)."""


class CountMixture(Integrated):
    """Distribution of counts ``int p(y | f) N(f) df``, elementwise.

    Its log probabilities take nodes around the mode of each count, its distribution function takes nodes around the threshold of f for each count,
    its moments are closed forms, and a draw of it is one of f and one of y. Fixed nodes of f, however many, would leave gaps between the densities of large counts.

    :param conditional: p(y | f).
    :param f: moments of f, ``(..., N, 1)``.
    :param inner: p(y | f) at nodes, for figures other than these.
    :param log_weights: log weights of the nodes.
    """

    def __init__(
        self,
        conditional: _Counts,
        f: Moments,
        inner: Any,
        log_weights: Tensor,
        batch_shape: Sequence[int] | None = None,
    ) -> None:
        self.conditional, self.f = conditional, f
        super().__init__(inner, log_weights, batch_shape)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> CountMixture:
        """Return the same distribution over more batches."""
        f = Moments(*(values.expand(*batch_shape, 1) for values in self.f))
        return CountMixture(self.conditional, f, self.inner, self.log_weights, batch_shape)

    @property
    def mean(self) -> Tensor:
        """Means, ``(...)``."""
        return self._figure(lambda: self.conditional.moments(self.f).mean)

    @property
    def variance(self) -> Tensor:
        """Variances, ``(...)``."""
        return self._figure(lambda: self.conditional.moments(self.f).variance)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability of counts."""
        return self._figure(lambda: self.conditional.predictive_log_prob(value, self.f), value)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of counts of at most ``value``."""
        return self._figure(lambda: self.conditional.predictive_cdf(value, self.f), value)

    def _figure(self, figure: Callable[[], Tensor], *values: Tensor) -> Tensor:
        """Evaluate a figure with gradients in f and values alone: a prediction does not train the likelihood's parameters."""
        wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*self.f, *values))
        with torch.set_grad_enabled(wanted):
            return figure()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw f, and y given f."""
        with torch.no_grad():
            shape = Size(sample_shape) + self.f.mean.shape
            f = self.f.mean + self.f.variance.sqrt() * torch.randn(shape).to(self.f.mean)
            return self.conditional.given(f).base_dist.sample()  # type: ignore[no-any-return]
