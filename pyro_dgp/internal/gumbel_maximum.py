"""The largest of independent normal variables with Gumbel noise, which the softmax and its normaliser are integrals of.

For ``g_j`` of the standard Gumbel distribution, ``argmax_j (f_j + g_j)`` has the probabilities ``softmax(f)``, and
``E max_j (f_j + g_j) = log sum_j exp(f_j) + gamma`` with Euler's constant. For normal f the distribution function of the largest is the product of
``G_j(t) = E exp(-exp(f_j - t))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyro_dgp.internal.quadrature import gauss_hermite, normal_trapezoid


@dataclass(frozen=True)
class _Rule:
    """Numbers of the integration.

    :ivar step: distance of the points t: the trapezoidal rule then errs by some ``exp(-pi^2 / step)``.
    :ivar sigmas: range of f in standard deviations, and ``left``, ``right``, that of the noise.
    :ivar nodes: Gauss-Hermite nodes of f, for each unit of its variance.
    :ivar narrowest: smallest standard deviation for which a lattice of half the step is fine enough.
    """

    step: float
    sigmas: float
    left: float
    right: float
    nodes: float
    narrowest: float


#: Errors of some 3e-10, and for single precision of some 1e-7.
_EXACT, _SINGLE = _Rule(0.45, 6.5, 3.7, 22.0, 20.0, 0.3), _Rule(0.6, 5.5, 3.0, 16.5, 14.0, 0.35)
#: Most numbers that are held at once.
_MOST = 4_000_000
#: Most numbers that one row may need, at some ten seconds.
_MOST_OF_A_ROW = 200_000_000
_EULER = 0.5772156649015329


def expected_log_sum_exp(mean: Tensor, scale: Tensor) -> Tensor:
    """Return ``E log sum_j exp(f_j)`` of normals, ``(...)``: ``hi - int_lo^hi prod_j G_j(t) dt - gamma``.

    :param mean: ``(..., C)``.
    :param scale: standard deviations, ``(..., C)``.
    """

    rule = _rule(mean)

    def rows(mean: Tensor, scale: Tensor, low: Tensor, t: Tensor) -> Tensor:
        log_below = _log_below_on_lattice(mean - low, scale, t, rule).sum(-2)  # (R, T)
        # The trapezoidal rule of 1 - F(t) on the right of lo; F is 0 at lo.
        return low.squeeze(-1) + rule.step * (-torch.expm1(log_below).sum(-1) - 0.5) - _EULER

    return _by_rows(rows, mean, scale, ())


def class_log_probs(mean: Tensor, scale: Tensor) -> Tensor:
    """Return ``log E softmax(f)_c`` of all classes, ``(..., C)``: ``log int G_c'(t) / G_c(t) prod_j G_j(t) dt``."""

    def rows(mean: Tensor, scale: Tensor, low: Tensor, t: Tensor) -> Tensor:
        log_below, log_slopes = _log_below(mean, scale, low + t, slopes=True)  # (R, C, T)
        total = log_below.sum(-2, keepdim=True)
        return torch.logsumexp(log_slopes - log_below + total, -1) + math.log(_rule(mean).step)

    return _by_rows(rows, mean, scale, mean.shape[-1:])


def _rule(like: Tensor) -> _Rule:
    return _EXACT if like.dtype == torch.float64 else _SINGLE


def _by_rows(function: Callable[..., Tensor], mean: Tensor, scale: Tensor, event: tuple[int, ...]) -> Tensor:
    """Evaluate a function of rows ``(R, C)`` part by part, so that memory does not grow with the rows.

    Rows are taken in the order of their ranges: a part has as many points t, and nodes of f, as its own rows need.
    """
    batch, count, rule = mean.shape[:-1], mean.shape[-1], _rule(mean)
    mean, scale = mean.reshape(-1, count), scale.expand(mean.shape).reshape(-1, count)
    if not len(mean):
        return mean.new_zeros((*batch, *event))
    with torch.no_grad():
        low = (mean - rule.sigmas * scale).amax(-1, keepdim=True) - rule.left
        high = (mean + rule.sigmas * scale).amax(-1, keepdim=True) + rule.right
        ranges, order = (high - low).squeeze(-1).sort()
        points = 1 + (ranges / rule.step).ceil().long()
        widest = float(scale.max())
        if count * int(points[-1]) * len(_nodes(widest, rule)[0]) > _MOST_OF_A_ROW:
            raise ValueError(
                f"a function below Softmax has a standard deviation of {widest:.3g} at some row, too large to be integrated over: standardise the "
                "inputs (Standardizer), or lower the variance of the kernel"
            )
        most = max(1, _MOST // (count * int(points[-1]) * 40))
        parts = list(_slices(len(mean), most))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
    found = []
    for part in parts:
        rows, last = order[part], int(points[part][-1])
        steps = rule.step * torch.arange(last, dtype=torch.float64).to(mean)
        found.append(function(mean[rows], scale[rows], low[rows], steps))
    return torch.cat(found)[back].reshape(*batch, *event)


def _slices(rows: int, most: int) -> Iterator[slice]:
    """Parts of at most so many rows; four at least where there are rows for them."""
    most = max(1, min(most, -(-rows // 4)))
    return (slice(start, start + most) for start in range(0, rows, most))


def _log_below(mean: Tensor, scale: Tensor, t: Tensor, *, slopes: bool) -> tuple[Tensor, Tensor]:
    """``log G_j(t)``, and ``log G_j'(t)`` if asked for, each ``(R, C, T)``, for t ``(R, T)``.

    Functions that are too many, or too wide, to hold all their nodes at once are computed for some points t after others, and again for gradients.
    """
    nodes, log_weights = (values.to(mean) for values in _nodes(float(scale.detach().max()), _rule(mean)))
    parts = t.split(max(1, _MOST // (mean.numel() * len(nodes))), -1)
    if len(parts) == 1:
        return _log_below_by_nodes(mean, scale, t, nodes, log_weights, slopes)
    found = [
        checkpoint(
            _log_below_by_nodes,
            mean,
            scale,
            part,
            nodes,
            log_weights,
            slopes,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for part in parts
    ]
    below, log_slopes = zip(*found, strict=True)
    return torch.cat(below, -1), torch.cat(log_slopes, -1)


def _log_below_by_nodes(
    mean: Tensor, scale: Tensor, t: Tensor, nodes: Tensor, log_weights: Tensor, slopes: bool
) -> tuple[Tensor, Tensor]:
    log_rate = (mean.unsqueeze(-1) + scale.unsqueeze(-1) * nodes).unsqueeze(-2) - t.unsqueeze(-2).unsqueeze(-1)
    log_rate = log_rate.clamp_max(0.9 * math.log(torch.finfo(mean.dtype).max))  # whose exp is finite, and has gradients
    terms = log_weights - log_rate.exp()
    log_below = torch.logsumexp(terms, -1)
    return log_below, torch.logsumexp(terms + log_rate, -1) if slopes else log_below


def _log_below_on_lattice(shift: Tensor, scale: Tensor, t: Tensor, rule: _Rule) -> Tensor:
    """``log G_j(t)`` as :func:`_log_below` has it, ``(R, C, T)``, at t in equal distances that are the same for all rows.

    Narrow functions would want many points of a lattice, and have few Gauss-Hermite nodes. Very wide ones would want a lattice that memory does not
    hold, and have nodes too.

    :param shift: means from the first t, ``(R, C)``; and standard deviations.
    :param t: distances from the first t, ``(T,)``.
    """
    rows, classes = shift.shape
    points = _lattice(shift, scale, rule)
    is_wide = scale.detach().reshape(-1) >= rule.narrowest
    if len(points) * len(t) > _MOST:
        is_wide = torch.zeros_like(is_wide)
    wide, narrow = is_wide.nonzero().squeeze(-1), (~is_wide).nonzero().squeeze(-1)
    mean, scale = shift.reshape(-1), scale.reshape(-1)
    found = []
    if len(wide):
        found.append(_on_lattice(mean[wide], scale[wide], t, points))
    if len(narrow):
        own = mean[narrow].unsqueeze(-1), scale[narrow].unsqueeze(-1)
        found.append(_log_below(*own, t.expand(len(narrow), -1), slopes=False)[0].squeeze(-2))
    back = torch.cat([wide, narrow]).argsort()
    return torch.cat(found)[back].reshape(rows, classes, -1)


def _on_lattice(mean: Tensor, scale: Tensor, t: Tensor, points: Tensor) -> Tensor:
    """``log G(t)`` of normals ``(E,)`` at t ``(T,)``, which begin at zero, by points f ``(J,)``: ``(E, T)``.

    ``1 - G(t) = int (1 - exp(-exp(f - t))) N(f; m, s^2) df`` by the trapezoidal rule with two points f for each t. The first factor is then one
    matrix for all normals, the second is computed once for all t, and the integrals are one product of matrices. For points at distances d
    the error is ``exp(-pi^2 / d + pi^2 / (8 s^2))`` and ``exp(-2 pi^2 s^2 / d^2)``.
    """
    distance = float(points[1] - points[0])
    points = points.to(mean)
    above = -torch.expm1(-torch.exp(points.unsqueeze(-1) - t))  # (J, T)
    density = torch.exp(-0.5 * ((points - mean.unsqueeze(-1)) / scale.unsqueeze(-1)).square())
    weights = density * (distance / math.sqrt(2 * math.pi) / scale.unsqueeze(-1))
    return torch.log((1 - weights @ above).clamp_min(torch.finfo(mean.dtype).tiny))


def _lattice(mean: Tensor, scale: Tensor, rule: _Rule) -> Tensor:
    """Points at half the step, from where ``exp(-exp(f))`` is one to where no normal has mass: ``(J,)``."""
    first, last = -rule.right - 4.0, float((mean + (rule.sigmas + 1.5) * scale).detach().max())
    count = max(2, math.ceil((last - first) / (rule.step / 2)))
    return first + rule.step / 2 * torch.arange(count, dtype=torch.float64)


def _nodes(scale: float, rule: _Rule) -> tuple[Tensor, Tensor]:
    """Nodes and log weights that integrate ``exp(-exp(s z))`` over z ~ N(0, 1), for all s up to a scale."""
    size = max(6, math.ceil(rule.nodes * scale**2))
    return gauss_hermite(size) if size <= 32 else normal_trapezoid(rule.step / scale, 2000)
