"""Sums over the values of counts by few of them: panels of whole numbers, short where the summand bends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

#: Values of a panel that are looked at. Panels of no more values are summed exactly.
_NODES = 9
#: Least length of a longer panel, whose nodes are different numbers.
_LEAST = 28
#: First panels: four short ones, and then each as long as all before it.
_SHORT, _OCTAVES = 4, 1000
#: Largest difference of a panel's sum by all nodes and by every other one, as a share of the sum over all panels.
_TOLERANCE = 1e-6
#: Most halvings of a panel.
_HALVINGS = 1000


@dataclass(frozen=True)
class CountPanels:
    """Panels of whole numbers, each of which belongs to a row.

    A panel of n numbers has nine nodes: whole numbers next to the extrema of a Chebyshev polynomial. The sum over the panel is that of the polynomial
    through the values at the nodes.

    :ivar row: row of each panel, ``(P,)``.
    :ivar start: first number of each panel, ``(P,)``.
    :ivar length: how many numbers it has, ``(P,)``.
    """

    row: Tensor
    start: Tensor
    length: Tensor

    def nodes(self) -> Tensor:
        """Return the nodes, ``(9, P)``, in ascending order; those of short panels go on beyond their ends."""
        steps = torch.arange(_NODES).to(self.start).unsqueeze(-1)
        share = 0.5 - 0.5 * (math.pi / (_NODES - 1) * steps).cos()
        return self.start + torch.where(self.length <= _NODES, steps, ((self.length - 1) * share).round())

    def weights(self) -> tuple[Tensor, Tensor]:
        """Return the weights of the nodes in the sum over each panel, and the weights if every other node is left out, each ``(9, P)``."""
        steps = torch.arange(_NODES).to(self.start).unsqueeze(-1)
        all_of_short = (steps < self.length).to(self.start)
        kinds, kind = self.length.clamp_min(_LEAST).unique(return_inverse=True)
        offsets = CountPanels(kind, torch.zeros_like(kinds), kinds).nodes()
        fine = _sum_weights(offsets, kinds)[:, kind]
        coarse = torch.zeros_like(fine)
        coarse[::2] = _sum_weights(offsets[::2], kinds)[:, kind]
        is_short = self.length <= _NODES
        return torch.where(is_short, all_of_short, fine), torch.where(is_short, all_of_short, coarse)

    def halves(self, cut: Tensor) -> CountPanels:
        """Return both parts of each panel, split at a number of its row, ``(R,)``, that lies inside, and else in the middle."""
        at = cut[self.row] - self.start
        first = torch.where((at > 0) & (at < self.length), at, (self.length / 2).ceil())
        return CountPanels(
            self.row.repeat(2),
            torch.cat([self.start, self.start + first]),
            torch.cat([first, self.length - first]),
        )

    def where(self, chosen: Tensor) -> CountPanels:
        """Return the chosen panels."""
        return CountPanels(self.row[chosen], self.start[chosen], self.length[chosen])

    def joined(self, other: CountPanels) -> CountPanels:
        """Return these panels and others."""
        return CountPanels(
            torch.cat([self.row, other.row]),
            torch.cat([self.start, other.start]),
            torch.cat([self.length, other.length]),
        )

    def evaluated(self, function: Callable[[Tensor], Tensor], least: Tensor) -> Tensor:
        """Return the values of a function at the nodes, ``(9, P)``.

        :param function: from numbers ``(K, R)``, some for each row, to values of that shape.
        :param least: a number of each row at which the function can be evaluated, ``(R,)``.
        """
        order = torch.argsort(self.row, stable=True)
        counts = torch.bincount(self.row, minlength=len(least))
        place = torch.empty_like(self.row)
        place[order] = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[self.row[order]]
        grid = least.expand(_NODES, int(counts.max()), -1).clone()
        grid[:, place, self.row] = self.nodes()
        return function(grid.flatten(0, 1)).unflatten(0, grid.shape[:2])[:, place, self.row]

    def by_row(self, sums: Tensor, rows: int) -> Tensor:
        """Return the totals over the panels of each row, ``(R,)``, of numbers ``(P,)``."""
        return sums.new_zeros(rows).index_add(0, self.row, sums)


@dataclass(frozen=True)
class PanelSum:
    """The sum of a function over the values of counts, to be refined.

    :ivar least: least value of each count, ``(R,)``.
    :ivar cut: number of each row, ``(R,)``, at which the function may jump: no panel reaches over it.
    :ivar panels: panels that hold all numbers that count.
    """

    least: Tensor
    cut: Tensor
    panels: CountPanels

    @classmethod
    def up_to(cls, full: float, cdf: Callable[[Tensor], Tensor], least: Tensor, cut: Tensor) -> PanelSum:
        """Return the sum over panels of doubling lengths, from the least value of each count to where ``cdf`` is above ``full`` and the cut is passed.

        :param cdf: distribution function of the counts, from numbers ``(K, R)`` to values of that shape.
        :raises ValueError: where the distribution function is not a number, or stays below ``full`` however large the count.
        """
        return cls(least, cut, _octaves(cdf, least, cut, full=full))

    def refined(self, function: Callable[[Tensor], Tensor], floor: float = 0.0) -> tuple[PanelSum, Tensor]:
        """Return the sum with panels that serve for a function, and its value, ``(R,)``.

        A panel is halved until its sums by nine nodes and by five of them differ by at most 1e-6 of the sum over all. The error of the sum by nine is
        then that of some 1e-9. A function of a distribution function, which never falls, shows a step between two nodes in both sums.

        :param function: from numbers ``(K, R)`` to values of that shape.
        :param floor: size of a sum below which its error may be as large as that of one of this size.
        """
        rows, panels = len(self.least), self.panels
        kept, total_kept = panels.where(panels.length < 0), torch.zeros_like(self.least)
        for _ in range(_HALVINGS):
            panels = self._fitting(panels)
            values = panels.evaluated(function, self.least)
            fine, coarse = ((weights * values).sum(0) for weights in panels.weights())
            total = (total_kept + panels.by_row(fine, rows)).abs().clamp_min(floor)
            done = (fine - coarse).abs() <= _TOLERANCE * total[panels.row]
            total_kept = total_kept + panels.where(done).by_row(fine[done], rows)
            kept = kept.joined(panels.where(done))
            if bool(done.all()):
                break
            panels = panels.where(~done).halves(self.cut)
        return PanelSum(self.least, self.cut, kept), total_kept

    def value(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the sum of a function over the panels as they are, ``(R,)``, differentiable as the function is."""
        weights, _ = self.panels.weights()
        return self.panels.by_row((weights * self.panels.evaluated(function, self.least)).sum(0), len(self.least))

    def _fitting(self, panels: CountPanels) -> CountPanels:
        """Return panels that none is in two parts by the cut, or too long for an exact sum and too short for nodes."""
        while True:
            at = self.cut[panels.row] - panels.start
            unfit = (at > 0) & (at < panels.length) | (panels.length > _NODES) & (panels.length < _LEAST)
            if not bool(unfit.any()):
                return panels
            panels = panels.where(~unfit).joined(panels.where(unfit).halves(self.cut))


def _octaves(cdf: Callable[[Tensor], Tensor], least: Tensor, cut: Tensor, *, full: float) -> CountPanels:
    """Return panels of doubling lengths, from the least value of each count to where the distribution function is full and the cut is passed."""
    index = torch.arange(len(least), device=least.device)
    found = []
    start, length, is_open = least, torch.full_like(least, _NODES), torch.ones_like(least, dtype=torch.bool)
    for step in range(_OCTAVES):
        found.append(CountPanels(index[is_open], start[is_open], length[is_open]))
        reached = cdf((start + length - 1).unsqueeze(0))[0]
        if bool(reached.isnan().any()):
            break
        is_open = is_open & ~((reached > full) & (start + length > cut))
        if not bool(is_open.any()):
            parts = ((each.row, each.start, each.length) for each in found)
            return CountPanels(*(torch.cat(each) for each in zip(*parts, strict=True)))
        start = start + length
        length = length if step < _SHORT - 1 else start - least
    raise ValueError(
        "a prediction of counts has a mean or a variance that is not finite, or beyond all numbers: leave such rows out of sums over its values"
    )


def _sum_weights(offsets: Tensor, length: Tensor) -> Tensor:
    """Return weights ``(K, P)`` by which values at K numbers of ``0 ... n - 1`` give the sum over all n of the polynomial through them.

    With ``x = (2 k - n + 1) / n`` the sums of powers of x over all k are known (Faulhaber): odd powers add up to 0.

    :param offsets: the K numbers, ``(K, P)``.
    :param length: n, ``(P,)``.
    """
    q = length.square().reciprocal()
    ones = torch.ones_like(q)
    powers = [
        ones,
        (1 - q) / 3,
        (1 - q) * (3 - 7 * q) / 15,
        (1 - q) * (3 - 18 * q + 31 * q.square()) / 21,
        (1 - q) * (5 - 55 * q + 239 * q.square() - 381 * q**3) / 45,
    ]
    moments = torch.stack([each for even in powers for each in (even, 0 * ones)][: len(offsets)], -1)
    x = (2 * offsets - length + 1) / length
    matrix = torch.stack([x.T**power for power in range(len(offsets))], 1)
    return (torch.linalg.solve(matrix, moments) * length.unsqueeze(-1)).T
