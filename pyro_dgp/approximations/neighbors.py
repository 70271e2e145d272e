"""Rows in an order in which each is conditioned on its nearest earlier rows, and on no others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dgp.internal.whole_numbers import whole_number

Indices = NDArray[np.int64]

#: Number of inputs from which, and of rows up to which, the distances between all pairs take less time than trees: on 7,400 rows of 8 inputs and on
#: 15,600 of 12, products in double precision took 0.45 of the time on one core. With more rows of 9 correlated inputs trees are faster.
_MANY_INPUTS, _MOST_ROWS = 6, 20_000
#: Number of rows up to which they take less time for any inputs: a third on 300 rows of 1 to 5 inputs; on 1,000 rows of one input trees are faster.
_FEW_ROWS = 500
#: Rows whose distances are computed together.
_PAIRS_AT_A_TIME = 256


@dataclass(frozen=True)
class Neighbors:
    """An order of N rows, and the earlier rows that each row is conditioned on.

    :ivar order: permutation of the rows, ``(N,)``: ``order[2] == 7`` says that row 7 of the data comes third.
    :ivar places: for each place in this order, the places of its m nearest earlier rows, ``(N, m)``; 0 where there are fewer than m.
    :ivar is_there: whether ``places`` holds a row, ``(N, m)``.
    """

    order: Tensor
    places: Tensor
    is_there: Tensor

    def __len__(self) -> int:
        return len(self.order)

    @property
    def num_neighbors(self) -> int:
        """The largest number of rows that a row is conditioned on, m."""
        return self.places.shape[-1]

    @cached_property
    def levels(self) -> list[Tensor]:
        """Places in parts: those of one part are conditioned on places of earlier parts alone, so that they can be computed at once."""
        earlier = torch.where(self.is_there, self.places, -1).cpu().numpy()
        level = np.zeros(len(earlier), np.int64)
        for place, own in enumerate(earlier.tolist()):
            level[place] = 1 + max((int(level[each]) for each in own if each >= 0), default=-1)
        by_level = np.argsort(level, kind="stable")
        starts = np.searchsorted(level[by_level], np.arange(1, level.max() + 1))
        return [torch.as_tensor(part, device=self.order.device) for part in np.split(by_level, starts)]


def nearest_neighbors(x: Tensor, *, num_neighbors: int, seed: int = 0, lengths: Tensor | None = None) -> Neighbors:
    """Put rows in a random order and find the nearest earlier rows of each.

    :param x: inputs ``(N, D)``. Distances are Euclidean.
    :param num_neighbors: m; rows with fewer earlier rows are conditioned on all of them.
    :param seed: seed of the order.
    :param lengths: what each input is divided by, ``(D,)``; its standard deviation if not given.

    >>> neighbors = nearest_neighbors(torch.linspace(0, 1, 6)[:, None], num_neighbors=2)
    >>> neighbors.places.shape, sorted(neighbors.order.tolist())
    (torch.Size([6, 2]), [0, 1, 2, 3, 4, 5])
    """
    if not len(x):
        raise ValueError("the inputs have no rows: give one row or more")
    points = scaled(x, x.std(0, correction=0) if lengths is None else lengths)
    order = np.random.RandomState(seed).permutation(len(points))
    count = min(num_neighbors, max(1, len(points) - 1))
    by_pairs = len(points) <= (_MOST_ROWS if points.shape[-1] >= _MANY_INPUTS else _FEW_ROWS)
    earlier = (nearest_by_pairs if by_pairs else nearest_by_trees)(points[order], count)
    is_there = torch.as_tensor(earlier >= 0, device=x.device)
    places = torch.as_tensor(earlier, device=x.device)
    return Neighbors(torch.as_tensor(order, device=x.device), torch.where(is_there, places, 0), is_there)


class NeighborSearch:
    """Finds the neighbours of the inputs of one Gaussian process. The last ones are kept, and given again for equal inputs.

    The order of the rows depends on their number and the seed alone. The neighbours follow the inputs.

    :ivar num_neighbors: rows that a row is conditioned on, m at most.
    :ivar seed: seed of the order.

    >>> search = NeighborSearch(2)
    >>> search(torch.linspace(0, 1, 6)[:, None]) is search(torch.linspace(0, 1, 6)[:, None])
    True
    """

    def __init__(self, num_neighbors: int, seed: int = 0) -> None:
        self.num_neighbors = whole_number("num_neighbors", num_neighbors, 1)
        self.seed = whole_number("seed", seed, 0)
        self._last: tuple[list[Tensor], Neighbors] | None = None

    def __call__(self, x: Tensor, lengths: Tensor | None = None) -> Neighbors:
        """Return the neighbours of inputs ``(N, D)``, divided by lengths ``(D,)``."""
        given = (x, x.new_zeros(0) if lengths is None else lengths)
        if self._last is None or not all(map(_are_equal, self._last[0], given)):
            found = nearest_neighbors(x, num_neighbors=self.num_neighbors, seed=self.seed, lengths=lengths)
            self._last = [value.detach().clone() for value in given], found
        return self._last[1]

    def __reduce__(self) -> tuple[type[NeighborSearch], tuple[int, int]]:
        """Without what it remembers."""
        return NeighborSearch, (self.num_neighbors, self.seed)


def _are_equal(before: Tensor, now: Tensor) -> bool:
    return before.shape == now.shape and torch.equal(before.to(now), now)


def scaled(x: Tensor, lengths: Tensor) -> NDArray[np.float64]:
    """Return inputs divided by lengths; those of length zero are left as they are."""
    lengths = lengths.detach().double()
    return (x.detach().double() / torch.where(lengths > 0, lengths, 1.0)).cpu().numpy()


def nearest_by_trees(points: NDArray[np.float64], count: int) -> Indices:
    """Return the places of the nearest earlier points, ``(N, count)``; minus one where there are fewer. Time is ``N log N`` for few inputs.

    Trees of the first 2, 4, 8, ... times so many points are searched for the points of their second half: some half of what is found is earlier.
    """
    from sklearn.neighbors import KDTree

    total, found = len(points), np.full((len(points), count), -1)
    start, end = 0, min(total, 4 * count)
    while start < total:
        tree, left, wanted = KDTree(points[:end]), np.arange(start, end), min(end, 5 * count // 2 + 1)
        while len(left):
            near = tree.query(points[left], wanted, return_distance=False)
            is_earlier = near < left[:, None]
            is_done = (is_earlier.sum(-1) >= count) | (wanted == end)
            done, near, is_earlier = left[is_done], near[is_done], is_earlier[is_done]
            first = np.argsort(~is_earlier, -1, kind="stable")[:, :count]
            chosen = np.where(np.take_along_axis(is_earlier, first, -1), np.take_along_axis(near, first, -1), -1)
            found[done, : chosen.shape[1]] = chosen
            left, wanted = left[~is_done], min(end, 2 * wanted)
        start, end = end, min(total, 2 * end)
    return found


def nearest_by_pairs(points: NDArray[np.float64], count: int) -> Indices:
    """Return what :func:`nearest_by_trees` does, by the distances between all pairs: products of matrices, or differences of few inputs, which round less."""
    by_products = points.shape[-1] >= _MANY_INPUTS
    values = torch.as_tensor(points - points.mean(0) if by_products else points)
    squares, places, found = values.square().sum(-1), torch.arange(len(values)), torch.full((len(values), count), -1)
    for part in places.split(_PAIRS_AT_A_TIME):
        end = int(part[-1]) + 1
        if by_products:
            distances = torch.addmm(squares[:end], values[part], values[:end].mT, alpha=-2.0)  # less the own square
        else:
            distances = torch.cdist(values[part], values[:end], compute_mode="donot_use_mm_for_euclid_dist")
        own = distances[:, int(part[0]) :]
        own.masked_fill_(places[part[0] : end] >= part[:, None], torch.inf)
        nearest, which = distances.topk(min(count, end), largest=False, sorted=False)
        found[part, : which.shape[-1]] = torch.where(nearest.isinf(), -1, which)
    return found.numpy()
