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
    def forward(ctx: Any, mean: Tensor, scale: Tensor) -> Tensor:
        """Return the divergence in nats, one number for each group."""
        ctx.save_for_backward(mean, scale)
        return plain_divergence(mean, scale)

    @staticmethod
    def inputs(ctx: Any) -> tuple[Tensor | None, ...]:
        """See :class:`FusedFunction`."""
        return tuple(ctx.saved_tensors)

    @staticmethod
    def plain(ctx: Any, mean: Tensor, scale: Tensor) -> Tensor:
        """See :class:`FusedFunction`."""
        return plain_divergence(mean, scale)

    @staticmethod
    def cotangents(ctx: Any, grad: Tensor) -> Cotangents:
        """See :class:`FusedFunction`."""
        mean, scale = ctx.saved_tensors
        by_scale = scale * grad[(..., *[None] * (scale.dim() - grad.dim()))]
        grad = grad[..., None, None]
        _diagonal(by_scale, mean).sub_(grad / _diagonal(scale, mean))
        return mean * grad, by_scale


def plain_divergence(mean: Tensor, scale: Tensor) -> Tensor:
    """Return ``sum_d KL(N(mean_d, T_d T_d') || N(0, I))`` in nats, one number for each group.

    :param mean: means ``(*groups, D_out, M)``.
    :param scale: triangular T ``(*groups, D_out, M, M)``, or the diagonal of a diagonal T ``(*groups, D_out, M)``.
    """
    groups = mean.dim() - 2
    squares = total(mean.square(), groups) + total(scale.square(), groups)
    return 0.5 * (squares - mean.shape[-2:].numel()) - total(_diagonal(scale, mean).abs().log(), groups)


def _diagonal(scale: Tensor, mean: Tensor) -> Tensor:
    """Return the diagonals of the scales, a view ``(*groups, D_out, M)``."""
    return scale if scale.dim() == mean.dim() else scale.diagonal(dim1=-2, dim2=-1)


def total(values: Tensor, groups: int) -> Tensor:
    """Return the sum over all axes behind those of the groups."""
    return values.flatten(groups).sum(-1) if groups else values.sum()
