"""Axes of the terms of an observed site: those of the rows of the data, of groups, and of several values of a row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import Site, SiteRecord, WeightedTrace
from pyro_dgp.internal.rows import num_rows
from pyro_dgp.likelihoods.observation import Observation


@dataclass(frozen=True)
class RowAxes:
    """Axes of terms, counted from the end.

    :ivar rows: those that hold the rows of the data, each of which has a term of its own.
    :ivar groups: those that hold groups, each with rows of its own.
    """

    rows: tuple[int, ...]
    groups: tuple[int, ...] = ()

    def summed(self, terms: Tensor, leading: int) -> Tensor:
        """Return terms summed over the values of each row.

        :param leading: number of axes in front that are kept, those of components.
        """
        kept = {*self.rows, *self.groups}
        within = [axis for axis in range(leading - terms.dim(), 0) if axis not in kept]
        return terms.sum(within) if within else terms  # the sum over no axes would be the sum over all


def row_axes(site: Site, weighted: WeightedTrace, shape: Size, events: int) -> RowAxes:
    """Return the axes of the rows and groups of an observed site.

    Plates that follow the rows of the data hold them. In their place stands the axis that is as long as the inputs of the first Gaussian process: the first one of an
    event, a plate of a fixed number, or an axis that nothing declares. Where no axis is, it is the first one of an event, or the only one.

    :param shape: that of the terms, without the axis of components in front.
    :param events: number of axes at the end that are those of an event.
    :raises ValueError: where none of several axes can be told for that of the rows.
    """
    frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
    known = {frame.name for frame in frames} & set(weighted.data_plates or ())
    of_groups = _plates_of_groups(frames, known, weighted)
    groups = tuple(frame.dim - events for frame in frames if frame.name in of_groups)
    if known:
        return RowAxes(tuple(frame.dim - events for frame in frames if frame.name in known), groups)
    plates = sorted(frame.dim - events for frame in frames if frame.name not in of_groups)
    free = [axis for axis in range(-len(shape), 0) if axis not in (*plates, *groups)]
    undeclared = len(weighted.groups)
    if not groups and Size(shape[axis] for axis in free[:undeclared]) == weighted.groups:
        groups, free = tuple(free[:undeclared]), free[undeclared:]
    event = [axis for axis in free if axis >= -events]
    others = [axis for axis in free if axis < -events]
    rows = rows_of_functions(weighted.trace.nodes.values())
    as_long = [axis for axis in (*event[:1], *plates, *event[1:], *others) if shape[axis] == rows]
    if as_long:
        return RowAxes((as_long[0],), groups)
    if event and (not plates or weighted.data_plates is not None):
        return RowAxes((event[0],), groups)
    if len(plates or others) <= 1:
        return RowAxes(tuple(plates or others), groups)
    raise ValueError(
        f"the observed site {site['name']!r} has values of shape {tuple(shape)}, and no axis of {rows} rows: this loss needs the density of each row, so let the axis of "
        "the rows stand first in an event, as in Normal(f, 0.1).to_event(2), or in the one plate of the site"
    )


def rows_of_functions(sites: Iterable[Site]) -> int | None:
    """Return the number of rows of the first Gaussian process among the sites of a pass."""
    priors = (record.prior for site in sites if (record := SiteRecord.of(site)) is not None)
    gps = (gp for each in priors for gp in (each.priors.values() if isinstance(each, Observation) else [each]))
    return next((num_rows(gp.x) for gp in gps if isinstance(gp, FunctionPrior)), None)


def _plates_of_groups(frames: Sequence[Any], of_rows: Collection[str], weighted: WeightedTrace) -> set[str]:
    """Return the names of the plates of groups: those around Gaussian processes, or else the outermost ones, where they are as large as the axes in front of the inputs."""
    known = {frame.name for frame in frames} & set(weighted.group_plates)
    others = sorted((frame for frame in frames if frame.name not in of_rows), key=lambda frame: frame.dim)
    outermost = others[: len(weighted.groups)]
    if known or Size(frame.size for frame in outermost) != weighted.groups:
        return known
    return {frame.name for frame in outermost}
