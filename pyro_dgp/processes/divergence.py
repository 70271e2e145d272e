"""Kullback-Leibler divergence of whitened coefficients from their prior, with its derivatives written out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_dgp.internal.differentiation import Cotangents, FusedFunction


class Divergence(FusedFunction):
    """Function :func:`plain_divergence` with derivatives written out: mean_d, and ``T_d - diag(1 / T_d)`` for the scale.

    Automatic differentiation makes seven passes over the M x M scales where this makes three.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, scale: Tensor, is_full: bool) -> Tensor:
        """Return the divergence in nats, one number for each group."""
        ctx.save_for_backward(mean, scale)
        ctx.is_full = is_full
        return plain_divergence(mean, scale, is_full)

    @staticmethod
    def inputs(ctx: Any) -> tuple[Tensor | None, ...]:
        """See :class:`FusedFunction`."""
        return (*ctx.saved_tensors, None)

    @staticmethod
    def plain(ctx: Any, mean: Tensor, scale: Tensor, _: None) -> Tensor:
        """See :class:`FusedFunction`."""
        return plain_divergence(mean, scale, ctx.is_full)

    @staticmethod
    def cotangents(ctx: Any, grad: Tensor) -> Cotangents:
        """See :class:`FusedFunction`."""
        mean, scale = ctx.saved_tensors
        own = grad.sum_to_size(scale.shape[: -3 if ctx.is_full else -2])[..., None, None]
        by_scale = scale * (own.unsqueeze(-1) if ctx.is_full else own)
        _diagonal(by_scale, ctx.is_full).sub_(own / _diagonal(scale, ctx.is_full))
        return mean * grad.sum_to_size(mean.shape[:-2])[..., None, None], by_scale, None


def plain_divergence(mean: Tensor, scale: Tensor, is_full: bool) -> Tensor:
    """Return ``sum_d KL(N(mean_d, T_d T_d') || N(0, I))`` in nats, one number for each group; groups of means and scales broadcast.

    :param mean: means ``(*groups, D_out, M)``.
    :param scale: triangular T ``(*groups, D_out, M, M)``, or the diagonal of a diagonal T ``(*groups, D_out, M)``.
    :param is_full: whether T is triangular.
    """
    diagonal = _diagonal(scale, is_full)
    groups, size = diagonal.dim() - 2, mean.shape[-2] * mean.shape[-1]
    squares = total(mean.square(), mean.dim() - 2) + total(scale.square(), groups)
    return 0.5 * (squares - size) - total(diagonal.abs().log(), groups)


def _diagonal(scale: Tensor, is_full: bool) -> Tensor:
    """Return the diagonals of the scales, a view ``(*groups, D_out, M)``."""
    return scale.diagonal(dim1=-2, dim2=-1) if is_full else scale


def total(values: Tensor, groups: int) -> Tensor:
    """Return the sum over all axes behind those of the groups."""
    return values.flatten(groups).sum(-1) if groups else values.sum()
