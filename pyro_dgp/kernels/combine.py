"""Kernels made of kernels: sums, products, a scale in front, a choice of input dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, mul

from jaxtyping import Float
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_dgp.kernels.base import Covariance, Kernel, per_output, positive


@dataclass(frozen=True)
class SumCovariance(Covariance):
    """``k_1 + k_2 + ...``"""

    parts: tuple[Covariance, ...]

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return reduce(add, [part.matrix(x, z) for part in self.parts])

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        return reduce(add, [part.diagonal(x) for part in self.parts])


@dataclass(frozen=True)
class ProductCovariance(Covariance):
    """``k_1 * k_2 * ...``"""

    parts: tuple[Covariance, ...]

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return reduce(mul, [part.matrix(x, z) for part in self.parts])

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        return reduce(mul, [part.diagonal(x) for part in self.parts])


@dataclass(frozen=True)
class ScaledCovariance(Covariance):
    """``variance * k``."""

    part: Covariance
    variance: Tensor

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return self.variance[..., None, None] * self.part.matrix(x, z)

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        return self.variance[..., None] * self.part.diagonal(x)


@dataclass(frozen=True)
class ActiveDimsCovariance(Covariance):
    """``k`` on some of the input dimensions."""

    part: Covariance
    dims: tuple[int, ...]

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return self.part.matrix(x[..., self.dims], None if z is None else z[..., self.dims])

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        return self.part.diagonal(x[..., self.dims])


class _Combination(Kernel):
    def __init__(self, *parts: Kernel) -> None:
        super().__init__()
        if len(parts) < 2:
            raise ValueError(f"{type(self).__name__} needs two kernels or more, not {len(parts)}")
        self.parts = PyroModule[nn.ModuleList](parts)

    def _read(self) -> tuple[Covariance, ...]:
        return tuple(part() for part in self.parts)


class Sum(_Combination):
    """Sum of kernels, also written ``k1 + k2``."""

    def forward(self) -> Covariance:
        """Read every part."""
        return SumCovariance(self._read())


class Product(_Combination):
    """Product of kernels, also written ``k1 * k2``."""

    def forward(self) -> Covariance:
        """Read every part."""
        return ProductCovariance(self._read())


class Scaled(Kernel):
    """``variance * k`` with a variance of its own, shape ``(outputs?,)``."""

    def __init__(self, part: Kernel, outputs: int | None = None, variance: float = 1.0) -> None:
        super().__init__()
        self.part, self.outputs = part, outputs
        self.variance = positive(variance, outputs)

    def forward(self) -> Covariance:
        """Read the variance and the part."""
        return ScaledCovariance(self.part(), per_output(self.variance, self.outputs))


class ActiveDims(Kernel):
    """A kernel on the input dimensions ``dims`` alone; ``ard`` of the part counts these."""

    def __init__(self, part: Kernel, dims: Sequence[int]) -> None:
        super().__init__()
        self.part, self.dims = part, tuple(dims)

    def forward(self) -> Covariance:
        """Read the part."""
        return ActiveDimsCovariance(self.part(), self.dims)
