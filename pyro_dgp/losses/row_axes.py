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
    """Return the axes of the rows and groups of an observed site; no axis of rows for a distribution that joins them.

    Plates that follow the rows of the data hold them, or the axis that does. Where the model could not be asked, or the site follows other rows, it is an axis as long
    as the inputs of a Gaussian process: the first one of an event, that of a plate, or one that nothing declares. Where no axis is, it is the first one of an event, or the only one.

    :param shape: that of the terms, without the axis of components in front.
    :param events: number of axes at the end that are those of an event.
    :raises ValueError: where none of several axes can be told for that of the rows.
    """
    frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
    known = {frame.name for frame in frames} & set(weighted.data_plates or ())
    rows = tuple(frame.dim - events for frame in frames if frame.name in known)
    axis = weighted.row_axes.get(site["name"])
    if not rows and axis is not None:
        axis += (
            len(site["fn"].event_shape) - events
        )  # the last axes may have one density together, and so none of their own
        rows = (axis,) if axis < 0 else ()
    groups = _groups(frames, known, weighted, shape, rows, events)
    is_known = rows or axis is not None
    return RowAxes(rows if is_known else _rows_by_length(site, weighted, shape, events, groups), groups)


def _rows_by_length(
    site: Site, weighted: WeightedTrace, shape: Size, events: int, groups: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the axis of the rows of a site by the lengths of the inputs of Gaussian processes."""
    declared = [frame.dim - events for frame in site["cond_indep_stack"] if frame.vectorized]
    free = [axis for axis in range(-len(shape), 0) if axis not in groups]
    plates = [axis for axis in free if axis in declared]
    event = [axis for axis in free if axis >= -events]
    others = [axis for axis in free if axis not in (*plates, *event)]
    lengths = lengths_of_functions(weighted.trace.nodes.values())
    as_long = [axis for axis in (*event[:1], *plates, *event[1:], *others) if shape[axis] in lengths]
    if as_long:
        return (as_long[0],)
    if event and (not plates or weighted.data_plates is not None):
        return (event[0],)
    if len(plates or others) <= 1:
        return tuple(plates or others)
    raise ValueError(
        f"the observed site {site['name']!r} has values of shape {tuple(shape)}, and no axis of as many rows as a Gaussian process has ({', '.join(map(str, lengths))}): this loss "
        "needs the density of each row, so let the axis of the rows stand first in an event, as in Normal(f, 0.1).to_event(2), or in the one plate of the site"
    )


def lengths_of_functions(sites: Iterable[Site]) -> list[int]:
    """Return the numbers of rows of the Gaussian processes among the sites of a pass, in their order."""
    priors = (record.prior for site in sites if (record := SiteRecord.of(site)) is not None)
    gps = (gp for each in priors for gp in (each.priors.values() if isinstance(each, Observation) else [each]))
    return [num_rows(gp.x) for gp in gps if isinstance(gp, FunctionPrior)]


def rows_of_functions(sites: Iterable[Site]) -> int | None:
    """Return the number of rows of the first Gaussian process among the sites of a pass."""
    return next(iter(lengths_of_functions(sites)), None)


def _groups(
    frames: Sequence[Any],
    of_rows: Collection[str],
    weighted: WeightedTrace,
    shape: Size,
    rows: tuple[int, ...],
    events: int,
) -> tuple[int, ...]:
    """Return the axes of groups: those of their plates, or the first axes, where these are as long as those in front of the inputs and hold no rows."""
    names = _plates_of_groups(frames, of_rows, weighted)
    if names:
        return tuple(frame.dim - events for frame in frames if frame.name in names)
    leading = tuple(range(-len(shape), len(weighted.groups) - len(shape)))
    is_free = not {*leading} & {*rows} and len(shape) > len(weighted.groups)
    return leading if is_free and shape[: len(weighted.groups)] == weighted.groups else ()


def _plates_of_groups(frames: Sequence[Any], of_rows: Collection[str], weighted: WeightedTrace) -> set[str]:
    """Return the names of the plates of groups: those around Gaussian processes, or else the outermost ones, where they are as large as the axes in front of the inputs."""
    known = {frame.name for frame in frames} & set(weighted.group_plates)
    others = sorted((frame for frame in frames if frame.name not in of_rows), key=lambda frame: frame.dim)
    outermost = others[: len(weighted.groups)]
    if known or Size(frame.size for frame in outermost) != weighted.groups:
        return known
    return {frame.name for frame in outermost}
