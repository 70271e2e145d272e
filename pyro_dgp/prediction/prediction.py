"""Predictive distributions: mixtures, evaluated in batches of test rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Size, Tensor

from pyro_dgp.internal.tensors import require_tensor
from pyro_dgp.prediction.mixture import Mixture, join_rows


class Prediction(TorchDistribution):
    """The predictive distribution at N test rows: for each row the full mixture over components and posterior draws.

    Its batch shape is ``(N,)``, or ``(*groups, N)`` for a model with groups, its event shape ``()`` or ``(D_out,)``, in
    units of the targets in training. Memory does not grow with N. All methods use one seed and see the same mixture. A row is evaluated
    at its first use, with the parameters of that time: compute what you need before you train further.

    Where an input wants gradients (``x.requires_grad``), moments, ``log_prob``, ``cdf``, ``quantile`` (twice) and ``rsample``
    are differentiable in it. Each figure then has a graph of its own, and a mixture is evaluated again for each.

    :param evaluate: gives the mixture of a slice of rows.
    :param rows: number of rows, N.
    :param event_shape: ``()`` or ``(D_out,)``.
    :param groups: batch axes in front of the rows; in the mixture of a slice the rows of all groups are one behind another.
    :param batch_size: number of rows evaluated at a time.
    :param keep: most numbers that mixtures may have in all to be kept after their first use.
    :param inputs: tensors that the mixtures depend on, asked whether they want gradients.
    :param components_of_draw: number of components of each draw of a sampler; the first ones of all draws come first.
    :param drawn_by_row: names of latent sites with a value for each row, and of functions with a part of each row, that are drawn from their priors.
    :param sampled: gives the mixture over the draws of a sampler with the values that they have at the training rows, where the rows are these.
    :ivar seed: of the mixtures, for use where functions or targets are drawn from them.

    >>> import pyro.distributions as dist, torch
    >>> from pyro_dgp import Mixture, Prediction
    >>> def standard_normal(rows):
    ...     mean = torch.zeros(1, rows.stop - rows.start)
    ...     return Mixture(dist.Normal(mean, torch.ones_like(mean)), torch.zeros(1))
    >>> prediction = Prediction(standard_normal, rows=3)
    >>> prediction.cdf(torch.zeros(3)).tolist()
    [0.5, 0.5, 0.5]
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real

    def __init__(
        self,
        evaluate: Callable[[slice], Mixture],
        rows: int,
        event_shape: Size = Size(),
        *,
        groups: Size = Size(),
        batch_size: int = 1000,
        keep: int = 20_000_000,
        inputs: Sequence[Tensor] = (),
        components_of_draw: int = 1,
        drawn_by_row: Sequence[str] = (),
        sampled: Callable[[], Mixture] | None = None,
    ) -> None:
        self._evaluate, self._batch_size, self._keep, self._inputs = evaluate, batch_size, keep, tuple(inputs)
        self.seed = int(torch.randint(2**31 - 1, ()))
        self._kept: dict[int, Mixture] = {}
        self._count, self._groups = rows, groups
        self.components_of_draw, self.drawn_by_row, self.sampled = components_of_draw, tuple(drawn_by_row), sampled
        super().__init__((*groups, rows), event_shape, validate_args=False)

    def __repr__(self) -> str:
        event = f", event_shape={tuple(self.event_shape)}" if self.event_shape else ""
        return f"Prediction(rows={self._count}{f', groups={tuple(self._groups)}' if self._groups else ''}{event})"

    @property
    def _is_differentiable(self) -> bool:
        """Whether gradients are wanted, by an input and by the caller's mode."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self._inputs)

    def _mixture(self, start: int) -> Mixture:
        wanted = self._is_differentiable
        if start in self._kept and not wanted:
            return self._kept[start]
        with torch.random.fork_rng(), torch.set_grad_enabled(wanted):
            torch.manual_seed(self.seed + start)
            mixture = self._evaluate(slice(start, min(start + self._batch_size, self._count)))
        size = (mixture.components.batch_shape + mixture.components.event_shape).numel()
        if not wanted and size * self._count // min(self._batch_size, self._count) <= self._keep:
            self._kept[start] = mixture
        return mixture

    def mixture(self) -> Mixture:
        """Return the mixture of all rows at once; with groups, the rows of each batch group by group."""
        return join_rows([self._mixture(start) for start in self._starts()])

    def mixtures(self, value: Tensor) -> Iterator[tuple[Mixture, Tensor]]:
        """Iterate over batches of rows: the mixture of a batch, and the targets of its rows.

        :param value: targets of all rows, ``(N, ...)``.
        :raises ValueError: for targets of another shape.
        """
        self._check(value)
        for start in self._starts():
            yield self._mixture(start), _part(value, slice(start, start + self._batch_size), len(self._groups))

    @property
    def is_discrete(self) -> bool:
        """Whether the target is a class or a count."""
        return self._mixture(0).is_discrete

    def _starts(self) -> range:
        return range(0, self._count, self._batch_size)

    def _rows(self, method: Callable[[Mixture, Any], Tensor], value: Tensor | None = None, axis: int = 0) -> Tensor:
        if value is not None:
            self._check(value)
        parts = []
        for start in self._starts():
            part = None if value is None else _part(value, slice(start, start + self._batch_size), len(self._groups))
            result = method(self._mixture(start), part)
            parts.append(result.unflatten(axis, (*self._groups, -1)) if self._groups else result)
        return torch.cat(parts, axis + len(self._groups))

    def _check(self, value: Tensor) -> None:
        require_tensor(value, "targets are", "y")
        shape = self.batch_shape + self.event_shape
        if value.shape != shape:
            raise ValueError(
                f"targets have shape {tuple(value.shape)}, the prediction {tuple(shape)}: pass one target for each test row"
            )

    @property
    def mean(self) -> Tensor:
        """Predictive mean, ``(N,)`` or ``(N, D_out)``; classes have :attr:`probs` instead."""
        return self._rows(lambda mixture, _: mixture.mean)

    @property
    def variance(self) -> Tensor:
        """Total predictive variance, noise included (not a standard deviation)."""
        return self._rows(lambda mixture, _: mixture.variance)

    @property
    def probs(self) -> Tensor:
        """Predictive probabilities of the classes, ``(N, C)``, and of the values of other targets that have few.

        >>> import pyro.distributions as dist, torch
        >>> from pyro_dgp import Mixture, Prediction
        >>> def two_components(rows):
        ...     return Mixture(dist.Categorical(torch.tensor([[[0.2, 0.8]], [[0.4, 0.6]]])), torch.full((2,), 0.5).log())
        >>> [round(value, 2) for value in Prediction(two_components, rows=1).probs[0].tolist()]
        [0.3, 0.7]
        """
        return self._rows(lambda mixture, _: mixture.probs)

    @property
    def covariance(self) -> Tensor:
        """Total predictive covariance over the outputs of each row, ``(N, D_out, D_out)``, noise included.

        It follows from the law of total covariance over the components of the mixture, and its diagonal is the variance.
        For one output it is ``(N, 1, 1)``.
        """
        return self._rows(lambda mixture, _: mixture.covariance)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of the mixture for each row, nats: ``(N,)``; joint over the outputs of a row."""
        return self._rows(lambda mixture, part: mixture.log_prob(part), value)

    def component_log_prob(self, value: Tensor) -> Tensor:
        """Return the log density under each component, ``(S, N)``."""
        return self._rows(lambda mixture, part: mixture.component_log_prob(part), value, 1)

    def functions(self) -> Mixture:
        """Return the mixture of the functions under the likelihood, no noise: normal components ``(S, N, F)``, standardised by a Standardizer."""
        require_no_groups(self, "the functions under the likelihood")
        with torch.set_grad_enabled(self._is_differentiable):
            return join_rows([self._mixture(start).functions() for start in self._starts()])

    def cdf(self, value: Tensor) -> Tensor:
        """Return ``p(y <= value)``, elementwise; for counts whose distribution has no cdf a sum of probabilities."""
        return self._rows(lambda mixture, part: mixture.cdf(part), value)

    def quantile(self, level: float | Sequence[float] | Tensor) -> Tensor:
        """Return quantiles, elementwise: ``(N, ...)`` for one level, ``(Q, N, ...)`` for several."""
        levels = torch.as_tensor(level, dtype=torch.float64)
        if levels.dim() > 1:
            raise ValueError(f"quantile levels are one number or a list of numbers, got shape {tuple(levels.shape)}")
        if bool(((levels <= 0) | (levels >= 1)).any()):
            raise ValueError(f"quantile levels lie strictly between 0 and 1, got {levels.tolist()}: use 0.05, not 5")
        result = self._rows(lambda mixture, _: mixture.quantile(_rounded(levels.reshape(-1), mixture)), axis=1)
        return result[0] if levels.dim() == 0 else result

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw ``(*sample_shape, N, ...)`` values from the mixtures of the rows, independent over rows."""
        return self._drawn(Size(sample_shape), lambda mixture, count: mixture.sample(count))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw as :meth:`sample` does, with gradients in the inputs that want them.

        With the same seed before each call, draws are smooth functions of the inputs.
        """
        return self._drawn(Size(sample_shape), lambda mixture, count: mixture.rsample(count))

    @property
    def has_rsample(self) -> bool:
        """Whether y has reparameterised draws."""
        return bool(self._mixture(0).components.has_rsample)

    def _drawn(self, shape: Size, draw: Callable[[Mixture, int], Tensor]) -> Tensor:
        draws = self._rows(lambda mixture, _: draw(mixture, shape.numel()), axis=1)
        return draws.reshape(shape + draws.shape[1:])

    def crps(self, value: Tensor) -> Tensor:
        """Return the continuous ranked probability score of the mixture, elementwise, in units of y."""
        return self._rows(lambda mixture, part: mixture.crps(part), value)


def _rounded(levels: Tensor, mixture: Mixture) -> Tensor:
    """Return levels in the dtype of a mixture; raise for those that are 0 or 1 there."""
    found = levels.to(mixture.log_weights)
    for level, rounded in zip(levels.tolist(), found.tolist(), strict=True):
        if not 0 < rounded < 1:
            raise ValueError(
                f"the quantile level {level!r} is {rounded:g} in {found.dtype}: take one that is less extreme, or a model in float64"
            )
    return found


def _part(value: Tensor, rows: slice, axis: int) -> Tensor:
    """Return the values of a batch of rows, those of all groups, the axes before ``axis``, one behind another."""
    part = value[(slice(None),) * axis + (rows,)]
    return part.flatten(0, axis) if axis else part


def require_no_groups(prediction: TorchDistribution, what: str) -> None:
    """Raise where a prediction has groups.

    :param what: what is made of one data set alone, for the message.
    """
    groups = tuple(prediction.batch_shape[:-1])
    if groups:
        raise ValueError(
            f"{what} are those of one data set, and the prediction has groups of shape {groups}: take its mean, variance, quantile, "
            "sample and log_prob, or predict the site of the functions, predict(..., site='y/f')"
        )
