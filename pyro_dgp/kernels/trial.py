"""Trial of the covariance functions of a user's own classes, on a few rows, where a process first meets them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pyro_dgp.internal.parameters import evaluating
from pyro_dgp.internal.recording import recording
from pyro_dgp.kernels.covariance import CombinedCovariance, Covariance, ScaledCovariance
from pyro_dgp.kernels.wrapping import ActiveDimsCovariance

#: Rows of the first inputs on which a covariance function is tried.
TRIED_ROWS = 6
#: Difference, as a share of the largest covariance, beyond which two are not the same: jitter, and the rounding of float32, are far below.
SHARE = 0.01

#: The kernels that were tried, and on how many rows: few of them show little.
_tried: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def try_once(kernel: Any, covariance: Any, x: Tensor) -> None:
    """Raise, at the first use of a kernel alone, if a covariance function in it that is of a user's class contradicts itself.

    :param covariance: that of the kernel now.
    :param x: inputs ``(..., N, D)``.
    :raises ValueError: with the class, and what of it contradicts what.
    """
    rows = min(x.shape[-2], TRIED_ROWS)
    if _tried.get(kernel, 0) >= rows or recording():
        return
    with torch.no_grad(), evaluating(kernel), torch.random.fork_rng([x.device] if x.is_cuda else []):
        for part, few in _own_parts(covariance, x.detach()[..., :rows, :].unsqueeze(-3)):
            _require_covariance(part, few)
    _tried[kernel] = rows


def _own_parts(covariance: Any, x: Tensor) -> Iterator[tuple[Covariance, Tensor]]:
    """Iterate over the covariance functions of classes that are not the library's, in sums and products too, with the inputs that they see."""
    if isinstance(covariance, Covariance) and type(covariance).__module__.partition(".")[0] != "pyro_dgp":
        yield covariance, x
    elif isinstance(covariance, CombinedCovariance):
        for part in covariance.parts:
            yield from _own_parts(part, x)
    elif isinstance(covariance, ScaledCovariance):
        yield from _own_parts(covariance.part, x)
    elif isinstance(covariance, ActiveDimsCovariance):
        yield from _own_parts(covariance.part, covariance.columns_of(x))


def _require_covariance(covariance: Covariance, x: Tensor) -> None:
    """Raise unless diagonal and blocks of the covariances among rows ``(..., 1, N, D)`` are those that are asked for by themselves."""
    name, rows = type(covariance).__name__, x.shape[-2]
    whole, diagonal = covariance.matrix(x), covariance.diagonal(x)
    if different(whole, covariance.matrix(x)):  # random numbers, as of dropout that never ends, are no contradiction
        return
    _require_shape(f"{name}.matrix(x)", whole, (*x.shape[:-1], rows), axes=2)
    _require_shape(f"{name}.diagonal(x)", diagonal, x.shape[:-1], axes=1)
    difference = different(whole.diagonal(dim1=-2, dim2=-1), diagonal)
    if difference is not None:
        raise ValueError(
            f"a variance of {name}.diagonal(x) is {difference[1]:.3g}, and {difference[0]:.3g} on the diagonal of {name}.matrix(x): return the same, "
            "with the noise that matrix(x) has"
        )
    if rows < 3:
        return
    a, b = parts_of(x)
    if not _takes_two(covariance):
        return
    try:
        block, other = covariance.matrix(a, b), covariance.matrix(b, a)
    except NotImplementedError:  # exact regression on one set does not need covariances between two
        return
    _require_shape(f"{name}.matrix(x, z)", block, (*a.shape[:-1], b.shape[-2]), axes=2)
    _require_shape(f"{name}.matrix(z, x)", other, (*b.shape[:-1], a.shape[-2]), axes=2)
    if different(block, other.mT):
        raise ValueError(
            f"{name}.matrix(x, z) is not the transpose of {name}.matrix(z, x): write a covariance function that is symmetric, k(x, z) = k(z, x)"
        )
    if block_differs(whole, block):
        raise ValueError(
            f"{name} gives two rows another covariance in matrix(x, z) than among more rows in matrix(x): let it depend on these two rows alone, not "
            "on the mean or the number of all rows"
        )


def _takes_two(covariance: Covariance) -> bool:
    """Tell whether ``matrix`` takes two sets of points; a class that takes one is good for what wants no more."""
    try:
        inspect.signature(covariance.matrix).bind(None, None)
    except TypeError:
        return False
    return True


def parts_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first third of three rows or more, and the others: their numbers differ, so that a transposed matrix is seen."""
    head = x.shape[-2] // 3
    return x[..., :head, :], x[..., head:, :]


def block_differs(whole: Tensor, block: Tensor) -> bool:
    """Tell whether covariances between :func:`parts_of` rows are not those of the matrix of all rows."""
    head = block.shape[-2]
    return different(whole[..., :head, head:], block, largest=float(whole.abs().max())) is not None


def different(one: Tensor, other: Tensor, *, largest: float = 0.0) -> tuple[float, float] | None:
    """Return the pair of finite numbers that differ most, if by more than a share of the largest number; ``None`` if all are the same.

    :param largest: a number of the same kind that may be larger than all of them.
    """
    one, other = torch.broadcast_tensors(one.double(), other.double())
    known = one.isfinite() & other.isfinite()
    one, other = one[known], other[known]
    if not len(one):
        return None
    most = int((one - other).abs().argmax())
    pair = float(one[most]), float(other[most])
    largest = max(largest, float(one.abs().max()), float(other.abs().max()))
    return pair if abs(pair[0] - pair[1]) > SHARE * largest else None


def _require_shape(call: str, value: Any, wanted: tuple[int, ...], *, axes: int) -> None:
    """Raise unless the last axes of a value are those that are wanted, and no axis is missing in front, where hyperparameters may have more."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{call} is a {type(value).__name__}: return a tensor of shape {tuple(wanted)}")
    if value.dim() < len(wanted) or tuple(value.shape[-axes:]) != tuple(wanted[-axes:]):
        raise ValueError(
            f"{call} has shape {tuple(value.shape)} where {tuple(wanted)} is wanted: keep the axes in front of the rows of x (..., E, N, D), and return "
            f"{'one variance a row' if axes == 1 else 'a matrix of the rows of x by those of z'}"
        )
