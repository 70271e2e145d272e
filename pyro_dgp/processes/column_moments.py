"""Moments of q(f) from whitened columns."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from pyro_dgp.processes.fused_moments import FusedMoments
from pyro_dgp.processes.whitened_gaussian import Gaussian, IndependentGaussians, WhitenedGaussian


def column_moments(columns: Tensor, q: Gaussian) -> tuple[Tensor, Tensor]:
    """Return ``a' mean_d`` and ``a' (S_d - I) a`` for each output and whitened column a.

    :param columns: A ``(..., E, M, n)``.
    :param q: q(v).
    :returns: both ``(..., D_out or E, n)``.
    """
    if isinstance(q, IndependentGaussians):
        parts = [_moments(own, part) for own, part in zip(q.split(columns), q.parts, strict=True)]
        locs, changes = zip(*parts, strict=True)
        return functools.reduce(torch.add, locs), functools.reduce(torch.add, changes)
    return _moments(columns, q)


def _moments(columns: Tensor, q: WhitenedGaussian) -> tuple[Tensor, Tensor]:
    if columns.dim() > 3 or q.mean.dim() > 2 or q.kind == "prior":
        return q.moments(columns)
    loc, change = FusedMoments.apply(None, q.mean, q.scale, None, "", columns)  # type: ignore[no-untyped-call]
    return loc, change
