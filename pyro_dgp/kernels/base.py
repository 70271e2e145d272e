"""Base class of kernels, and the kernels that arithmetic makes: sums, products, and those that a number stands for."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import Any

from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_dgp.internal.assignment import CheckedModule, release
from pyro_dgp.kernels.covariance import (
    ConstantCovariance,
    Covariance,
    ProductCovariance,
    ScaledCovariance,
    SumCovariance,
)
from pyro_dgp.kernels.hyperparameters import per_output, positive


class Kernel(CheckedModule):
    """Base of all kernels: ``kernel()`` reads every parameter once and returns a :class:`Covariance`.

    Parameters are attributes of the module, ``PyroParam`` (a point estimate) or ``PyroSample`` (a prior). With
    ``outputs=E`` a kernel holds one set of parameters for each output of a layer, stacked in front.

    Kernels add and multiply. A number stands for a learned variance that starts there, one for all outputs:

    | written | is |
    |---|---|
    | ``k1 + k2``, ``k1 * k2`` | ``Sum(k1, k2)``, ``Product(k1, k2)`` |
    | ``2 * k``, ``k * 2`` | ``Scaled(k, variance=2.0)`` |
    | ``k + 0.5``, ``0.5 + k`` | k and ``Constant(variance=0.5)`` as a :class:`Sum` |
    | ``0 + k``, ``k + 0``, ``1 * k``, ``k * 1`` | k itself, so that ``sum(kernels)`` and ``math.prod(kernels)`` add no parameter |

    A number that shall stay as it is, and a scale of 1 that shall be learned, are written out: the attribute ``variance``
    of ``Scaled(k)`` takes what any parameter takes.

    :raises ValueError: for a negative or infinite number, and for a factor of zero.
    :raises TypeError: for anything but kernels and numbers.

    >>> from pyro_dgp import RBF, Linear, Matern52, White
    >>> kernel = Matern52(ard=2) * Linear() + White()
    >>> [name for name, _ in kernel.parts[0].named_parameters()][:2]
    ['parts.0.lengthscale_unconstrained', 'parts.0.variance_unconstrained']
    >>> kernel = 2 * RBF() + sum([RBF(), Linear()])
    >>> round(kernel.parts[0].variance.item(), 3), len(kernel.parts[1].parts)
    (2.0, 2)
    """

    spelling_is_checked = True

    #: NumPy's numbers and arrays leave the arithmetic to the kernel.
    __array_ufunc__ = None

    def forward(self) -> Covariance:
        """Read the parameters and return the covariance function. Inside a model each read is one Pyro statement."""
        raise NotImplementedError

    def __add__(self, other: Kernel | float) -> Kernel:
        return self if _is(0, other) else Sum(self, _summand(other))

    def __radd__(self, other: Kernel | float) -> Kernel:
        return self if _is(0, other) else Sum(_summand(other), self)

    def __mul__(self, other: Kernel | float) -> Kernel:
        if _is(1, other):
            return self
        if isinstance(other, Real):
            _require_variance(float(other), "times")
            return Scaled(self, variance=float(other))
        return Product(self, require_kernel(other))

    def __rmul__(self, other: Kernel | float) -> Kernel:
        return self * other  # a kernel in front would have multiplied itself


def _is(number: int, other: object) -> bool:
    """Tell whether the other side of an operator is this number."""
    return isinstance(other, Real) and bool(other == number)


def _require_variance(number: float, operator: str) -> None:
    if not (isfinite(number) and number > 0):
        raise ValueError(
            f"a kernel {operator} a number needs a positive one, a variance, not {number}: give such a number"
        )


def _summand(other: Any) -> Kernel:
    """Return the kernel that is added: a number is a random offset."""
    if isinstance(other, Real):
        _require_variance(float(other), "plus")
        return Constant(variance=float(other))
    return require_kernel(other)


def packages_of(value: object) -> set[str]:
    """Return the packages that the classes of an object come from, without their parts named ``kernels``."""
    return {base.__module__.partition(".kernels")[0] for base in type(value).__mro__}


def require_kernel(value: Any) -> Kernel:
    """Return ``value`` if it is a kernel; raise with the remedy if it is not."""
    if isinstance(value, Kernel):
        return value
    packages = packages_of(value)
    if isinstance(value, type):
        got, remedy = f"the class {value.__name__}", f"make one, {value.__name__}(...)"
    elif "gpytorch" in packages:
        got, remedy = "a kernel of GPyTorch", "wrap it, FromGPyTorch(kernel)"
    elif "pyro.contrib.gp" in packages:
        got, remedy = "a kernel of pyro.contrib.gp", "wrap it, FromPyroContrib(kernel)"
    elif isinstance(value, Covariance):
        got, remedy = "a covariance function", "give the kernel itself, not kernel()"
    elif isinstance(value, Tensor):
        got, remedy = (
            "a tensor",
            "for a scale give a number, and for a prior on it assign a PyroSample to Scaled(kernel).variance",
        )
    elif callable(value):
        got, remedy = type(value).__name__, "wrap a function k(x, z), FromFunction(function)"
    else:
        got, remedy = type(value).__name__, "give one, such as RBF()"
    raise TypeError(f"a kernel of pyro_dgp is wanted, not {got}: {remedy}")


class OneVariance(Kernel):
    """Base of kernels whose only parameter is a variance, shape ``(outputs?,)``."""

    def __init__(self, outputs: int | None = None, variance: float = 1.0) -> None:
        super().__init__()
        self.outputs = outputs
        self.variance = positive(variance, outputs)


class Constant(OneVariance):
    """Constant kernel, ``k = variance``: a random offset. ``outputs`` and ``variance`` are those of ``Stationary``.

    >>> import torch
    >>> from pyro_dgp import Constant
    >>> Constant()().matrix(torch.zeros(1, 2, 3), torch.ones(1, 3, 3)).round().tolist()
    [[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]
    """

    def forward(self) -> Covariance:
        """Read ``variance``."""
        return ConstantCovariance(per_output(self, "variance"))


class Wrapper(Kernel):
    """Base of kernels around a kernel, ``part``."""

    def __init__(self, part: Kernel) -> None:
        super().__init__()
        self.part = part

    def admit(self, name: str, value: Any) -> Any:
        """Take a kernel as ``part``."""
        return require_kernel(value) if name == "part" else value


class Scaled(Wrapper):
    """Kernel ``variance * k`` of another kernel k, with a learned variance of its own, shape ``(outputs?,)``.

    ``2 * k`` is the same as ``Scaled(k, variance=2.0)``.

    >>> from pyro_dgp import Periodic, Scaled
    >>> seasons = Scaled(Periodic(period=12.0), variance=4.0)
    >>> round(seasons.variance.item()), round(seasons.part.period.item())
    (4, 12)
    """

    def __init__(self, part: Kernel, outputs: int | None = None, variance: float = 1.0) -> None:
        super().__init__(part)
        self.outputs = outputs
        self.variance = positive(variance, outputs)

    def forward(self) -> Covariance:
        """Read the variance and the part."""
        return ScaledCovariance(self.part(), per_output(self, "variance"))


class _Combination(Kernel):
    def __init__(self, *parts: Kernel) -> None:
        super().__init__()
        if len(parts) < 2:
            raise ValueError(f"{type(self).__name__} needs two kernels or more, not {len(parts)}: pass them one by one")
        for part in parts:
            release(require_kernel(part))
        self.parts = PyroModule[nn.ModuleList](parts)

    def _read(self) -> tuple[Covariance, ...]:
        return tuple(part() for part in self.parts)


class Sum(_Combination):
    """Sum of kernels, also written ``k1 + k2``.

    >>> import torch
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

    >>> import torch
    >>> from pyro_dgp import RBF, Linear
    >>> k = (RBF() * Linear())()
    >>> x = torch.zeros(1, 3, 1)
    >>> torch.equal(k.matrix(x), k.parts[0].matrix(x) * k.parts[1].matrix(x))
    True
    """

    def forward(self) -> Covariance:
        """Read every part."""
        return ProductCovariance(self._read())
