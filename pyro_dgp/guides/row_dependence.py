"""Search for the sites and plates of a model that stand for the rows of a data set, by runs on fewer rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pyro.distributions import Delta, TransformedDistribution
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.scales_and_masks import scale_beyond_plates
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.internal.call_arguments import arguments_by_name, inputs_and_targets, tensors_in
from pyro_dgp.internal.distributions import elementwise
from pyro_dgp.internal.plates import known_groups
from pyro_dgp.internal.rows import RowArguments, inputs_among
from pyro_dgp.likelihoods import Observation, RowObservation

#: Rows that are left out besides the last, each in a run of its own, at most.
_LEFT_OUT = 7
#: Errors of a model that cannot be run on fewer rows.
_ERRORS = (RuntimeError, ValueError, IndexError, AssertionError, KeyError, TypeError)


@dataclass
class RowDependence:
    """Names of the sites whose shape, and of the plates whose size, follows the number of rows.

    :ivar others: names of the other sites. A site is in neither set where the model could not be asked.
    :ivar groups: batch axes of the Gaussian processes, see :func:`groups_of`.
    :ivar group_plates: names of the plates around Gaussian processes.
    :ivar inputs: position or name of the argument whose rows these are; ``None`` where the model could not be asked.
    :ivar further: names of the arguments with these rows besides inputs and targets, such as an exposure.
    :ivar whole: names of other tensors among the arguments, such as a table of values that rows look up.
    :ivar rescaled: names of the sites in a ``poutine.scale`` that follows the number of rows.
    :ivar taking: names of the plates of which as many elements are taken as there are rows; ``None`` where the model could not be asked.
    :ivar axes: by name of the sites, the one axis of their shape that follows the rows, counted from the end.
    """

    sites: set[str] = field(default_factory=set)
    plates: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    groups: Size = Size()
    group_plates: set[str] = field(default_factory=set)
    inputs: int | str | None = None
    further: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    rescaled: set[str] = field(default_factory=set)
    taking: set[str] | None = None
    axes: dict[str, int] = field(default_factory=dict)


class _Shapes(SiteHandler, Messenger):
    """Handler that runs a model with GPs at their means and keeps the shapes and scales of all sites and the sizes of plates."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[str, tuple[int, ...]] = {}
        self.scales: dict[str, float] = {}
        self.plates: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        self.latent: set[str] = set()
        self.joint: dict[str, Any] = {}
        self.groups = Size()
        self.group_plates: set[str] = set()
        self.observed: list[Tensor] = []

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"] and isinstance(msg["value"], Tensor):
            self.observed.append(msg["value"])
        super()._pyro_sample(msg)

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set function values to their mean where they are not observed."""
        msg["value"] = prior.mean if msg["value"] is None else msg["value"]
        self._note_groups(msg, prior.batch_shape)

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Set an observation to zeros, since only its shape matters."""
        first = next(iter(observation.priors.values()))
        msg["value"] = first.mean.new_zeros(observation.batch_shape + observation.event_shape)
        self._note_groups(msg, observation.batch_shape)

    def _note_groups(self, msg: Message, groups: Size) -> None:
        self.groups = max(self.groups, groups, key=len)
        self.group_plates |= {frame.name for frame in msg["cond_indep_stack"] if frame.vectorized}

    def unlike(self, other: _Shapes) -> tuple[set[str], set[str]]:
        """Return the names of the sites, and of the plates, whose shapes are not those of another run."""
        sites = {name for name, shape in self.sites.items() if other.sites.get(name) != shape}
        return sites, {name for name, size in self.plates.items() if other.plates.get(name) != size}

    def axes_unlike(self, other: _Shapes) -> dict[str, int]:
        """Return, by name of the sites, the one axis whose length is not that of another run, counted from the end."""
        found = {}
        for name, shape in self.sites.items():
            less = other.sites.get(name, ())
            axes = [axis for axis in range(-len(shape), 0) if len(less) == len(shape) and less[axis] != shape[axis]]
            if len(axes) == 1:
                found[name] = axes[0]
        return found

    def undecided(self) -> RowDependence:
        """Return what is known without a second run."""
        return RowDependence(groups=self.groups, group_plates=self.group_plates)

    def _pyro_post_sample(self, msg: Message) -> None:
        for frame in msg["cond_indep_stack"]:
            self.plates[frame.name] = frame.full_size or frame.size
            self.taken[frame.name] = frame.size
        if not site_is_subsample(msg):
            fn = msg["fn"]
            self.sites[msg["name"]] = tuple(fn.batch_shape + fn.event_shape)
            if not isinstance(msg["scale"], Tensor) or msg["scale"].numel() == 1:
                self.scales[msg["name"]] = scale_beyond_plates(msg)
            if not (msg["is_observed"] or isinstance(msg["fn"], FunctionPrior | Observation | RowObservation)):
                self.latent.add(msg["name"])
                self.joint[msg["name"]] = _single(fn)


@torch.no_grad()
def groups_of(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Size:
    """Return the batch axes of the model's Gaussian processes, those of data sets or of plates; ``()`` for one function.

    No covariance is factorised.
    """
    state = torch.get_rng_state()
    try:
        with _Shapes() as whole:
            model(*args, **kwargs)
    finally:
        torch.set_rng_state(state)
    return whole.groups


@torch.no_grad()
def row_dependence(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> RowDependence:
    """Compare the model on its arguments with the model on some of their rows.

    N is the number of rows of the first tensor argument ``(..., N, D)`` that an observed site follows, else of the first one; where all tensors are ``(N,)``, it is the
    first length that two of them share. Every row argument, see :class:`RowArguments`, is shortened. Nothing is found for a single
    row, or a model that cannot be run on fewer rows.

    One row after another is left out, the last, the first and some between, and then half of them. A latent site that changes with some of them alone has a value for each group, whose
    number the model counts from an argument.

    :raises ValueError: for such a site, since a batch or a prediction has other groups.
    """
    candidates = inputs_among(args, kwargs)
    if not candidates:
        return RowDependence()
    whole, found = _Shapes(), list[RowDependence]()
    state = torch.get_rng_state()
    try:
        try:
            with whole:
                model(*args, **kwargs)
        except _ERRORS:
            return whole.undecided()
        for inputs in candidates:
            found.append(_dependence(model, RowArguments(args, kwargs, x=inputs, groups=whole.groups), whole))
            if found[-1].inputs is None:
                break
            if found[-1].sites - whole.latent:
                return found[-1]
    finally:
        torch.set_rng_state(state)
    return found[0]


def _dependence(model: Callable[..., Any], rows: RowArguments, whole: _Shapes) -> RowDependence:
    """Return what follows the rows of some arguments."""
    if len(rows) < 2:
        return whole.undecided()
    further, others = _further(model, rows, whole.observed)
    try:
        less = _on(model, rows, _all_but(len(rows) - 1, rows), whole)
        sites, plates = whole.unlike(less)
        axes = whole.axes_unlike(less)
        taking = {name for name, size in whole.taken.items() if less.taken.get(name) != size}
        of_all = len(rows) / (
            len(rows) - 1
        )  # a scale that is annealed, or counts what a mask keeps, changes by another factor
        rescaled = {
            name for name, scale in whole.scales.items() if math.isclose(less.scales.get(name, 0.0), scale * of_all)
        }
        always = set(sites)
        for row in torch.linspace(0, len(rows) - 2, min(_LEFT_OUT, len(rows) - 1)).long().tolist():
            other_sites, other_plates = whole.unlike(_on(model, rows, _all_but(row, rows), whole))
            sites, plates, always = sites | other_sites, plates | other_plates, always & other_sites
        halved = _of_half(model, rows, whole)
    except _ERRORS:
        return replace(whole.undecided(), further=further, whole=others)
    _require_fixed_groups(whole, sites - always)
    _require_sites_of_all_rows(whole, less, len(rows))
    _require_rows_of_latents_apart(whole, less)
    sites |= halved
    given: list[tuple[int | str, Any]] = [*enumerate(rows.args), *rows.kwargs.items()]
    places = [place for place, value in given if value is rows.x]
    kept = whole.sites.keys() - sites
    return RowDependence(
        sites, plates, kept, whole.groups, whole.group_plates, places[0], further, others, rescaled, taking, axes
    )


def _further(model: Callable[..., Any], rows: RowArguments, observed: list[Tensor]) -> tuple[set[str], set[str]]:
    """Return the names of arguments of a model that are or hold tensors, besides its first two, inputs and targets, and other observed values: those with rows, and those without.

    Masks, of booleans, are left out: they say which targets count, which predictions need not know.
    """
    named = arguments_by_name(model, rows.args, rows.kwargs)
    first_two = inputs_and_targets(model, named)
    holding = {
        name
        for name, value in named.items()
        if name not in first_two and any(_is_further(each, rows, observed) for each in tensors_in(value))
    }
    further = {name for name in holding if rows.axis_of(named[name]) is not None}
    return further, holding - further


def _is_further(value: Tensor, rows: RowArguments, observed: list[Tensor]) -> bool:
    """Tell whether a tensor holds numbers besides inputs and targets."""
    is_known = _is_whole(value, rows.x) or any(_share_numbers(value, each) for each in observed)
    return value.dtype != torch.bool and not is_known


def _is_whole(value: Tensor, x: Tensor) -> bool:
    """Tell whether a tensor is the inputs, or all of their numbers under another name."""
    return value.data_ptr() == x.data_ptr() and value.shape == x.shape and value.stride() == x.stride()


def _share_numbers(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors have a number in memory in common: columns of one table have a storage in common alone. Up to 1,000 numbers of the smaller one are looked up."""
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr() or one.dtype != other.dtype:
        return False
    small, large = (one, other) if one.numel() <= other.numel() else (other, one)
    at = torch.linspace(0, small.numel() - 1, min(small.numel(), 1000)).long()
    places = torch.full_like(at, int(small.storage_offset()) - int(large.storage_offset()))
    for size, stride in zip(reversed(small.shape), reversed(small.stride()), strict=True):
        places += at % size * stride
        at //= size
    for stride, size in sorted(zip(large.stride(), large.shape, strict=True), reverse=True):
        if stride:
            places -= (places // stride).clamp(0, size - 1) * stride
    return bool((places == 0).any())


def _require_sites_of_all_rows(whole: _Shapes, less: _Shapes, rows: int) -> None:
    """Raise for a latent site that a model has at all rows and not without the last: a site for each row, of a loop over the rows."""
    name = next((name for name in whole.sites if name in whole.latent and name not in less.sites), None)
    if name is not None:
        raise ValueError(
            f"the latent site {name!r} is there at {rows} rows and not at {rows - 1}, as where a loop over the rows makes a site for each, so that new rows would take the values of "
            "training: write one site in a vectorised plate, as in with pyro.plate('rows', len(x)): pyro.sample('e', Normal(0, 1))"
        )


def _single(fn: Any) -> Any:
    """Return the distribution of single elements, also of one that is transformed element by element."""
    inner = elementwise(fn)
    while isinstance(inner, TransformedDistribution) and not any(each.domain.event_dim for each in inner.transforms):
        inner = elementwise(inner.base_dist)
    return inner


def _require_rows_of_latents_apart(whole: _Shapes, less: _Shapes) -> None:
    """Raise for a latent site with one distribution of all rows, as of a function that is written by hand: new rows would be drawn without regard to it."""
    for name, fn in whole.joint.items():
        if name in less.joint and fn.event_shape != less.joint[name].event_shape and not isinstance(fn, Delta):
            raise ValueError(
                f"the latent site {name!r} has one {type(fn).__name__} of all rows, which values at new rows cannot be conditioned on: write it as a Gaussian process, "
                "pyro.sample('f', gp(x)), or give each row a value of its own"
            )


def _require_fixed_groups(whole: _Shapes, changing: set[str]) -> None:
    """Raise for a latent site among those that change with some rows alone."""
    name = min(whole.latent & changing, default=None)
    if name is not None:
        raise ValueError(
            f"the latent site {name!r} of shape {whole.sites[name]} is smaller where some rows are left out, and as large where others are: its number of groups is counted "
            "from the rows, and a batch or a prediction has others. Give it as a fixed number, as in pyro.plate('groups', 3), or one value to each row"
        )


def _of_half(model: Callable[..., Any], rows: RowArguments, whole: _Shapes) -> set[str]:
    """Return the names of the sites that are half as large on half of the rows, latent ones left out.

    A site of a share of the rows, as of ``f[..., : len(x) // 2, :]``, is as large without one of them.
    """
    try:
        half = _on(model, rows, torch.arange(len(rows) // 2, device=rows.x.device), whole)
    except _ERRORS:
        return set()
    sites, _ = whole.unlike(half)
    return {name for name in sites - whole.latent if _is_halved(half.sites.get(name, ()), whole.sites[name])}


def _is_halved(part: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Tell whether one axis has half of its entries, up to rounding, and the others have all."""
    changed = [(less, all_) for less, all_ in zip(part, shape, strict=False) if less != all_]
    return len(part) == len(shape) and len(changed) == 1 and abs(2 * changed[0][0] - changed[0][1]) <= 2


def _all_but(row: int, rows: RowArguments) -> Tensor:
    index = torch.arange(len(rows), device=rows.x.device)
    return index[index != row]


def _on(model: Callable[..., Any], rows: RowArguments, index: Tensor, whole: _Shapes) -> _Shapes:
    """Return the shapes of a run on some of the rows."""
    less = _Shapes()
    args, kwargs = rows[index]
    with less, known_groups(whole.group_plates):
        model(*args, **kwargs)
    return less
