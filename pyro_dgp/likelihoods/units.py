"""Units of inputs and targets: the affine map that standardises columns, and images of distributions under its inverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from torch import Size, Tensor, nn
from torch.distributions import Distribution, Transform

from pyro_dgp.internal.affine import restored, standardised
from pyro_dgp.internal.distributions import elementwise, is_real
from pyro_dgp.internal.views import Integrated
from pyro_dgp.likelihoods.placed_mixture import PlacedMixture


class Units(nn.Module):
    """Units of columns: ``standardised = (value - mean) / scale``, by buffers that the state dict holds.

    The buffers are float64 on every device, and the map is computed in float64, whatever the dtype of the values and of the model
    around it: float32 years such as 2020.5 lose nothing. Results have the dtype of the values.

    :param mean: ``()`` for all values alike, or ``(columns,)``.
    :param scale: standard deviation, of the same shape.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.double())
        self.register_buffer("scale", scale.double())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Units:
        """Move to another device, but stay in float64."""
        exact = self.mean, self.scale
        super()._apply(fn, recurse)
        self.mean, self.scale = (value.to(self.mean.device) for value in exact)
        return self

    def forward(self, values: Tensor) -> Tensor:
        """Standardised values, ``(...)`` or ``(..., columns)``."""
        return standardised(values.double(), self.mean, self.scale).to(values.dtype)  # type: ignore[no-any-return]

    def restored(self, values: Tensor) -> Tensor:
        """Return standardised values in their own units, the inverse of calling this module."""
        return restored(values.double(), self.mean, self.scale).to(values.dtype)  # type: ignore[no-any-return]

    def log_scale(self, outputs: int) -> Tensor:
        """Return ``sum_d log scale_d`` over the outputs of a row: what a log density in these units is less than one of standardised values."""
        return self.scale.log().expand(outputs).sum()

    def of_columns(self, chosen: Sequence[int]) -> Units:
        """Return the units of some columns; of one alone they have shape ``()``."""
        if not self.scale.dim():
            return self
        columns = list(chosen) if len(chosen) > 1 else chosen[0]
        return Units(self.mean[columns], self.scale[columns])

    def image(self, distribution: Any) -> Any:
        """Return the distribution of ``mean + scale * z`` for z of a distribution, in the family of that.

        :raises ValueError: for families that are not closed under affine maps, and for other numbers of outputs.
        """
        if isinstance(distribution, PlacedMixture):
            return distribution.in_units(self)
        if isinstance(distribution, Integrated):
            variance = distribution.known_variance
            variance = None if variance is None else self.scaled(variance, power=2)
            return type(distribution)(self.image(distribution.inner), distribution.log_weights, known_variance=variance)
        self._require_outputs(distribution.batch_shape + distribution.event_shape)
        kind: Any = type(distribution)
        if kind not in CLOSED:
            raise ValueError(
                f"targets cannot be put into units of their own through {kind.__name__}: give a normal, Student's t, Laplace, Cauchy or Gumbel "
                "distribution, or standardise the targets before training"
            )
        changed = {name: change(getattr(distribution, name), self) for name, change in CLOSED[kind].items()}
        return kind(loc=self.restored(distribution.loc), **changed, validate_args=False)

    def scaled(self, values: Tensor, *, power: int = 1, axis: int = -1) -> Tensor:
        """Return values times a power of the scales of the outputs, which lie along an axis, -1 or -2."""
        scale = self.scale.unsqueeze(-1) if self.scale.dim() and axis == -2 else self.scale
        return (values.double() * scale**power).to(values.dtype)

    def _require_outputs(self, shape: Size) -> None:
        if self.scale.dim() and (len(shape) < 2 or shape[-1] != len(self.scale)):
            raise ValueError(
                f"the standardiser was fitted to {len(self.scale)} outputs, and the targets have shape {tuple(shape)}: both are (N, D_out)"
            )


#: The units of targets that a likelihood takes as they are.
NO_UNITS = Units(torch.zeros(()), torch.ones(()))

#: What an affine map does to a parameter of a family.
_Change = Callable[[Tensor, Units], Tensor]

_KEPT: _Change = lambda values, units: values  # noqa: E731
_SCALED: _Change = lambda values, units: units.scaled(values)  # noqa: E731
_ROWS_SCALED: _Change = lambda values, units: units.scaled(values, axis=-2)  # noqa: E731
_SCALED_TWICE: _Change = lambda values, units: units.scaled(values, power=2)  # noqa: E731

#: Families that an affine map leaves in place, with what it does to their parameters besides ``loc``.
CLOSED: dict[Any, dict[str, _Change]] = {
    getattr(module, name): changes
    for module in (torch.distributions, dist)
    for name, changes in {
        "Normal": {"scale": _SCALED},
        "StudentT": {"df": _KEPT, "scale": _SCALED},
        "Laplace": {"scale": _SCALED},
        "Cauchy": {"scale": _SCALED},
        "Gumbel": {"scale": _SCALED},
        "MultivariateNormal": {"scale_tril": _ROWS_SCALED},
        "LowRankMultivariateNormal": {"cov_factor": _ROWS_SCALED, "cov_diag": _SCALED_TWICE},
    }.items()
}


class _Restore(Transform):
    """The map from standardised values to their own units."""

    domain = constraints.real
    codomain = constraints.real
    bijective = True
    sign = 1

    def __init__(self, units: Units) -> None:
        super().__init__()
        self.units = units

    def _call(self, x: Tensor) -> Tensor:
        return self.units.restored(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.units(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """``log scale``."""
        return self.units.scale.log().to(x.dtype).expand(x.shape)


class InUnits(dist.TransformedDistribution):  # type: ignore[misc]
    """Distribution of targets ``y = mean + scale z``, given that of the standardised targets z.

    Its log density is ``log p(z) - log scale``, summed over the axes of an event, with z computed in float64. ``image`` is the same
    distribution in the family of z's, a normal for a normal: its moments and distribution function are closed forms.

    :ivar base_dist: the distribution of z.
    :ivar units: mean and scale.
    """

    def __init__(self, of_standardised: Distribution, units: Units) -> None:
        if not is_real(of_standardised):
            raise ValueError(
                f"targets of {type(elementwise(of_standardised)).__name__} are not all real numbers, so that they have no mean and scale to be "
                "standardised by: take Standardizer.fit(x), without y, which leaves targets as they are"
            )
        self.units, self.image = units, units.image(of_standardised)
        super().__init__(of_standardised, [_Restore(units)], validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> InUnits:
        """Return the same distribution over more batches."""
        return InUnits(self.base_dist.expand(Size(batch_shape)), self.units)

    @property
    def mean(self) -> Tensor:
        """Mean, in the target's units."""
        return self.image.mean

    @property
    def variance(self) -> Tensor:
        """Variance, squared units of the target."""
        return self.image.variance


def in_units(distribution: Any, units: Units) -> Any:
    """Return the distribution of ``mean + scale * z`` for z of a distribution of standardised targets.

    An ``Independent`` around that stays outside, so that rows stay where losses look for them.
    """
    if isinstance(distribution, torch.distributions.Independent):
        return dist.Independent(in_units(distribution.base_dist, units), distribution.reinterpreted_batch_ndims)
    return InUnits(distribution, units)


def standardised_value(distribution: Any, value: Tensor) -> Tensor:
    """Return a value of a distribution as that of the standardised variable, if the distribution has units."""
    inner = elementwise(distribution)
    return inner.units(value) if isinstance(inner, InUnits) else value


def plain(distribution: Any) -> Any:
    """Return the elementwise distribution, in the family of what it was made of."""
    inner = elementwise(distribution)
    return inner.image if isinstance(inner, InUnits) else inner
