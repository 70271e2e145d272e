"""Squared distances between the rows of two sets of points: one matrix product, and its derivative written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.internal.differentiation import Cotangents, FusedFunction


def squared_distance(x: Tensor, z: Tensor | None) -> Tensor:
    """Return ``|x_n - z_m|^2`` by one matrix product, from a common centre so that little is lost to cancellation.

    Rounding can leave values a little below zero, which the caller clamps.
    """
    result: Tensor = _SquaredDistance.apply(x, z)  # type: ignore[no-untyped-call]
    return result


def plain_squared_distance(x: Tensor, z: Tensor | None) -> Tensor:
    """The formula that :func:`squared_distance` computes, as autograd differentiates it: the reference."""
    x_norm = x.square().sum(-1, keepdim=True)
    if z is None:
        squared = torch.add(x_norm + x_norm.mT, x @ x.mT, alpha=-2)
        return squared * (1 - torch.eye(x.shape[-2], dtype=x.dtype, device=x.device))
    return torch.add(x_norm + z.square().sum(-1, keepdim=True).mT, x @ z.mT, alpha=-2)


def centred_distance(x: Tensor, z: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return squared distances, and both sets of points relative to the centre of ``x``, which :func:`cotangents` takes.

    Autograd does not differentiate this function.
    """
    centre = x.mean(-2, keepdim=True)
    a = x - centre
    a_norm = torch.linalg.vecdot(a, a).unsqueeze(-1)
    if z is None:
        squared = linalg.add_product_(a_norm + a_norm.mT, a, a.mT, -2.0)
        squared.diagonal(dim1=-2, dim2=-1).zero_()
        return squared, a, a
    b = z - centre
    return linalg.add_product_(a_norm + torch.linalg.vecdot(b, b).unsqueeze(-2), a, b.mT, -2.0), a, b


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
