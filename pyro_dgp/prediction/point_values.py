"""Point masses: the components of a prediction of values that a model computes or samples, such as a rate or a noise level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Size, Tensor


class PointValues(TorchDistribution):
    """A point mass at each value: mean ``value``, variance 0, no density.

    :param value: the values, in the batch shape.
    :param site: name of the site that they are of, for messages.

    >>> import torch
    >>> from pyro_dgp.prediction.point_values import PointValues
    >>> PointValues(torch.tensor([1.0, 3.0]), "rate").cdf(torch.tensor([2.0, 2.0])).tolist()
    [1.0, 0.0]
    """

    arg_constraints: dict[str, constraints.Constraint] = {"value": constraints.real}
    support = constraints.real
    has_rsample = True

    def __init__(self, value: Tensor, site: str) -> None:
        self.value = value if value.is_floating_point() else value.to(torch.get_default_dtype())
        self.site = site
        super().__init__(value.shape, Size(), validate_args=False)

    def joined(self, others: Sequence[PointValues], axis: int) -> PointValues:
        """Return these values and those of others, concatenated along an axis."""
        return PointValues(torch.cat([self.value, *(other.value for other in others)], axis), self.site)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> PointValues:
        """Return the same values over more batches."""
        return PointValues(self.value.expand(Size(batch_shape)), self.site)

    @property
    def mean(self) -> Tensor:
        """The values."""
        return self.value

    @property
    def variance(self) -> Tensor:
        """Zeros."""
        return torch.zeros_like(self.value)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return the values, ``(*sample_shape, ...)``."""
        return self.value.expand(self._extended_shape(Size(sample_shape)))

    def cdf(self, value: Tensor) -> Tensor:
        """Return 1 where a value is at most ``value``, else 0."""
        return (self.value <= value).to(self.value)

    def log_prob(self, value: Tensor) -> Tensor:
        """Raise, since a mixture of point masses has no density."""
        raise ValueError(
            f"the prediction of {self.site!r} is a mixture of the values that the site takes, which has no density: take mean, "
            "variance, quantile, cdf, sample or crps"
        )

    def quantile(self, level: Tensor, log_weights: Tensor) -> Tensor:
        """Return quantiles of the mixture, ``(Q, ...)``: the least value at which the weights up to it reach a level.

        :param level: ``(Q,)``.
        :param log_weights: of the components, which lead the values: ``(S,)``.
        """
        ordered, index = self.value.sort(0)
        reached = log_weights.exp()[index].cumsum(0)
        least = level - 8 * torch.finfo(level.dtype).eps
        at = [(reached < each).sum(0).clamp_max(len(ordered) - 1) for each in least]
        return torch.stack([ordered.gather(0, each.unsqueeze(0)).squeeze(0) for each in at])
