"""Quadratic forms of exponentials of low-rank matrices, one matrix a row, without keeping the matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal.differentiation import Cotangents, FusedFunction
from pyro_dgp.internal.recording import recording

#: Numbers in the matrices of a block of rows: a megabyte, which three passes find in the processor's cache.
_BLOCK = 2**17


class QuadraticForms(FusedFunction):
    """Sums ``t_dn = sum_ij b_dij exp(left_n' right_n)_ij``, computed in blocks of rows, with derivatives written out.

    The matrices ``P_n = exp(left_n' right_n)`` of a thousand rows and a hundred points have ten million numbers. They are made twice, in the forward
    and in the backward pass, and never kept. With g the cotangent of t, that of the exponent is ``C_n = P_n * sum_d g_dn b_d``, that of ``left_n`` is
    ``right_n C_n'``, that of ``right_n`` is ``left_n C_n``, and that of ``b_d`` is ``sum_n g_dn P_n``.
    """

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, b: Tensor) -> Tensor:
        """Return t ``(D, N)``.

        :param left: ``(E, N, K, M)``, as ``right`` is.
        :param b: ``(D, M, M)``; E is 1 or D.
        """
        ctx.save_for_backward(left, right, b)
        weights = _by_kernel(b, len(left)).mT  # (E, M M, D / E)
        sums = [matrices @ weights for (matrices,) in _blocks(left, right)]
        return torch.cat(sums, 1).mT.flatten(0, 1)

    @staticmethod
    def inputs(ctx: Any) -> tuple[Tensor | None, ...]:
        """See :class:`FusedFunction`."""
        return tuple(ctx.saved_tensors)

    @staticmethod
    def plain(ctx: Any, left: Tensor, right: Tensor, b: Tensor) -> Tensor:
        """See :class:`FusedFunction`."""
        return quadratic_forms(left, right, b)

    @staticmethod
    def cotangents(ctx: Any, by_sums: Tensor) -> Cotangents:
        """See :class:`FusedFunction`."""
        left, right, b = ctx.saved_tensors
        weights = _by_kernel(b, len(left))  # (E, D / E, M M)
        sums = by_sums.unflatten(0, (len(left), -1)).mT  # (E, N, D / E)
        by_weights, by_factors = torch.zeros_like(weights), []
        for matrices, ours, theirs, g in _blocks(left, right, left, right, sums):
            by_weights += g.mT @ matrices
            alone = g.shape[-1] == 1  # its cotangent is a factor, which fewer numbers take after the products
            by_exponent = matrices.mul_(weights if alone else g @ weights).unflatten(-1, b.shape[1:])
            scale = g.unsqueeze(-1) if alone else 1.0
            by_factors.append((scale * (theirs @ by_exponent.mT), scale * (ours @ by_exponent)))
        by_left, by_right = (torch.cat(parts, 1) for parts in zip(*by_factors, strict=True))
        return by_left, by_right, by_weights.reshape(b.shape)


def quadratic_forms(left: Tensor, right: Tensor, b: Tensor) -> Tensor:
    """Return the sums of :class:`QuadraticForms` ``(D, N)`` by the formula itself, which keeps all matrices."""
    matrices = (left.mT @ right).exp().flatten(-2)
    return (matrices @ b.flatten(-2).unsqueeze(-1)).squeeze(-1)


def _by_kernel(b: Tensor, kernels: int) -> Tensor:
    """Return the weights of each output beside the kernel they belong to, ``(E, D / E, M M)``."""
    return b.flatten(1).unflatten(0, (kernels, -1))


def _blocks(left: Tensor, right: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Return the exponentials ``(E, n, M M)`` of blocks of rows, all in one place that the next block overwrites, and the rows of other tensors.

    There is one block on other devices than the processor, and while a function is recorded.
    """
    kernels, rows, _, size = left.shape
    at_once = max(_BLOCK // (kernels * size**2), 1)
    if left.device.type != "cpu" or recording() or rows <= at_once:
        yield (left.mT @ right).exp().flatten(-2), *others
        return
    place = left.new_empty(kernels * at_once, size, size)
    for a, b, *rest in zip(*(tensor.split(at_once, 1) for tensor in (left, right, *others)), strict=True):
        matrices = place[: kernels * a.shape[1]]
        torch.bmm(a.flatten(0, 1).mT, b.flatten(0, 1), out=matrices)
        yield matrices.exp_().view(kernels, -1, size**2), *rest
