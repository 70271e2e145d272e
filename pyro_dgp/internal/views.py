"""Distributions made of others as they are: several side by side, one with some batch axes as one, and a mean over nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Size, Tensor

from pyro_dgp.internal.distributions import cdf_of, made_of, parameters_of

#: A figure of a distribution, at values or without them.
Figure = Callable[[Any, Tensor | None], Tensor]


class View(TorchDistribution):
    """Base of the views. A figure, such as the log density, is evaluated by the distributions inside.

    :ivar inner: a distribution inside.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    inner: Any

    def evaluate(self, figure: Figure, value: Tensor | None = None, lead: int = 0) -> Tensor:
        """Return a figure of shape ``(*lead, *batch, ...)``.

        :param value: values ``(*lead, *batch, *event)`` that it is a figure of.
        :param lead: number of axes in front of the batch.
        """
        raise NotImplementedError

    def behind(self, lead: Size) -> View:
        """Return the same distribution with axes of batch in front, of shape ``lead``."""
        raise NotImplementedError

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Return the same distribution over more batches; a view where all of them are in front."""
        shape, own = Size(batch_shape), len(self.batch_shape)
        if shape[len(shape) - own :] == self.batch_shape:
            return self.behind(shape[: len(shape) - own])
        return super().expand(shape, _instance)

    def _at(self, figure: Figure, value: Tensor) -> Tensor:
        value = value.expand(torch.broadcast_shapes(value.shape, self.shape()))
        return self.evaluate(figure, value, value.dim() - len(self.shape()))

    @property
    def support(self) -> Any:
        """Support of a distribution inside; its bounds may be others in the next, see ``target_kinds.bounds``."""
        return self.inner.support

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether draws are reparameterised."""
        return bool(self.inner.has_rsample)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether y takes few values, the same for each element."""
        return bool(self.inner.has_enumerate_support)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return the values that y takes, ``(C, 1, ...)``, or ``(C, *batch)``."""
        values: Tensor = self.inner.enumerate_support(expand=False)
        values = values.reshape(len(values), *[1] * len(self.batch_shape), *self.event_shape)
        return values.expand(-1, *self.shape()) if expand else values

    @property
    def mean(self) -> Tensor:
        """Means, ``(*batch, *event)``."""
        return self.evaluate(lambda each, _: each.mean.expand(each.batch_shape + each.event_shape))

    @property
    def variance(self) -> Tensor:
        """Variances, ``(*batch, *event)``."""
        return self.evaluate(lambda each, _: each.variance.expand(each.batch_shape + each.event_shape))

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariances within an event, ``(*batch, D, D)``."""
        return self.evaluate(lambda each, _: each.covariance_matrix)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each event, ``(..., *batch)``."""
        return self._at(lambda each, own: each.log_prob(own), value)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function of each element, ``(..., *batch)``."""
        return self._at(lambda each, own: cdf_of(each, own), value)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw values, ``(*sample_shape, *batch, *event)``."""
        shape = Size(sample_shape)
        with torch.no_grad():
            return self.evaluate(lambda each, _: each.sample(shape), lead=len(shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw values that are differentiable in the parameters."""
        shape = Size(sample_shape)
        return self.evaluate(lambda each, _: each.rsample(shape), lead=len(shape))


class Joined(View):
    """Distributions side by side, concatenated along an axis of their batch.

    >>> import torch
    >>> from pyro_dgp.internal.views import Joined
    >>> normals = [torch.distributions.Normal(torch.full((2, 3), mean), 1.0) for mean in (0.0, 5.0)]
    >>> Joined(normals, 1).mean[0].tolist()
    [0.0, 0.0, 0.0, 5.0, 5.0, 5.0]
    """

    def __init__(self, parts: Sequence[Any], axis: int) -> None:
        self.parts, self.axis, self.inner = list(parts), axis, parts[0]
        shape = list(parts[0].batch_shape)
        shape[axis] = sum(part.batch_shape[axis] for part in parts)
        super().__init__(Size(shape), parts[0].event_shape, validate_args=False)

    def behind(self, lead: Size) -> Joined:
        """See :class:`View`."""
        return Joined([part.expand(lead + part.batch_shape) for part in self.parts], self.axis + len(lead))

    def evaluate(self, figure: Figure, value: Tensor | None = None, lead: int = 0) -> Tensor:
        """See :class:`View`."""
        sizes = [part.batch_shape[self.axis] for part in self.parts]
        values = [None] * len(sizes) if value is None else value.split(sizes, lead + self.axis)
        return torch.cat([figure(*each) for each in zip(self.parts, values, strict=True)], lead + self.axis)


class Flattened(View):
    """A distribution with the batch axes from ``start`` to before ``end`` as one.

    >>> import torch
    >>> from pyro_dgp.internal.views import Flattened
    >>> Flattened(torch.distributions.Normal(torch.zeros(4, 2, 3), 1.0), 1, 3).batch_shape
    torch.Size([4, 6])
    """

    def __init__(self, inner: Any, start: int, end: int) -> None:
        self.inner, self.start, self.end = inner, start, end
        shape = Size(inner.batch_shape)
        super().__init__(
            Size((*shape[:start], shape[start:end].numel(), *shape[end:])), inner.event_shape, validate_args=False
        )

    def behind(self, lead: Size) -> Flattened:
        """See :class:`View`."""
        count = len(lead)
        return Flattened(self.inner.expand(lead + self.inner.batch_shape), self.start + count, self.end + count)

    def evaluate(self, figure: Figure, value: Tensor | None = None, lead: int = 0) -> Tensor:
        """See :class:`View`."""
        if value is not None:
            value = value.unflatten(lead + self.start, self.inner.batch_shape[self.start : self.end])
        return figure(self.inner, value).flatten(lead + self.start, lead + self.end - 1)


class Integrated(View):
    """The mean of a distribution over nodes ``k``, ``p(y) = sum_k w_k p_k(y)``: each element, or event, is a mixture.

    >>> import torch
    >>> from pyro_dgp.internal.views import Integrated
    >>> normals = torch.distributions.Normal(torch.tensor([[-1.0], [1.0]]), 1.0)
    >>> both = Integrated(normals, torch.tensor([0.5, 0.5]).log())
    >>> both.mean.tolist(), both.variance.tolist()
    ([0.0], [2.0])

    :param inner: a distribution of batch shape ``(K, ...)``.
    :param log_weights: log weights ``(K,)``, or ``(K, ...)`` that broadcast against the batch; they sum to one.
    :param known_variance: variance in closed form, which broadcasts against the batch, for tails that reach beyond the nodes.
    """

    has_rsample = False  # type: ignore[assignment]

    def __init__(
        self,
        inner: Any,
        log_weights: Tensor,
        batch_shape: Sequence[int] | None = None,
        *,
        known_variance: Tensor | None = None,
    ) -> None:
        self.inner, self.log_weights, self._own = inner, log_weights, inner.batch_shape[1:]
        self.known_variance = known_variance
        shape = self._own if batch_shape is None else Size(batch_shape)
        super().__init__(shape, inner.event_shape, validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Integrated:
        """Return the same distribution over more batches. The distribution inside keeps its own."""
        return Integrated(self.inner, self.log_weights, batch_shape, known_variance=self.known_variance)

    def _log_weights(self, extra: int = 0) -> Tensor:
        """Log weights ``(K, *own, 1, ...)``, or ones in the place of the batch, with ``extra`` axes of size one behind."""
        weights, batch = self.log_weights, len(self._own)
        missing = [1] * (batch + 1 - weights.dim())
        return weights.reshape(len(weights), *missing, *weights.shape[1:], *[1] * extra)

    def _axis(self, value: Tensor | None) -> int:
        """Place of the nodes among the axes of terms at a value."""
        return 0 if value is None else value.dim() - len(self.event_shape) - len(self._own)

    def evaluate(self, figure: Figure, value: Tensor | None = None, lead: int = 0) -> Tensor:
        """Return the weighted mean of a figure over the nodes."""
        axis = self._axis(value)
        terms = figure(self.inner, None if value is None else value.unsqueeze(axis))
        extra = terms.dim() - axis - 1 - len(self._own)
        result = (self._log_weights(extra).exp() * terms).sum(axis)
        wanted = self.batch_shape + result.shape[result.dim() - extra :]
        return result.expand(torch.broadcast_shapes(result.shape, wanted))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of the mixture, ``(..., *batch)``."""
        value = value.expand(torch.broadcast_shapes(value.shape, self.shape()))
        axis = self._axis(value)
        terms = self.inner.log_prob(value.unsqueeze(axis))
        return torch.logsumexp(self._log_weights() + terms, axis)

    @property
    def variance(self) -> Tensor:
        """The mean of the variances and the variance of the means, ``(*batch, *event)``; that in closed form where it is known."""
        if self.known_variance is not None:
            return self.known_variance.expand(self.shape())
        mean = self._own_mean()
        return super().variance + self.evaluate(lambda each, _: (each.mean - mean).square())

    @property
    def covariance_matrix(self) -> Tensor:
        """The mean of the covariances and the covariance of the means, ``(*batch, D, D)``."""
        mean = self._own_mean()
        between = self.evaluate(lambda each, _: (each.mean - mean).unsqueeze(-1) * (each.mean - mean).unsqueeze(-2))
        return super().covariance_matrix + between

    def _own_mean(self) -> Tensor:
        """Means over the batch of the distribution inside."""
        return (self._log_weights(len(self.event_shape)).exp() * self.inner.mean).sum(0)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw a node for each element, or event, and a value from it."""
        events, own = self.event_shape, len(self._own)
        lead = Size(sample_shape) + self.batch_shape[: len(self.batch_shape) - own]
        batch = self.batch_shape[len(self.batch_shape) - own :]
        with torch.no_grad():
            weights = self._log_weights().movedim(0, -1)
            logits = weights.expand(*batch, weights.shape[-1])
            chosen = torch.distributions.Categorical(logits=logits).sample(lead)
            parameters = parameters_of(self.inner)
            if parameters is not None:
                axes = [torch.arange(size, device=chosen.device) for size in self._own]
                places = torch.meshgrid(*axes, indexing="ij")
                drawn_from = {name: value[(chosen, *places)] for name, value in parameters.items()}
                return made_of(self.inner, drawn_from).sample()  # type: ignore[no-any-return]
            draws = self.inner.expand((len(self.log_weights), *batch)).sample(lead)
            index = chosen.reshape(*lead, 1, *batch, *[1] * len(events))
            return draws.gather(len(lead), index.expand(*lead, 1, *batch, *events)).squeeze(len(lead))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Raise: the choice of a node has no gradient."""
        raise NotImplementedError(
            f"a mean of {type(self.inner).__name__} over nodes has no reparameterised draws: use sample"
        )
