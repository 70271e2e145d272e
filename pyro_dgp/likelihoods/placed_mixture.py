"""Distributions of y whose log density takes nodes that are placed for each value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Size, Tensor

from pyro_dgp.internal.views import Integrated
from pyro_dgp.likelihoods.checked_moments import Moment
from pyro_dgp.likelihoods.far_values import far, formed
from pyro_dgp.likelihoods.moments import Moments

#: Most values of y whose probabilities are added up for a moment.
_FEW = 8


#: A figure of p(y | f), such as its mean.
_Figure = Callable[[Any], Tensor]


@runtime_checkable
class _Placed(Protocol):
    """The part of a likelihood that its mixture reads."""

    def given(self, f: Tensor) -> Any:
        """p(y | f)."""

    def element_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log int p(y | f) N(f) df`` of each element."""

    def element_cdf(self, y: Tensor, f: Moments) -> Tensor:
        """``int P(y' <= y | f) N(f) df`` of each element."""

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log int p(y_n | f_n) N(f_n) df_n`` of each row."""

    def is_checked(self, f: Moments) -> bool:
        """Whether a sum over nodes is compared with that of a finer rule."""


@runtime_checkable
class _Units(Protocol):
    """The part of the units of targets that a mixture reads; see ``pyro_dgp.likelihoods.units.Units``."""

    scale: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        """Standardised values."""

    def restored(self, values: Tensor) -> Tensor:
        """Values in their own units."""

    def log_scale(self, outputs: int) -> Tensor:
        """``sum_d log scale_d``."""

    def image(self, distribution: Any) -> Any:
        """The distribution of ``mean + scale z``."""


class PlacedMixture(Integrated):
    """Distribution ``int p(y | f) N(f) df``, elementwise or over the outputs of a row, of a likelihood whose densities fixed nodes may miss.

    Its log density is the likelihood's own, for each value; other figures are those of fixed nodes.

    :param conditional: p(y | f).
    :param f: moments of f, ``(..., N, F)``.
    :param nodes: the mean over fixed nodes.
    :param units: units of y, where the likelihood has standardised targets.
    """

    def __init__(
        self,
        conditional: _Placed,
        f: Moments,
        nodes: Integrated,
        *,
        batch_shape: Sequence[int] | None = None,
        units: _Units | None = None,
    ) -> None:
        self.conditional, self.f, self.units, self.nodes = conditional, f, units, nodes
        super().__init__(nodes.inner, nodes.log_weights, batch_shape, known_variance=nodes.known_variance)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Return the same distribution over more batches."""
        return type(self)(self.conditional, self.f, self.nodes, batch_shape=batch_shape, units=self.units)

    def in_units(self, units: _Units) -> Any:
        """Return the distribution of ``mean + scale y``."""
        nodes = units.image(self.nodes)
        return type(self)(self.conditional, self.f, nodes, batch_shape=self.batch_shape, units=units)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, ``(..., *batch)``."""
        log_prob = self._of_the_likelihood(self.conditional.element_log_prob, value)
        if self.units is None:
            return log_prob
        is_event = len(self.event_shape) > 0
        return log_prob - (self._log_scale_of_row if is_event else self.units.scale.log()).to(log_prob)

    @property
    def _log_scale_of_row(self) -> Tensor:
        """Sum of the log scales of the outputs, by which a log density of a row is smaller in the units of y."""
        return torch.zeros(()) if self.units is None else self.units.log_scale(self.shape()[-1])

    def _of_the_likelihood(self, figure: Callable[[Tensor, Moments], Tensor], value: Tensor) -> Tensor:
        """Evaluate a figure at values; without gradients where neither f nor the values have any, since a prediction trains no parameters."""
        value = value.expand(torch.broadcast_shapes(value.shape, self.shape()))
        f = self._expanded(value.shape[: value.dim() - self._of_a_row])
        wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*f, value))
        with torch.set_grad_enabled(wanted):
            return figure(value if self.units is None else self.units(value), f)

    @property
    def _of_a_row(self) -> int:
        """Number of axes of y behind that of rows."""
        return len(self._own) + len(self.event_shape) - (self.f.mean.dim() - 1)

    def _expanded(self, rows: Size) -> Moments:
        """Moments of f with more batches in front of the rows."""
        return Moments(*(values.expand(*rows, values.shape[-1]) for values in self.f))


class FunctionMixture(PlacedMixture):
    """Distribution ``int p(y | f) N(f) df`` whose other figures are right too: its draw is one of f and one of y.

    Moments by fixed nodes are compared with those of a finer rule, and refined where the two do not agree, see :class:`Moment`. The outputs of a row may read
    the same functions, and depend on each other then.
    """

    def row_log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of all outputs of a row together, ``(..., N)``, where each is an element of the batch."""
        log_prob = self._of_the_likelihood(self.conditional.predictive_log_prob, value)
        return log_prob - self._log_scale_of_row.to(log_prob)

    @property
    def mean(self) -> Tensor:
        """Means, ``(*batch, *event)``."""
        return self._on_batch(self._own_mean())

    @property
    def variance(self) -> Tensor:
        """Variances, ``(*batch, *event)``."""
        mean = self._own_mean()

        def around(each: Any) -> Tensor:
            return each.variance + (each.mean - mean).square()

        found = self._over_nodes(around)
        known = self._summed(lambda value: (value - mean).square())
        return self._on_batch(self._expectation("variance", around, size=found.detach(), known=known))

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariances of the outputs of a row, ``(..., N, D, D)``, which are an event or the last axis of the batch."""
        mean = self._own_mean()

        def around(each: Any) -> Tensor:
            deviation = each.mean - mean
            within = (
                each.covariance_matrix if self.event_shape else torch.diag_embed(each.variance.expand(deviation.shape))
            )
            return within + deviation.unsqueeze(-1) * deviation.unsqueeze(-2)

        scale = self._over_nodes(around).detach().diagonal(dim1=-2, dim2=-1).sqrt()
        size = scale.unsqueeze(-1) * scale.unsqueeze(-2)
        return self._on_batch(self._expectation("covariance", around, size=size))

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function, ``(..., *batch)``."""
        return self._of_the_likelihood(self.conditional.element_cdf, value)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw f, and y given f."""
        with torch.no_grad():
            shape = Size(sample_shape) + self.shape()
            f = self._expanded(shape[: len(shape) - self._of_a_row])
            y: Tensor = self.conditional.given(f.mean + f.variance.sqrt() * torch.randn_like(f.mean)).base_dist.sample()
            return y if self.units is None else self.units.restored(y)

    def _own_mean(self) -> Tensor:
        """Means over the batch of the distribution inside, with errors held to the standard deviation that the nodes have."""
        found = super()._own_mean()
        with torch.no_grad():
            size = self._over_nodes(lambda each: (each.mean - found).square() + _finite_variance(each)).sqrt()
        return self._expectation("mean", lambda each: each.mean, size=size, known=self._summed(lambda value: value))

    def _expectation(
        self, name: str, figure: _Figure, *, size: Tensor, known: Callable[[], Tensor] | None = None
    ) -> Tensor:
        """Return the expectation of a figure of p(y | f), of the shape of a size; see :class:`Moment`."""

        def at(f: Tensor) -> Tensor:
            given = formed(self.conditional.given, f).base_dist
            given = given if self.units is None else self.units.image(given)
            return figure(given).expand(len(f), *size.shape)

        found = self._over_nodes(figure).expand(size.shape)
        if not self.conditional.is_checked(self.f):
            return found
        return Moment(name, far(at), found, size).expectation(self.f, known)

    def _over_nodes(self, figure: _Figure) -> Tensor:
        """Return the mean of a figure over the fixed nodes, ``(*own, ...)``."""
        terms = figure(self.inner)
        terms = terms.expand(len(self.log_weights), *terms.shape[1:])
        return (self._log_weights(terms.dim() - 1 - len(self._own)).exp() * terms).sum(0)

    def _on_batch(self, figure: Tensor) -> Tensor:
        return figure.expand(self.batch_shape + figure.shape[len(self._own) :])

    def _summed(self, figure: Callable[[Tensor], Tensor]) -> Callable[[], Tensor] | None:
        """Return what gives the mean of a figure of y as the sum over all values of y; nothing where there are many."""
        if self.units is not None or not self.inner.has_enumerate_support:
            return None
        try:
            values = self.inner.enumerate_support(expand=False)
        except NotImplementedError:  # as for a binomial whose rows have other numbers of trials
            return None
        if len(values) > _FEW:
            return None
        values = values.reshape(len(values), *[1] * len(self._own), *self.event_shape)

        def total() -> Tensor:
            each = [value.expand(self._own + self.event_shape) for value in values]
            probs = [self.conditional.element_log_prob(value, self.f).exp() for value in each]
            shape = self._own + (1,) * len(self.event_shape)
            return torch.stack([figure(v) * p.reshape(shape) for v, p in zip(each, probs, strict=True)]).sum(0)

        return total


def _finite_variance(distribution: Any) -> Tensor:
    """Return variances, with 0 for those that are infinite or not known: a part of the size of y."""
    try:
        variance: Tensor = distribution.variance
    except NotImplementedError:
        return torch.zeros(())
    return variance.nan_to_num(0.0, 0.0, 0.0)
