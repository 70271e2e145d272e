"""Functions drawn from a prior of zero mean, by the type of its covariance function."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.functions.joint_path import JointPath
from pyro_dgp.functions.paths import Path, PathRequest, weighted
from pyro_dgp.functions.waves import NoWavesError, WavePath, draw_waves
from pyro_dgp.kernels.covariance import (
    ConstantCovariance,
    Covariance,
    ProductCovariance,
    ScaledCovariance,
    SumCovariance,
)
from pyro_dgp.kernels.dot_product import ArcCosineCovariance, LinearCovariance
from pyro_dgp.kernels.stationary import StationaryCovariance
from pyro_dgp.kernels.white import WhiteCovariance
from pyro_dgp.kernels.wrapping import ActiveDimsCovariance


@singledispatch
def draw_path(covariance: Covariance, request: PathRequest) -> Path:
    """Draw K functions from a Gaussian process of zero mean.

    A covariance function of a type without random features is drawn jointly at all points that are asked for.
    """
    return JointPath(covariance, request)


def _normal(request: PathRequest, *shape: int) -> Tensor:
    """Draw standard normal numbers ``(K, *shape)``."""
    return torch.randn(request.num_draws, *shape, dtype=request.like.dtype, device=request.like.device)


@draw_path.register
def _stationary(covariance: StationaryCovariance, request: PathRequest) -> Path:
    try:
        return WavePath(draw_waves(covariance, request), request)
    except NoWavesError:
        return JointPath(covariance, request)


@draw_path.register
def _product(covariance: ProductCovariance, request: PathRequest) -> Path:
    """Draw one set of waves, or, where a factor is a sum, one for each term of the sum of products."""
    if any(isinstance(part, SumCovariance) for part in covariance.parts):
        factors = [part.parts if isinstance(part, SumCovariance) else (part,) for part in covariance.parts]
        terms = [ProductCovariance(term) for term in itertools.product(*factors)]
        return draw_path(SumCovariance(tuple(terms)), request)
    try:
        return WavePath(draw_waves(covariance, request), request)
    except NoWavesError:
        return JointPath(covariance, request)


@draw_path.register
def _sum(covariance: SumCovariance, request: PathRequest) -> Path:
    return _SumPath([draw_path(part, request) for part in covariance.parts])


@draw_path.register
def _scaled(covariance: ScaledCovariance, request: PathRequest) -> Path:
    return _ScaledPath(draw_path(covariance.part, request), covariance.variance.sqrt().unsqueeze(-1))


@draw_path.register
def _active(covariance: ActiveDimsCovariance, request: PathRequest) -> Path:
    inner = replace(request, like=request.like[..., covariance.dims])
    return _SelectedPath(draw_path(covariance.part, inner), covariance.dims)


@draw_path.register
def _constant(covariance: ConstantCovariance, request: PathRequest) -> Path:
    return _ConstantPath(_normal(request, request.num_outputs, 1) * covariance.variance.sqrt().unsqueeze(-1))


@draw_path.register
def _linear(covariance: LinearCovariance, request: PathRequest) -> Path:
    return _LinearPath(covariance, _normal(request, request.num_outputs, request.like.shape[-1]))


@draw_path.register
def _arc_cosine(covariance: ArcCosineCovariance, request: PathRequest) -> Path:
    return _RectifierPath(covariance, request)


@draw_path.register
def _white(covariance: WhiteCovariance, request: PathRequest) -> Path:
    return JointPath(covariance, request)  # raises


class _SumPath(Path):
    def __init__(self, parts: list[Path]) -> None:
        self.parts = parts

    def __call__(self, x: Tensor) -> Tensor:
        total = self.parts[0](x)
        for part in self.parts[1:]:
            total = total + part(x)
        return total


class _ScaledPath(Path):
    def __init__(self, part: Path, scale: Tensor) -> None:
        self.part, self.scale = part, scale

    def __call__(self, x: Tensor) -> Tensor:
        return self.part(x) * self.scale


class _SelectedPath(Path):
    def __init__(self, part: Path, dims: tuple[int, ...]) -> None:
        self.part, self.dims = part, dims

    def __call__(self, x: Tensor) -> Tensor:
        return self.part(x[..., self.dims])


class _ConstantPath(Path):
    def __init__(self, values: Float[Tensor, "k o 1"]) -> None:
        self.values = values

    def __call__(self, x: Tensor) -> Tensor:
        return self.values.expand(*self.values.shape[:-1], x.shape[-2])


class _LinearPath(Path):
    """Linear function ``sum_d weight_d sd_d x_d`` with standard normal weights."""

    def __init__(self, covariance: LinearCovariance, weights: Float[Tensor, "k o d"]) -> None:
        self.covariance, self.weights = covariance, weights

    def __call__(self, x: Tensor) -> Tensor:
        return weighted(x * self.covariance.scale, self.weights)


class _RectifierPath(Path):
    """Sum of F random rectifiers to the power n, ``sqrt(2 variance / F) sum_f a_f max(0, w_f . x)^n`` (Cho and Saul 2009, Eq. 1)."""

    def __init__(self, covariance: ArcCosineCovariance, request: PathRequest) -> None:
        self.covariance = covariance
        inputs, features = covariance.lift(request.like).shape[-1], request.num_frequencies
        self.directions = _normal(request, request.num_kernels, inputs, features)
        scale = (2 * covariance.variance / features).sqrt().unsqueeze(-1)
        self.weights = _normal(request, request.num_outputs, features) * scale

    def __call__(self, x: Tensor) -> Tensor:
        inner = self.covariance.lift(x) @ self.directions
        step = (inner > 0).to(inner)
        return weighted(step * inner**self.covariance.order, self.weights)
