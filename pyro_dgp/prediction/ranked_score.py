"""The continuous ranked probability score of real targets: in closed form under normal components, elsewhere by integration of the distribution function."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

#: Draws of a mixture from which the ends of panels are taken.
_DRAWS = 1000
#: Ranks of these draws, of 1,000: closer together at either end, where tails may be long.
_RANKS = (0, 1, 3, 7, 15, 31, *range(62, 938, 31), 968, 984, 992, 996, 998, 999)
#: Gauss-Legendre nodes of a panel.
_NODES = 3
#: Most components whose own draws give ends too.
_FEW = 30
#: Points beyond the farthest draws, in units of the range of the draws.
_BEYOND = (0.25, 1.0, 4.0, 16.0)
#: Points between the farthest draw and a target that lies beyond it, as shares of its distance.
_TOWARDS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
#: Pairs of components that are evaluated at a time: they stay in the cache of a processor, which is up to six times as fast.
_PAIRS = 2**16


def ranked_score_of_normals(components: Normal, weights: Tensor, value: Tensor) -> Tensor:
    """Return ``E|Y - y| - E|Y - Y'| / 2`` of a mixture of normals, elementwise (Grimit et al. 2006): NaN at NaN, infinite at infinity.

    A row takes S^2 pairs of components. Without gradients 65,536 of them are in memory at a time, or those of one component.

    :param components: normal components, ``(S, N, ...)``.
    :param weights: weights ``(S,)``.
    :param value: targets ``(N, ...)``, or several of each row, ``(K, N, ...)``.
    """
    dtype = torch.promote_types(torch.result_type(components.loc, components.scale), torch.result_type(weights, value))
    shape = torch.broadcast_shapes(value.shape, components.loc.shape[1:])
    leading = len(shape) - components.loc.dim() + 1
    mean, scale = (
        each.to(dtype).expand(-1, *shape[leading:]).reshape(len(weights), -1).T
        for each in (components.loc, components.scale)
    )
    weights, y = weights.to(dtype), value.to(dtype).expand(shape).reshape(shape[:leading].numel(), len(mean), 1)
    rows = max(1, _PAIRS // len(weights) ** 2)
    spread = [
        _mean_distance_of_pairs(*parts, weights) for parts in zip(mean.split(rows), scale.split(rows), strict=True)
    ]
    score: Tensor = _mean_distance(y - mean, scale) @ weights - 0.5 * torch.cat(spread)
    return score.reshape(shape)


def _mean_distance(mean: Tensor, scale: Tensor) -> Tensor:
    """Return ``E|Z|`` of normal Z."""
    ratio = mean / (math.sqrt(2) * scale)
    return mean * ratio.erf() + math.sqrt(2 / math.pi) * scale * (-ratio.square()).exp()


def _mean_distance_of_pairs(mean: Tensor, scale: Tensor, weights: Tensor) -> Tensor:
    """Return ``E|Y - Y'|`` of each row, ``(N,)``, of components ``(N, S)``: each pair of different blocks of components once, counted twice."""
    size = max(1, _PAIRS // max(1, mean.numel()))
    total = torch.zeros_like(mean[:, 0])
    for start in range(0, len(weights), size):
        block, after = slice(start, start + size), slice(start, None)
        gap = mean[:, block, None] - mean[:, None, after]
        joint = torch.hypot(scale[:, block, None], scale[:, None, after])
        counted = weights[after] * torch.where(
            torch.arange(len(weights) - start, device=weights.device) < size, 1.0, 2.0
        ).to(weights)
        total = total + (_mean_distance(gap, joint) @ counted) @ weights[block]
    return total


def ranked_score(
    distribution_function: Callable[[Tensor], Tensor], components: Distribution, weights: Tensor, *, value: Tensor
) -> Tensor:
    """Return ``int (F(t) - 1[value <= t])^2 dt``, elementwise (Matheson and Winkler 1976): NaN at NaN, infinite at infinity.

    Panels of each row lie between quantiles of some draws, a low, a middle and a high draw of each component where these are few, and the target itself.
    F rises by a few hundredths in each panel, and the error is mostly far below a thousandth of the score.

    :param distribution_function: F, from ``(N, ...)`` to that shape.
    :param components: elementwise components, ``(S, N, ...)``, which say by draws where the mass lies. The random numbers of the caller stay as they are.
    :param weights: weights ``(S,)``.
    :param value: targets ``(N, ...)``.
    """
    inner, finite = _marks(components, weights), value.isfinite()
    target = torch.where(finite, value, inner[0])
    ends = _ends(inner, target)
    lengths = ends.diff(dim=0)
    has_length = (lengths > 0).flatten(1).any(1)
    start, length, is_left = (each[has_length] for each in (ends[:-1], lengths, ends[1:] <= target))
    score = torch.zeros_like(target)
    for node, weight in zip(*np.polynomial.legendre.leggauss(_NODES), strict=True):
        at = start + 0.5 * (1 + float(node)) * length
        reached = torch.stack([distribution_function(each) for each in at])
        score = score + 0.5 * float(weight) * (length * torch.where(is_left, reached, 1 - reached).square()).sum(0)
    return torch.where(finite, score, value.abs())


def _marks(components: Distribution, weights: Tensor) -> Tensor:
    """Return points between which F rises little, ``(P, N, ...)``, the lowest first and the highest last.

    Each component is drawn as often as its weight says, and once at least.
    """
    places = (torch.arange(_DRAWS, device=weights.device) + 0.5) / _DRAWS
    numbers = torch.searchsorted(weights.cumsum(0), places.to(weights)).clamp_max(len(weights) - 1)
    counts = torch.bincount(numbers, minlength=len(weights)).clamp_min(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = components.sample(torch.Size((int(counts.max()),)))
    is_drawn = torch.arange(len(draws), device=weights.device).unsqueeze(-1) < counts
    ordered = draws[is_drawn].sort(0).values
    ranks = torch.tensor(_RANKS, dtype=torch.float64) / (_DRAWS - 1) * (len(ordered) - 1)
    marks = ordered[ranks.round().long().to(ordered.device)]
    if len(weights) <= _FEW:
        of_each = draws.sort(0).values[[0, len(draws) // 2, -1]].flatten(0, 1)
        marks = torch.cat([marks, of_each]).sort(0).values
    return marks


def _ends(inner: Tensor, target: Tensor) -> Tensor:
    """Return ends of panels in ascending order, ``(P, N, ...)``."""

    def along(shares: tuple[float, ...]) -> Tensor:
        return torch.tensor(shares).to(target).reshape(-1, *[1] * target.dim())

    low, high = inner[0], inner[-1]
    far = (high - low) * along(_BEYOND)
    nearest = torch.minimum(torch.maximum(target, low), high)
    towards = nearest + (target - nearest) * along(_TOWARDS)
    return torch.cat([low - far, inner, high + far, towards, target.unsqueeze(0)]).sort(0).values
