"""Squared distances between the rows of two sets of points, and their derivative written out.

One matrix product gives ``|a|^2 + |b|^2 - 2 a'b``, which loses to cancellation what the largest norm has more than the distance. It is taken
where that is little. Elsewhere the difference ``a - b`` comes first, which costs some three times as much.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.internal.differentiation import Cotangents, FusedFunction
from pyro_dgp.internal.recording import is_at_most

#: Largest squared distance from the centre, in squared lengthscales, up to which a matrix product gives the squared distances. The error is the
#: product of it and the relative rounding: 3e-6 and 1e-10. Other dtypes know no limit.
LARGEST_SQUARE = {torch.float32: 25.0, torch.float64: 4.5e5}


def squared_distance(x: Tensor, z: Tensor | None) -> Tensor:
    """Return ``|x_n - z_m|^2`` with an error that is small beside a squared lengthscale, which is 1 here.

    Rounding can leave values a little below zero, which the caller clamps.
    """
    result: Tensor = _SquaredDistance.apply(x, z)  # type: ignore[no-untyped-call]
    return result


def plain_squared_distance(x: Tensor, z: Tensor | None) -> Tensor:
    """The formula that :func:`squared_distance` computes, as autograd differentiates it: the reference."""
    centre = x.detach().mean(-2, keepdim=True)  # distances, and so their derivatives, do not depend on it
    a = x - centre
    b = a if z is None else z - centre
    if _product_serves(b.detach().square().sum(-1)):
        squared = torch.add(a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2), a @ b.mT, alpha=-2)
    else:
        squared = (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1)
    return squared if z is not None else squared * (1 - torch.eye(x.shape[-2], dtype=x.dtype, device=x.device))


def centred_distance(x: Tensor, z: Tensor | None, *, rough: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return squared distances, and both sets of points relative to the centre of ``x``, which :func:`cotangents` takes.

    Autograd does not differentiate this function.

    :param rough: whether the distance itself is wanted. Near zero the root of a number has half its digits, so the difference comes first then.
    """
    centre = x.mean(-2, keepdim=True)
    a = x - centre
    b = a if z is None else z - centre
    b_norm = torch.linalg.vecdot(b, b)
    if not rough and _product_serves(b_norm):
        a_norm = b_norm if z is None else torch.linalg.vecdot(a, a)
        squared = linalg.add_product_(a_norm.unsqueeze(-1) + b_norm.unsqueeze(-2), a, b.mT, -2.0)
    else:
        squared = torch.cdist(x, x if z is None else z, compute_mode="donot_use_mm_for_euclid_dist").square_()
    if z is None:
        squared.diagonal(dim1=-2, dim2=-1).zero_()
    return squared, a, b


def _product_serves(norms: Tensor) -> bool:
    """Tell whether one matrix product gives the distances from points of these squared norms.

    The norms of one set are enough: points of the other one that lie much farther out are far from all of them.
    """
    largest = LARGEST_SQUARE.get(norms.dtype)
    return largest is None or not norms.numel() or is_at_most(norms.amax(), largest)


def cotangents(
    grad: Tensor, x: Tensor, z: Tensor | None, a: Tensor, b: Tensor, need: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Cotangents of ``x`` and ``z``, ``2 (sum_m g_nm) x_n - 2 sum_m g_nm z_m``, where they are needed."""
    if z is None:
        both = grad + grad.mT
        both.diagonal(dim1=-2, dim2=-1).zero_()  # large entries here would cancel only up to rounding
        return _cotangent(both, a, a, x.shape), None
    by_x = _cotangent(grad, a, b, x.shape) if need[0] else None
    return by_x, _cotangent(grad.mT, b, a, z.shape) if need[1] else None


def _cotangent(grad: Tensor, x: Tensor, z: Tensor, shape: torch.Size) -> Tensor:
    # Transposed, since a product with few rows takes a fifth of the time of one with few columns.
    products = linalg.product(z.mT, grad.mT).mT
    result = torch.sub(grad.sum(-1, keepdim=True) * x, products).mul_(2)
    return result if result.shape == shape else result.sum_to_size(shape)


class _SquaredDistance(FusedFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor | None) -> Tensor:
        squared, a, b = centred_distance(x, z)
        ctx.save_for_backward(x, z, a, b)
        return squared

    @staticmethod
    def inputs(ctx: Any) -> tuple[Tensor | None, ...]:
        return tuple(ctx.saved_tensors[:2])

    @staticmethod
    def plain(ctx: Any, x: Tensor, z: Tensor | None) -> Tensor:
        return plain_squared_distance(x, z)

    @staticmethod
    def cotangents(ctx: Any, grad: Tensor) -> Cotangents:
        x, z, a, b = ctx.saved_tensors
        return cotangents(grad, x, z, a, b, ctx.needs_input_grad)
