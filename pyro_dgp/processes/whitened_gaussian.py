"""Gaussians over whitened coefficients: the values that a pass reads, with their KL and moments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.processes.divergence import Divergence, total

#: Forms of the covariance of q(v): any; diagonal; none, for a point estimate; and that of the prior, the identity.
KINDS = ("full", "diagonal", "delta", "prior")


@dataclass(frozen=True)
class WhitenedGaussian:
    """The Gaussian ``q(v_d) = N(mean_d, S_d)`` over coefficients whose prior is ``N(0, I)``, with its values read once.

    :ivar mean: means ``(*groups, D_out, M)``.
    :ivar scale: T ``(*groups, D_out, M, M)`` with ``S = T T'`` (full), standard deviations ``(*groups, D_out, M)``
        (diagonal), or ``None`` (delta, S = 0; prior, S = I).
    :ivar kind: one of :data:`KINDS`.
    """

    mean: Tensor
    scale: Tensor | None
    kind: str

    @property
    def is_full(self) -> bool:
        """Whether the scale is a triangular factor."""
        return self.kind == "full"

    def regularizer(self) -> Tensor:
        """Return ``sum_d KL(N(mean_d, S_d) || N(0, I))`` in nats, one number for each group.

        For S = 0, where the KL is infinite, it is ``-sum_d log N(mean_d; 0, I)``.
        """
        if self.scale is None:
            squares, size = total(self.mean.square(), self.mean.dim() - 2), self.mean.shape[-2:].numel()
            return 0.5 * squares + (0.5 * size * math.log(2 * math.pi) if self.kind == "delta" else 0.0)
        result: Tensor = Divergence.apply(self.mean, self.scale, self.is_full)  # type: ignore[no-untyped-call]
        return result

    def cavity(self, share: float) -> tuple[WhitenedGaussian, Tensor]:
        """Return the cavity ``q^(1 - b) N(0, I)^b`` for a share b, and the regulariser of approximate expectation propagation.

        With ``B = I + b (S - I)`` the cavity has covariance ``S B^-1`` and mean ``(1 - b) B^-1 mean``. The regulariser is
        ``sum_d -log|S| / 2 + log|B| / (2 b) + (1 - b) / 2 mean' B^-1 mean`` in nats, one number for each group. It tends to the KL as b falls
        to 0. (Bui, Hernandez-Lobato, Hernandez-Lobato, Li and Turner 2016, section 3, in whitened coordinates and divided into N tied factors.)

        :raises ValueError: for a point estimate, which has no cavity.
        """
        if self.kind == "delta":
            raise ValueError("a point estimate has no cavity: take covariance='full' or 'diagonal'")
        mean, groups = self.mean, self.mean.dim() - 2
        if self.scale is None:
            left = (1 - share) * mean
            return WhitenedGaussian(left, None, self.kind), 0.5 * total(mean * left, groups)
        exact = self.scale.double()  # log|B| / b has the rounding of log|B| over b
        if self.is_full:
            inner = share * exact.mT @ exact
            inner.diagonal(dim1=-2, dim2=-1).add_(1 - share)  # |B| = |(1 - b) I + b T'T|
            upper = torch.linalg.cholesky(inner.flip(-2, -1)).flip(-2, -1)  # inner = upper upper'
            root = exact @ linalg.solve_triangular(upper.mT, linalg.identity(inner), upper=False)
            half_log = upper.diagonal(dim1=-2, dim2=-1).log()
            shift = (root @ (root.mT @ mean.double().unsqueeze(-1))).squeeze(-1)
            diagonal = exact.diagonal(dim1=-2, dim2=-1)
        else:
            inner = 1 - share + share * exact.square()
            root, half_log, diagonal = exact / inner.sqrt(), 0.5 * inner.log(), exact
            shift = root.square() * mean
        left = mean - share * shift
        energy = (
            0.5 * total(mean * left, groups) + total(half_log, groups) / share - total(diagonal.abs().log(), groups)
        )
        return WhitenedGaussian(left.to(mean), root.to(mean), self.kind), energy.to(mean)

    def moments(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``a' mean_d`` and ``a' (S_d - I) a`` for each whitened column a, both ``(..., D_out or E, n)``.

        :param columns: A ``(..., *groups, E, M, n)``.
        """
        loc = (self.mean.unsqueeze(-2) @ columns).squeeze(-2)
        if self.kind == "prior":
            return loc, columns.new_zeros(()).expand(*columns.shape[:-2], columns.shape[-1])
        change = -linalg.column_squares(columns)
        if self.scale is None:
            return loc, change
        if self.is_full:
            return loc, change + linalg.column_squares(self.scale.mT @ columns)
        return loc, change + (self.scale.square().unsqueeze(-2) @ columns.square()).squeeze(-2)

    def draw(self, count: int) -> Tensor:
        """Draw v, ``(count, *groups, D_out, M)``."""
        white = self.mean.expand(count, *self.mean.shape)
        if self.kind == "delta":
            return white
        noise = torch.randn_like(white)
        if self.scale is None:
            return white + noise
        if self.is_full:
            return white + (self.scale @ noise.unsqueeze(-1)).squeeze(-1)
        return white + self.scale * noise

    def spread(self, columns: Tensor) -> Tensor:
        """Return ``a' S_d b`` for all pairs of whitened columns, ``(..., D_out, n, n)``."""
        if self.kind == "delta":
            return columns.new_zeros(()).expand(*columns.shape[:-3], self.mean.shape[-2], *[columns.shape[-1]] * 2)
        if self.scale is None:
            squares = columns.mT @ columns
            return squares.expand(*squares.shape[:-3], self.mean.shape[-2], *squares.shape[-2:])
        b = self.scale.mT @ columns if self.is_full else self.scale.unsqueeze(-1) * columns
        return b.mT @ b


@dataclass(frozen=True)
class IndependentGaussians:
    """Gaussian over coefficients that come in independent parts, one behind another, each a :class:`WhitenedGaussian`.

    :ivar parts: the parts.
    """

    parts: tuple[WhitenedGaussian, ...]

    @property
    def mean(self) -> Tensor:
        """The means ``(*groups, D_out, M)``."""
        return torch.cat([part.mean for part in self.parts], -1)

    def regularizer(self) -> Tensor:
        """Return the sum of the parts' KL."""
        return torch.stack([part.regularizer() for part in self.parts]).sum(0)

    def cavity(self, share: float) -> tuple[IndependentGaussians, Tensor]:
        """Return the cavities of the parts, and the sum of their regularisers; see :meth:`WhitenedGaussian.cavity`."""
        parts, energies = zip(*(part.cavity(share) for part in self.parts), strict=True)
        return IndependentGaussians(parts), torch.stack(energies).sum(0)

    def draw(self, count: int) -> Tensor:
        """Draw v, ``(count, *groups, D_out, M)``."""
        return torch.cat([part.draw(count) for part in self.parts], -1)

    def spread(self, columns: Tensor) -> Tensor:
        """Return ``a' S_d b`` for all pairs of whitened columns, ``(..., D_out, n, n)``."""
        pairs = zip(self.parts, self.split(columns), strict=True)
        return torch.stack([part.spread(own) for part, own in pairs]).sum(0)

    def split(self, columns: Tensor) -> tuple[Tensor, ...]:
        """Return the columns of each part."""
        return columns.split([part.mean.shape[-1] for part in self.parts], -2)


#: Values of a q(v), of one part or several.
Gaussian = WhitenedGaussian | IndependentGaussians
