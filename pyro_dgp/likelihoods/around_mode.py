"""Nodes around the mode of an integrand ``exp(log_term(f)) N(f)``, found by Newton's method, for each row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_dgp.internal.quadrature import gauss_hermite_product
from pyro_dgp.likelihoods.moments import Moments

#: Gauss-Hermite nodes along each axis, and those of the rule that they are compared with: an even and an odd number, see ``quadrature.finer_nodes``.
NODES, FEWER = 20, 17
#: Most steps of Newton's method, and shares of a step that are tried.
_STEPS, _SHARES = 10, (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.0)
#: Step, in standard deviations of f, that is the last one.
_LAST = 1e-4
#: Least curvature in units of that of N(f), which makes nodes reach where the integrand is wider than its mode.
_LEAST = 0.3
#: Distance from the highest mode, in widths, from which on another point is another mode, and nats below it from which on that does not matter.
_APART, _LOW = 3.0, 16.0
#: Distance from the mode, in widths of the integrand there, that the nodes reach to.
_REACH = 7.0

#: Log of what is integrated: from function values ``(K, ..., N, F)`` to ``(K, ..., N)``.
LogTerm = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AroundMode:
    """A normal with the mode and the curvature of an integrand, in each row, without gradients.

    :ivar mode: ``(..., N, F)``.
    :ivar axes: its principal axes, columns of matrices ``(..., N, F, F)``.
    :ivar scales: standard deviations along these, ``(..., N, F)``, in units of those of f.
    :ivar scale: standard deviations of f, ``(..., N, F)``.
    :ivar is_alone: whether no other mode was found, ``(..., N)``.
    """

    mode: Tensor
    axes: Tensor
    scales: Tensor
    scale: Tensor
    is_alone: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, log_term: LogTerm, f: Moments) -> AroundMode | None:
        """Find the highest mode from several starts on; nothing for a term that has no second derivatives."""
        mean, scale = f.mean.detach(), f.variance.detach().clamp_min(torch.finfo(f.mean.dtype).tiny).sqrt()

        def standard(z: Tensor) -> Tensor:
            return log_term(mean + scale * z)

        z = _climbed(standard, _starts(mean))
        derivatives = None if z is None else _derivatives(standard, z)
        if z is None or derivatives is None:
            return None
        height = _height(standard, z)
        best = height.argmax(0, keepdim=True)
        wide = best.unsqueeze(-1).expand(1, *mean.shape)
        curvature = derivatives[1].gather(0, wide.unsqueeze(-1).expand(1, *mean.shape, mean.shape[-1])).squeeze(0)
        values, axes = _eigh(torch.eye(mean.shape[-1]).to(mean) - curvature)
        top = z.gather(0, wide).squeeze(0)
        around = cls(mean + scale * top, axes, values.clamp_min(_LEAST).rsqrt(), scale, best.squeeze(0) >= 0)
        other = (around._squared_distance(mean + scale * z) > _APART**2) & (height > height.gather(0, best) - _LOW)
        return replace(around, is_alone=~other.any(0))

    def log_expectation(self, log_term: LogTerm, f: Moments, count: int) -> Tensor:
        """``log E_N(f) exp(log_term(f))``, ``(..., N)``, by a number of nodes along each axis.

        It has gradients in the moments and in what the term is made of.
        """
        nodes, log_weights = gauss_hermite_product(count, self.mode.shape[-1])
        nodes, log_weights = nodes.to(self.mode), log_weights.to(self.mode)
        along = self.scales * nodes.reshape(-1, *[1] * (self.mode.dim() - 1), nodes.shape[-1])
        at = self.mode + self.scale * (self.axes @ along.unsqueeze(-1)).squeeze(-1)
        log_base = (log_weights + 0.5 * nodes.square().sum(-1)).reshape(-1, *[1] * (self.mode.dim() - 1))
        log_base = log_base + (self.scales * self.scale).log().sum(-1)
        variance = f.variance.clamp_min(torch.finfo(at.dtype).tiny)
        log_normal = -0.5 * ((at - f.mean).square() / variance + variance.log()).sum(-1)
        return torch.logsumexp(log_base + log_term(at) + log_normal, 0)

    def outside(self, at: Tensor, log_terms: Tensor) -> Tensor:
        """Log of the part of a sum of terms, at nodes ``(K, ..., N, F)``, that lies farther from the mode than its own nodes: ``(..., N)``."""
        return torch.logsumexp(log_terms.where(self._squared_distance(at) > _REACH**2, -math.inf), 0)

    def _squared_distance(self, at: Tensor) -> Tensor:
        """Squared distances of function values ``(K, ..., N, F)`` from the mode, in widths of the integrand."""
        along = (self.axes.mT @ ((at - self.mode) / self.scale).unsqueeze(-1)).squeeze(-1) / self.scales
        return along.square().sum(-1)


def _starts(mean: Tensor) -> Tensor:
    """The mean, and points two standard deviations off it along each axis: ``(2 F + 1, ..., N, F)`` in these."""
    functions = mean.shape[-1]
    points = torch.cat([torch.zeros(1, functions), 2 * torch.eye(functions), -2 * torch.eye(functions)]).to(mean)
    return points.reshape(-1, *[1] * (mean.dim() - 1), functions).expand(-1, *mean.shape)


def _height(log_term: LogTerm, z: Tensor) -> Tensor:
    """Log of the integrand at points ``(K, ..., N, F)`` in standard deviations of f; the least where it is no number."""
    height = log_term(z) - 0.5 * z.square().sum(-1)
    return height.nan_to_num(-math.inf, -math.inf, -math.inf)


def _climbed(log_term: LogTerm, z: Tensor) -> Tensor | None:
    """Modes that points ``(K, ..., N, F)`` lead to, by Newton's method with steps of the best of several lengths."""
    identity = torch.eye(z.shape[-1]).to(z)
    shares = torch.tensor(_SHARES).to(z).reshape(-1, *[1] * z.dim())
    for _ in range(_STEPS):
        derivatives = _derivatives(log_term, z)
        if derivatives is None:
            return None
        slope, curvature = derivatives
        values, axes = _eigh(identity - curvature)
        along = axes.mT @ (slope - z).unsqueeze(-1) / values.abs().clamp_min(_LEAST).unsqueeze(-1)
        tried = z + shares * (axes @ along).squeeze(-1)
        height = _height(log_term, tried.flatten(0, 1)).unflatten(0, tried.shape[:2])
        chosen = height.argmax(0, keepdim=True).unsqueeze(-1).expand(1, *z.shape)
        moved = tried.gather(0, chosen).squeeze(0)
        if not bool(((moved - z).abs() > _LAST).any()):
            break
        z = moved
    return z


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors; of single numbers without a decomposition for each."""
    if matrices.shape[-1] == 1:
        return matrices.squeeze(-1), torch.ones_like(matrices)
    values, vectors = torch.linalg.eigh(matrices)
    return values, vectors


def _derivatives(log_term: LogTerm, at: Tensor) -> tuple[Tensor, Tensor] | None:
    """First derivatives ``(K, ..., N, F)`` of a term at several points of each row, and second ones ``(K, ..., N, F, F)``; nothing where there are none."""
    with torch.enable_grad():
        point = at.clone().requires_grad_()
        value = log_term(point)
        if not value.requires_grad:
            return None
        try:
            (slope,) = torch.autograd.grad(value.sum(), point, create_graph=True, materialize_grads=True)
            if not slope.requires_grad:
                return None
            rows = [
                torch.autograd.grad(slope[..., each].sum(), point, retain_graph=True, materialize_grads=True)[0]
                for each in range(at.shape[-1])
            ]
        except RuntimeError:  # of a function without a second derivative
            return None
    curvature = torch.stack(rows, -1)
    return slope.detach().nan_to_num(0.0, 0.0, 0.0), curvature.nan_to_num(0.0, 0.0, 0.0)
