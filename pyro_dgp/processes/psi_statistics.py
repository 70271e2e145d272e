"""Psi statistics: expectations of radial basis function kernels over normal inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.kernels.distance import squared_distance
from pyro_dgp.processes.quadratic_forms import QuadraticForms
from pyro_dgp.processes.rbf_terms import RBFTerm


@dataclass(frozen=True)
class NormalInputs:
    """Inputs ``x_n = centre_n + sum_w directions_wn xi_w`` with ``xi ~ N(0, I)``, each row by itself.

    :ivar centre: ``(N, D)``.
    :ivar directions: ``(W, N, D)``, roots of the covariance.
    """

    centre: Tensor
    directions: Tensor


@dataclass(frozen=True)
class PsiStatistics:
    """Expectations of ``k(x_n, .)`` over normal inputs, for M points z ([Ashman 2020] 3.19 to 3.23; Titsias and Lawrence 2010).

    :ivar first: psi_1, ``E k(x_n, z_i)``, ``(E, N, M)``.
    :ivar left: ``(E, N, W + 2, M)``, of which psi_2 is made.
    :ivar right: likewise.
    :ivar tilted: ``E[xi k(x_n, z_i)] / E k(x_n, z_i)``, ``(E, N, W, M)``: with an affine mean ``m(x) = m(centre) + g' xi``, psi_4 is
        ``E[m(x_n) k(x_n, z_i)] = first (m(centre) + g' tilted)``, and psi_3 is ``E m(x_n)^2 = m(centre)^2 + g'g``.
    """

    first: Tensor
    left: Tensor
    right: Tensor
    tilted: Tensor

    @property
    def second(self) -> Tensor:
        """Value of psi_2, ``E k(x_n, z_i) k(x_n, z_j) = exp(left_n' right_n)_ij``, ``(E, N, M, M)``."""
        return (self.left.mT @ self.right).exp()

    def quadratic(self, b: Float[Tensor, "d m m"]) -> Float[Tensor, "d n"]:
        """Return ``tr(b_d psi_2)`` of each row, without making psi_2 as a whole."""
        return QuadraticForms.apply(self.left, self.right, b)

    @classmethod
    def of(cls, term: RBFTerm, inputs: NormalInputs, points: Float[Tensor, "e m d"]) -> PsiStatistics:
        """Compute the statistics of a kernel.

        With V the scaled directions of a row and u the scaled distances of the points from its centre, ``E k(x, z_i) = variance
        |I + V V'|^(-1/2) exp(-(|u_i|^2 - |p_i|^2) / 2)``, ``p_i = C^-1 V u_i`` and ``C C' = I + V V'``. For products of two kernels V is
        larger by the root of 2, and the exponent is ``-(|u_i|^2 + |u_j|^2) / 2 + |p_i + p_j|^2 / 4``.

        :param points: z; E is 1 where the outputs share them.
        """
        scale = term.reciprocal  # (E, 1, D or 1)
        v = inputs.directions.movedim(0, -2) * scale.unsqueeze(-2)  # (E, N, W, D)
        z, centre = points * scale, inputs.centre * scale
        middle = z.mean(-2, keepdim=True)  # small numbers have small rounding
        z, centre = z - middle, centre - middle
        squares = squared_distance(centre, z)  # (E, N, M)
        along = v @ z.mT.unsqueeze(-3) - v @ centre.unsqueeze(-1)  # (E, N, W, M)
        gram = v @ v.mT
        variance = term.variance[:, None, None]

        factor, half_log = _factor(gram, 1.0)
        p = linalg.solve_triangular(factor, along, upper=False)
        first = variance * torch.exp(-0.5 * (squares - p.square().sum(-2)) - half_log.unsqueeze(-1))
        tilted = linalg.solve_triangular(factor.mT, p, upper=True)

        factor, half_log = _factor(gram, 2.0)
        p = linalg.solve_triangular(factor, math.sqrt(2) * along, upper=False)
        own = -0.5 * squares + 0.25 * p.square().sum(-2) - 0.5 * half_log.unsqueeze(-1) + variance.log()
        own, ones, p = own.unsqueeze(-2), torch.ones_like(own).unsqueeze(-2), math.sqrt(0.5) * p
        return cls(first, torch.cat([p, own, ones], -2), torch.cat([p, ones, own], -2), tilted)


def _factor(gram: Tensor, times: float) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of ``I + times * gram`` and half the logarithm of its determinant."""
    factor = torch.linalg.cholesky(torch.eye(gram.shape[-1]).to(gram) + times * gram)
    return factor, factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
