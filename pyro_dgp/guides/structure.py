"""Structure of a model: its sites, as initialisation meets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import Site, SiteRecord
from pyro_dgp.guides.model_kinds import kinds_of, require_same_kinds
from pyro_dgp.guides.row_dependence import RowDependence
from pyro_dgp.guides.sites import is_observation, is_random
from pyro_dgp.internal.rows import num_rows


@dataclass(frozen=True)
class ModelStructure:
    """The sites of a model, as ``initialize`` met them.

    :ivar axes: by process name, the number of axes of a GP's inputs; by name of any other site, the number of batch axes.
    :ivar local: by name, shapes of the latent sites, besides GPs, that have a value for each row of the data.
    :ivar responses: names of the observation sites.
    :ivar data_plates: names of the plates that hold the rows of the data.
    :ivar group_plates: names of the plates around Gaussian processes, each index of which has a function of its own.
    :ivar without_rows: names of the sites whose shape does not follow the rows of the data.
    :ivar with_rows: names of the sites whose shape does. A site is in neither set where the model could not be asked.
    :ivar inputs: position or name of the argument that has these rows; ``None`` where the model could not be asked.
    :ivar joins_rows: whether a part of the model joins rows of function values, which are then drawn jointly.
    :ivar joins_data_rows: whether a row of the data depends on function values at other rows of the data, so that a batch is another model.
    :ivar further: names of the arguments with these rows besides inputs and targets, such as an exposure.
    :ivar whole: names of other tensors among the arguments, such as a table of values that rows look up.
    :ivar rescaled: names of the sites in a ``poutine.scale`` that follows the number of rows.
    :ivar taking: names of the plates of which as many elements are taken as there are rows; ``None`` where this is not known.
    :ivar row_axes: by name of the sites that follow the rows, the one axis of their shape that does, counted from the end.
    """

    axes: Mapping[str, int]
    local: Mapping[str, tuple[int, ...]]
    responses: frozenset[str]
    data_plates: frozenset[str]
    without_rows: frozenset[str]
    group_plates: frozenset[str]
    joins_rows: bool = False
    joins_data_rows: bool = False
    with_rows: frozenset[str] = frozenset()
    inputs: int | str | None = None
    further: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    rescaled: frozenset[str] = frozenset()
    taking: frozenset[str] | None = None
    row_axes: Mapping[str, int] = field(default_factory=dict)

    def batch_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Return the number of rows of a call; ``None`` where it is not known."""
        if self.inputs is None:
            return None
        value = dict(enumerate(args)).get(self.inputs) if isinstance(self.inputs, int) else kwargs.get(self.inputs)
        return num_rows(value) if isinstance(value, Tensor) else None

    @classmethod
    def of(
        cls,
        trace: Trace,
        gps: Sequence[tuple[str, FunctionPrior]],
        dependence: RowDependence,
        *,
        joins_rows: bool,
        joins_data_rows: bool,
    ) -> ModelStructure:
        """Read the structure from the trace of an initialising pass."""
        foreign, responses = _foreign(trace)
        axes = {key: prior.x.dim() for key, prior in gps}
        local = {}
        for site in foreign:
            axes[site["name"]] = len(site["fn"].batch_shape)
            if site["name"] in dependence.sites and site["name"] not in responses:
                local[site["name"]] = tuple(site["fn"].shape())
        around = [
            frame.name
            for site in trace.nodes.values()
            if is_random(site) and (_is_function(site) or is_observation(site))
            for frame in site["cond_indep_stack"]
            if frame.vectorized
        ]
        groups = frozenset(around) - dependence.plates
        return cls(
            axes,
            local,
            frozenset(responses),
            frozenset(dependence.plates),
            frozenset(dependence.others),
            groups,
            joins_rows,
            joins_data_rows,
            frozenset(dependence.sites),
            dependence.inputs,
            frozenset(dependence.further),
            frozenset(dependence.whole),
            frozenset(dependence.rescaled),
            None if dependence.taking is None else frozenset(dependence.taking),
            dict(dependence.axes),
        )

    def axes_of(self, name: str) -> int:
        """Return the number of batch axes of a site that is no GP; raise for one that ``initialize`` did not meet."""
        if name not in self.axes:
            raise ValueError(
                f"the site {name!r} was not met by guide.initialize: call it with what a training step passes, initialize(x, y)"
            )
        return self.axes[name]

    def to_state(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        """Return the structure as plain values, for a state dict, with the kinds of the parts of the model's modules."""
        return {
            "axes": dict(self.axes),
            "local": dict(self.local),
            "plates": sorted(self.data_plates),
            "response": sorted(self.responses),
            "without_rows": sorted(self.without_rows),
            "groups": sorted(self.group_plates),
            "joins_rows": self.joins_rows,
            "joins_data_rows": self.joins_data_rows,
            "with_rows": sorted(self.with_rows),
            "inputs": self.inputs,
            "further": sorted(self.further),
            "whole": sorted(self.whole),
            "rescaled": sorted(self.rescaled),
            "taking": None if self.taking is None else sorted(self.taking),
            "row_axes": dict(self.row_axes),
            "kinds": kinds_of(modules),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], modules: Sequence[nn.Module]) -> ModelStructure:
        """Read the structure from the values that :meth:`to_state` returned; raise for modules of other kinds."""
        require_same_kinds(state.get("kinds", {}), modules)
        local = {name: tuple(shape) for name, shape in state["local"].items()}
        responses, plates, without_rows, groups = (
            frozenset(state[key]) for key in ("response", "plates", "without_rows", "groups")
        )
        joins_rows = bool(state["joins_rows"])
        return cls(
            dict(state["axes"]),
            local,
            responses,
            plates,
            without_rows,
            groups,
            joins_rows,
            bool(state.get("joins_data_rows", joins_rows)),
            frozenset(state.get("with_rows", ())),
            state.get("inputs"),
            frozenset(state.get("further", ())),
            frozenset(state.get("whole", ())),
            frozenset(state.get("rescaled", ())),
            None if state.get("taking") is None else frozenset(state["taking"]),
            dict(state.get("row_axes", {})),
        )


def latent_sites(trace: Trace) -> list[Site]:
    """Return the latent sites of an initialising pass that are neither GPs nor observations."""
    foreign, responses = _foreign(trace)
    return [site for site in foreign if site["name"] not in responses]


def _foreign(trace: Trace) -> tuple[list[Site], set[str]]:
    """Return the sites that are no function values, and the names of the observations among them."""
    sites = [site for site in trace.nodes.values() if is_random(site)]
    foreign = [site for site in sites if not _is_function(site)]
    responses = {site["name"] for site in foreign if site["is_observed"] or is_observation(site)}
    if not responses and foreign and foreign[-1] is sites[-1]:
        responses = {sites[-1]["name"]}  # the model was initialised without y, so its last site is taken for y
    return foreign, responses


def _is_function(site: Site) -> bool:
    """Tell whether the guide gave a site function values. Observed function values count as an observation."""
    record = SiteRecord.of(site)
    return record is not None and isinstance(record.prior, FunctionPrior)
