"""Quadrature over a real number for functions of mixtures, with panels as narrow as the components near them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.likelihoods.supports import bounds
from pyro_dgp.prediction.target_kinds import moment

#: Gauss-Legendre nodes of a panel.
NODES = 6
#: Widths of a component to either side of its mean between which panels are narrow, and most widths of a panel there.
_NEAR, _PANEL = 3.5, 3.0
#: Widths of a component to either side of its mean beyond which a normal one has no mass.
REACH = 9.0
#: Share of the mass that the integration may leave out beyond either end.
_LEFT_OUT = 1e-9
#: Parts of a panel at whose ends a change of sign is looked for, and halvings of a part that has one.
_PARTS, _HALVINGS = 4, 20
#: Largest number that counts as zero where signs are looked at: above rounding.
_ZERO = 1e-13
#: Most numbers that are held at once.
_MOST = 300_000


@dataclass(frozen=True)
class Panels:
    """Panels of each row, next to each other; rows that have fewer than others end with panels of no length.

    :ivar start: left ends, ``(P, R)``.
    :ivar length: lengths, ``(P, R)``.
    """

    start: Tensor
    length: Tensor

    @classmethod
    def between(cls, low: Tensor, high: Tensor, mean: Tensor, width: Tensor) -> Panels:
        """Halve ``[low, high]`` until no panel is long beside a component near it.

        A panel is at most :data:`_PANEL` widths of a component long where it is near that component, and elsewhere no longer than its distance from it.

        :param low: left ends ``(R,)``, as ``high``.
        :param mean: means of the components, ``(S, R)``.
        :param width: their widths, such as standard deviations, ``(S, R)``.
        """
        if not bool((low.isfinite() & high.isfinite()).all()):
            raise ValueError(
                "a prediction has a mean or a variance that is not finite: the gap of such rows cannot be measured, leave them out"
            )
        row, start, length = torch.arange(len(low), device=low.device), low, high - low
        width = torch.maximum(width, 1e-9 * length)  # a point mass
        kept = []
        while len(row):
            many = max(1, _MOST // len(mean))
            parts = zip(row.split(many), start.split(many), length.split(many), strict=True)
            wide = torch.cat([_is_wide(*part, mean=mean, width=width) for part in parts])
            kept.append([each[~wide] for each in (row, start, length)])
            row, start, length = row[wide].repeat(2), start[wide], 0.5 * length[wide].repeat(2)
            start = torch.cat([start, start + length[: len(start)]])
        row, start, length = (torch.cat(parts) for parts in zip(*kept, strict=True))
        order = torch.argsort(row, stable=True)
        row, start, length = row[order], start[order], length[order]
        counts = torch.bincount(row, minlength=len(low))
        place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
        starts = low.expand(int(counts.max()), -1).clone()
        lengths = torch.zeros_like(starts)
        starts[place, row], lengths[place, row] = start, length
        return cls(starts, lengths)

    def cut_at_zeros(self, function: Callable[[Tensor], Tensor], components: int) -> Panels:
        """Return panels that also end where a function changes its sign, so that its absolute value is smooth inside each.

        :param function: from points ``(P, R)`` to values of that shape.
        :param components: see :meth:`integral`.
        """
        parts = torch.arange(_PARTS).to(self.start) / _PARTS
        last = (self.start + self.length).amax(0, keepdim=True)
        inner = (self.start + self.length * parts.reshape(-1, 1, 1)).flatten(0, 1)
        points = torch.cat([inner, last]).sort(0).values
        many = max(1, _MOST // (components * points.shape[1]))
        positive = torch.cat([function(part) > _ZERO for part in points.split(many)])
        changes = positive[1:] != positive[:-1]
        place = torch.argsort(changes.int(), dim=0, descending=True, stable=True)[: int(changes.sum(0).max())]
        low, high = points[:-1].gather(0, place), points[1:].gather(0, place)
        below = positive[:-1].gather(0, place)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            same = torch.cat([function(part) > _ZERO for part in middle.split(many)]) == below
            low, high = torch.where(same, middle, low), torch.where(same, high, middle)
        edges = torch.cat([self.start, low, last]).sort(0).values
        return Panels(edges[:-1], edges.diff(dim=0))

    def integral(self, integrand: Callable[[Tensor], Tensor], components: int) -> Tensor:
        """Return the integral of a function in each row, ``(R,)``.

        :param integrand: from points ``(P, R)`` to values of that shape.
        :param components: S, by which the number of points that are evaluated together is chosen.
        """
        nodes, weights = (torch.as_tensor(each).to(self.start) for each in np.polynomial.legendre.leggauss(NODES))
        half = self.length / 2
        total = self.start.new_zeros(self.start.shape[1])
        many = max(1, _MOST // (components * self.start.shape[1] * NODES))
        for start, size in zip(self.start.split(many), half.split(many), strict=True):
            at = start + size * (1 + nodes).reshape(-1, 1, 1)
            values = integrand(at.flatten(0, 1)).unflatten(0, at.shape[:2])
            total = total + torch.einsum("kpr,pr,k->r", values, size, weights)
        return total


def _is_wide(row: Tensor, start: Tensor, length: Tensor, *, mean: Tensor, width: Tensor) -> Tensor:
    """Tell of each panel ``(P,)`` whether it is to be halved."""
    mean, width = mean[:, row], width[:, row]
    apart = torch.maximum(start - mean, mean - start - length)
    return (length > torch.where(apart < _NEAR * width, _PANEL * width, apart)).any(0)


def widths(components: Distribution) -> Tensor:
    """Return widths of components, ``(S, R)``: the standard deviation, or that of a normal as high as the density is at the mean if it is less."""
    mean = moment(components, "mean")
    height = components.log_prob(mean).double()
    return torch.fmin(moment(components, "variance").double().sqrt(), (-height).exp() / math.sqrt(2 * math.pi))


def ends(components: Distribution, log_density: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the ends ``(R,)`` of a range that leaves out next to none of the mass of a mixture, whose tails may be heavy.

    :param log_density: that of the mixture, from points ``(1, R)``.
    """
    mean, width = moment(components, "mean").double(), widths(components)
    low, high = (mean - REACH * width).amin(0), (mean + REACH * width).amax(0)
    least, greatest = (each.to(mean).expand(mean.shape) for each in bounds(components))
    for _ in range(60):
        low, high = torch.maximum(low, least.amin(0)), torch.minimum(high, greatest.amax(0))
        length = high - low
        short, shorter = (log_density(at[None])[0] + length.log() > math.log(_LEFT_OUT) for at in (low, high))
        if not bool((short & (low > least.amin(0)) | shorter & (high < greatest.amax(0))).any()):
            break
        low, high = torch.where(short, low - length, low), torch.where(shorter, high + length, high)
    return low, high
