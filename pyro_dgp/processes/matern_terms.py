"""Additive Matern kernels: the terms of a covariance function, each a Matern kernel of one input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch

from torch import Tensor

from pyro_dgp.kernels.covariance import ConstantCovariance, Covariance, ScaledCovariance, SumCovariance
from pyro_dgp.kernels.radial import Radial
from pyro_dgp.kernels.stationary import Scaling, StationaryCovariance
from pyro_dgp.kernels.white import WhiteCovariance
from pyro_dgp.kernels.wrapping import ActiveDimsCovariance

_REMEDY = "write a sum of Matern kernels of one input each, sum(ActiveDims(Matern32(), [d]) for d in range(D))"


@dataclass(frozen=True)
class MaternTerm:
    """Matern kernel of smoothness ``order + 1/2`` of one input: ``f^(order + 1)`` is the highest derivative in its differential equation.

    :ivar dim: the column of the inputs; ``None`` for a constant, whose order and rate mean nothing.
    :ivar order: 0, 1 or 2.
    :ivar rate: ``sqrt(2 nu) / lengthscale``, ``(..., E)``.
    :ivar variance: ``(..., E)``.
    """

    dim: int | None
    order: int
    rate: Tensor
    variance: Tensor


@singledispatch
def matern_terms(covariance: Covariance, dims: Sequence[int], name: str) -> list[MaternTerm]:
    """Return the terms of a covariance function of the input columns ``dims``. White noise has none.

    :param name: the Gaussian process, for messages.
    :raises ValueError: for a covariance function that is no sum of Matern kernels of one input.
    """
    kind = type(covariance).__name__.removesuffix("Covariance")
    raise ValueError(
        f"Fourier features of {name!r} are those of Matern kernels of one input and their sums, and its kernel holds {kind}: {_REMEDY}"
    )


@matern_terms.register
def _stationary(covariance: StationaryCovariance, dims: Sequence[int], name: str) -> list[MaternTerm]:
    correlation, warp = covariance.correlation, covariance.warp
    nu = correlation.smoothness if isinstance(correlation, Radial) else None
    if nu not in (0.5, 1.5, 2.5) or not isinstance(warp, Scaling):
        raise ValueError(
            f"Fourier features of {name!r} are those of Matern kernels of smoothness 1/2, 3/2 and 5/2, and its kernel holds another one: "
            f"{_REMEDY}"
        )
    if len(dims) != 1:
        raise ValueError(
            f"Fourier features of {name!r} are those of functions of one input and their sums, and its kernel holds a Matern kernel of "
            f"{len(dims)} inputs: {_REMEDY}"
        )
    rate = (2 * nu) ** 0.5 * warp.reciprocal[..., 0, 0]
    return [MaternTerm(dims[0], int(nu), rate, covariance.variance)]


@matern_terms.register
def _constant(covariance: ConstantCovariance, dims: Sequence[int], name: str) -> list[MaternTerm]:
    return [MaternTerm(None, 0, covariance.variance, covariance.variance)]


@matern_terms.register
def _white(covariance: WhiteCovariance, dims: Sequence[int], name: str) -> list[MaternTerm]:
    return []


@matern_terms.register
def _sum(covariance: SumCovariance, dims: Sequence[int], name: str) -> list[MaternTerm]:
    return [term for part in covariance.parts for term in matern_terms(part, dims, name)]


@matern_terms.register
def _scaled(covariance: ScaledCovariance, dims: Sequence[int], name: str) -> list[MaternTerm]:
    parts = matern_terms(covariance.part, dims, name)
    return [replace(term, variance=term.variance * covariance.variance) for term in parts]


@matern_terms.register
def _active(covariance: ActiveDimsCovariance, dims: Sequence[int], name: str) -> list[MaternTerm]:
    return matern_terms(covariance.part, [dims[dim] for dim in covariance.dims], name)
