"""Fourier features of one Matern kernel on an interval: cross-covariances, and a root of their covariance that costs O(M) a column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.processes.matern_terms import MaternTerm

#: Intensity of the white noise that drives a Matern process, as a multiple of ``rate^(2 order + 1) variance``, by order.
_INTENSITY = (2.0, 4.0, 16.0 / 3.0)


@dataclass(frozen=True)
class FourierColumns:
    """Functionals ``u_m = <phi_m, f>`` of one term of a kernel, with the inner product of its RKHS on ``[a, b]`` (Hensman et al. 2018, 3.1).

    ``phi = (1, cos(w_1 (x - a)), ..., cos(w_F (x - a)), sin(w_1 (x - a)), ..., sin(w_F (x - a)))`` with ``w_m = 2 pi m / (b - a)``. A Matern
    process of order p solves ``(d/dx + rate)^(p+1) f = w`` with white noise w of intensity q, so that

    ``<g, h> = 1/q int_a^b L g L h dx + s_g(a)' P^-1 s_h(a)``

    with ``L = (d/dx + rate)^(p+1)``, ``s_g = (g, g', ..., g^(p))``, and P the stationary covariance of ``s_f``. The integrals of two
    functions of phi vanish, and those of one are ``(b - a) / 2`` over the spectral density at its frequency. Hence
    ``K_uu = diag(d) + V V'`` with p + 1 columns V.

    On the interval ``cov(u, f(x)) = phi(x)``. Outside, f given f on the interval depends on ``s_f`` at the nearer end alone, so that
    ``cov(u, f(x)) = sum_j c_j(distance) phi^(j)`` there, with c the first row of the transition matrix of the state.

    :ivar interval: a and b, ``(2,)``.
    :ivar num_frequencies: F; there are M = 2 F + 1 features.
    """

    term: MaternTerm
    interval: Float[Tensor, 2]
    num_frequencies: int

    @cached_property
    def frequencies(self) -> Tensor:
        """The frequencies w_1 to w_F ``(F,)``, radians for each unit of the input."""
        return _frequencies(self.interval, self.num_frequencies)

    @cached_property
    def ends(self) -> Float[Tensor, "m p"]:
        """The functions phi and their derivatives up to order p at a, which are those at b."""
        w, zero = self.frequencies, self.frequencies.new_zeros(self.num_frequencies)
        one, none = zero.new_ones(1), zero.new_zeros(1)
        rows = [torch.cat([one, zero + 1, zero]), torch.cat([none, zero, w]), torch.cat([none, -w.square(), zero])]
        return torch.stack(rows[: self.term.order + 1], -1)

    @cached_property
    def _root_variances(self) -> Float[Tensor, "*h e m 1"]:
        """The square roots of d."""
        rate, variance, p = self.term.rate, self.term.variance, self.term.order
        squares = torch.cat([self.frequencies.new_zeros(1), self.frequencies, self.frequencies]).square()
        length = self.interval[1] - self.interval[0]
        counts = torch.full_like(squares, 0.5)
        counts[0] = 1.0
        intensity = _INTENSITY[p] * rate ** (2 * p + 1) * variance
        scaled = (rate.square().unsqueeze(-1) + squares) ** (p + 1) * counts * length / intensity.unsqueeze(-1)
        return scaled.sqrt().unsqueeze(-1)

    @cached_property
    def _low_rank(self) -> tuple[Tensor, Tensor]:
        """The orthonormal columns Q of ``diag(d)^-1/2 V``, and H with ``diag(d)^-1/2 K_uu diag(d)^-1/2 = (I + Q (H - I) Q')(...)'``.

        With ``W = diag(d)^-1/2 V``, ``W'W = J J'`` and ``I + J'J = H H'``, it is ``Q = W J^-T``.
        """
        p, rate = self.term.order, self.term.rate
        stationary = self.term.variance[..., None, None] * _stationary_covariance(rate, p)
        v = linalg.solve_triangular(_factor(stationary), self.ends.mT, upper=False).mT
        w = v / self._root_variances
        j = _factor(w.mT @ w)
        q = linalg.solve_triangular(j, w.mT, upper=False).mT
        eye = torch.eye(p + 1).to(j)
        return q, _factor(eye + j.mT @ j)

    def root(self) -> Float[Tensor, "*h e m m"]:
        """Return R with ``K_uu = R R'``."""
        q, h = self._low_rank
        eye = torch.eye(q.shape[-2]).to(q)
        return self._root_variances * (eye + q @ (h - torch.eye(h.shape[-1]).to(h)) @ q.mT)

    def cross(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*r e m n"]:
        """Return ``cov(u, f(x))`` at inputs on the interval and outside; there is an axis E where the kernel matters."""
        a, b = self.interval
        distance = torch.relu(x - b) + torch.relu(a - x)
        c = _transition(distance.unsqueeze(-2), self.term.rate.unsqueeze(-1), self.term.order)
        side = torch.where(x < a, -1.0, 1.0).to(x).unsqueeze(-2)
        weights = torch.stack([each * side**j - float(j == 0) for j, each in enumerate(c)], -2)
        return fourier_functions(x.clamp(a, b), self.interval, self.num_frequencies).unsqueeze(-3) + self.ends @ weights

    def whitened(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*r e m n"]:
        """Return ``R^-1 cov(u, f(x))``, at a cost of O(M) a column."""
        return self.whiten(self.cross(x))

    def whiten(self, columns: Float[Tensor, "*b m n"]) -> Float[Tensor, "*r e m n"]:
        """Return ``R^-1`` times columns, at a cost of O(M) each."""
        columns = columns / self._root_variances
        q, h = self._low_rank
        inner = q.mT @ columns
        return columns - q @ (inner - linalg.solve_triangular(h, inner.expand(*inner.shape), upper=False))


def _factor(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor of a small matrix."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if linalg.failed(info):
        raise linalg.NotPositiveDefiniteError(
            "the covariance of Fourier features is singular (input is not positive-definite): the lengthscale of a term is far smaller or larger than "
            "the interval of its features, so scale the inputs, to [0, 1] or to unit variance"
        )
    return factor


def _frequencies(interval: Tensor, count: int) -> Tensor:
    return 2 * math.pi / (interval[1] - interval[0]) * torch.arange(1, count + 1).to(interval)


def fourier_functions(x: Float[Tensor, "*b n"], interval: Tensor, num_frequencies: int) -> Float[Tensor, "*b m n"]:
    """Return phi at inputs on the interval, the features of :class:`FourierColumns`."""
    angles = _frequencies(interval, num_frequencies).unsqueeze(-1) * (x - interval[0]).unsqueeze(-2)
    return torch.cat([torch.ones_like(angles[..., :1, :]), torch.cos(angles), torch.sin(angles)], -2)


def _stationary_covariance(rate: Tensor, order: int) -> Float[Tensor, "*h e p p"]:
    """Return the covariance of ``(f, f', ..., f^(order))`` at one point, for a variance of one."""
    one, zero = torch.ones_like(rate), torch.zeros_like(rate)
    if order == 0:
        rows = [[one]]
    elif order == 1:
        rows = [[one, zero], [zero, rate.square()]]
    else:
        slope = rate.square() / 3
        rows = [[one, zero, -slope], [zero, slope, zero], [-slope, zero, rate**4]]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _transition(distance: Tensor, rate: Tensor, order: int) -> list[Tensor]:
    """Return the first row of the transition matrix of the state ``(f, f', ..., f^(order))`` over a distance."""
    r, decay = rate * distance, torch.exp(-rate * distance)
    if order == 0:
        return [decay]
    if order == 1:
        return [decay * (1 + r), decay * distance]
    return [decay * (1 + r + r.square() / 2), decay * distance * (1 + r), decay * distance.square() / 2]
