"""Base classes of kernels. A kernel is a Pyro module; called, it reads its parameters and returns a covariance function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn

from pyro_dgp.internal.parameters import require_number


class Covariance(ABC):
    """A covariance function k with fixed parameter values.

    Inputs carry an axis for the outputs of a layer, of size 1 where the outputs share them: ``(..., E, N, D)``.

    | call | result |
    |---|---|
    | ``matrix(x)`` | ``(..., E, N, N)``, k among the points of one set (white noise included) |
    | ``matrix(x, z)`` | ``(..., E, N, M)``, k between two sets of distinct points |
    | ``diagonal(x)`` | ``(..., E, N)``, the variance k(x_n, x_n) |

    >>> import torch
    >>> from pyro_dgp import RBF
    >>> covariance = RBF()()
    >>> x, z = torch.zeros(1, 5, 2), torch.ones(1, 3, 2)
    >>> covariance.matrix(x, z).shape, covariance.diagonal(x).shape
    (torch.Size([1, 5, 3]), torch.Size([1, 5]))
    """

    @abstractmethod
    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """Covariances within ``x``, or between ``x`` and ``z``."""

    @abstractmethod
    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """Variances at ``x``."""


class Kernel(PyroModule):
    """Base of all kernels: ``kernel()`` reads every parameter once and returns a :class:`Covariance`.

    Parameters are attributes of the module, ``PyroParam`` (a point estimate) or ``PyroSample`` (a prior). With
    ``outputs=E`` a kernel holds one set of parameters for each output of a layer, stacked in front.

    >>> from pyro_dgp import Linear, Matern52, White
    >>> kernel = Matern52(ard=2) * Linear() + White()
    >>> [name for name, _ in kernel.parts[0].named_parameters()][:2]
    ['parts.0.lengthscale_unconstrained', 'parts.0.variance_unconstrained']
    """

    def forward(self) -> Covariance:
        """Read the parameters and return the covariance function. Inside a model each read is one Pyro statement."""
        raise NotImplementedError

    def __add__(self, other: Kernel) -> Kernel:

        return Sum(self, other)

    def __mul__(self, other: Kernel) -> Kernel:

        return Product(self, other)


#: Constraint of positive parameters: softplus, whose steps do not grow with the value as those of exp do.
POSITIVE = constraints.softplus_positive


def positive(value: float, *shape: int | None) -> PyroParam:
    """A positive point estimate of the given shape, whose ``None`` entries are left out. A tensor as its start is refused."""
    require_number(value)
    sizes = [size for size in shape if size is not None]
    return PyroParam(torch.full(sizes, float(value)), constraint=POSITIVE, event_dim=len(sizes))


def per_output(value: Tensor, outputs: int | None) -> Tensor:
    """Return a scalar parameter, ``(*h,)`` or ``(*h, E)``, with the output axis made explicit: ``(*h, E or 1)``."""
    _require_shape(value, (outputs,))
    return value.unsqueeze(-1) if outputs is None else value


def per_dimension(value: Tensor, outputs: int | None, ard: int | None) -> Tensor:
    """Return a lengthscale-like parameter with the axes of outputs and inputs explicit: ``(*h, E or 1, 1, D or 1)``."""
    _require_shape(value, (outputs, ard))
    if ard is None:
        value = value.unsqueeze(-1)
    if outputs is None:
        value = value.unsqueeze(-2)
    return value.unsqueeze(-2)


def _require_shape(value: Tensor, sizes: tuple[int | None, ...]) -> None:
    shape = tuple(size for size in sizes if size is not None)
    if shape and tuple(value.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"a kernel parameter has shape {tuple(value.shape)} where {shape} is wanted: write a prior as "
            f"PyroSample(distribution.expand({list(shape)}).to_event({len(shape)}))"
        )


def require_dimensions(x: Tensor, parameter: Tensor) -> None:
    """Raise unless a parameter ``(..., D or 1)`` has an entry for each dimension of the inputs, or one for all."""
    if parameter.shape[-1] not in (1, x.shape[-1]):
        raise ValueError(
            f"a kernel with ard={parameter.shape[-1]} got inputs of {x.shape[-1]} dimensions: make them equal"
        )


@dataclass(frozen=True)
class ConstantDiagonal:
    """Mixin of covariance functions whose variance is the same everywhere."""

    variance: Tensor

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """Return ``variance`` repeated for each point: ``(..., E, N)``."""
        ones = x.new_ones(()).expand(x.shape[:-1])  # broadcasts at no cost; torch.broadcast_shapes is slow
        return self.variance.unsqueeze(-1) * ones


@dataclass(frozen=True)
class CombinedCovariance(Covariance):
    """Base of sums and products of covariance functions."""

    parts: tuple[Covariance, ...]

    @staticmethod
    @abstractmethod
    def combine(first: Tensor, second: Tensor) -> Tensor:
        """Return the values of two parts together."""

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return reduce(self.combine, [part.matrix(x, z) for part in self.parts])

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        return reduce(self.combine, [part.diagonal(x) for part in self.parts])


class SumCovariance(CombinedCovariance):
    """Covariance function ``k_1 + k_2 + ...``."""

    @staticmethod
    def combine(first: Tensor, second: Tensor) -> Tensor:
        """See :class:`CombinedCovariance`."""
        return first + second


class ProductCovariance(CombinedCovariance):
    """Covariance function ``k_1 * k_2 * ...``."""

    @staticmethod
    def combine(first: Tensor, second: Tensor) -> Tensor:
        """See :class:`CombinedCovariance`."""
        return first * second


class _Combination(Kernel):
    def __init__(self, *parts: Kernel) -> None:
        super().__init__()
        if len(parts) < 2:
            raise ValueError(f"{type(self).__name__} needs two kernels or more, not {len(parts)}: pass them one by one")
        self.parts = PyroModule[nn.ModuleList](parts)

    def _read(self) -> tuple[Covariance, ...]:
        return tuple(part() for part in self.parts)


class Sum(_Combination):
    """Sum of kernels, also written ``k1 + k2``.

    >>> from pyro_dgp import RBF, Linear
    >>> k = (RBF() + Linear())()
    >>> x = torch.zeros(1, 3, 1)
    >>> torch.equal(k.matrix(x), k.parts[0].matrix(x) + k.parts[1].matrix(x))
    True
    """

    def forward(self) -> Covariance:
        """Read every part."""
        return SumCovariance(self._read())


class Product(_Combination):
    """Product of kernels, also written ``k1 * k2``.

    >>> from pyro_dgp import RBF, Linear
    >>> k = (RBF() * Linear())()
    >>> x = torch.zeros(1, 3, 1)
    >>> torch.equal(k.matrix(x), k.parts[0].matrix(x) * k.parts[1].matrix(x))
    True
    """

    def forward(self) -> Covariance:
        """Read every part."""
        return ProductCovariance(self._read())
