"""Search for numbers of a model that are computed at a row from other rows of the data, such as ``x - x.mean(0)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from pyro.poutine.messenger import Messenger
from torch import Size, Tensor, nn
from torch.distributions import MixtureSameFamily, constraints, transform_to

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.joint_rows import LOOKED_AT, site_joins_rows
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.sites import is_random
from pyro_dgp.internal.distributions import elementwise, parameters_of
from pyro_dgp.internal.parameters import evaluating
from pyro_dgp.internal.rows import Call, RowArguments, inputs_among
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.observation import join

#: Rows at most that are looked at.
_ROWS = 64
#: Standard deviations around their mean that function values are put at.
_SPREAD = 0.5
#: More runs on the same rows in which a number is the same before it is said to be no random one.
_REPEATED = 4
#: Rounding of sums in another order, as a share of the largest number; of float32, whose products are rounded as their number of rows decides, more.
_ROUNDING, _ROUNDING_OF_FLOAT32 = 1e-8, 1e-3
#: Numbers of a distribution that is known by its log density alone, and how much more its rounding is, since it is steep where a scale is small.
_LOG_DENSITY, _STEEPER = "log density", 10
#: What a distribution raises that has no density, or none at a value.
_NO_DENSITY = (NotImplementedError, AttributeError, ValueError, RuntimeError, TypeError)


class OtherRows(NamedTuple):
    """Part of a model that changes at a row with the other rows of a call: ``inputs`` or ``mean`` of a Gaussian process, or ``parameters`` of a site, and its name."""

    part: str
    name: str


class _Number(NamedTuple):
    """Name of numbers that a model met; ``which`` of the parameters of a site, and the ``place`` of a part of a mixture."""

    seen: OtherRows
    which: str = ""
    place: int = 0


class _Memory:
    """Values that the runs of a model on several sets of rows have in common.

    :ivar spread: standard deviations around their mean that function values are put at; zero for values of zero.
    :ivar scales: largest input of each Gaussian process, by key.
    :ivar values: a possible value of sites, by name.
    """

    def __init__(self, spread: float) -> None:
        self.spread = spread
        self.scales: dict[str, Tensor] = {}
        self.values: dict[str, Tensor] = {}

    def function_values(self, key: str, prior: FunctionPrior) -> Tensor:
        """Return function values that the row of inputs alone decides, ``(..., N, D_out)``."""
        mean = prior.mean
        if not self.spread:
            return torch.zeros_like(mean)
        x, outputs = prior.x, mean.shape[-1]
        scale = self.scales.setdefault(key, x.abs().reshape(-1, x.shape[-1]).amax(0).clamp_min(1e-30))
        places = torch.arange(1, x.shape[-1] * outputs + 1).to(x).reshape(x.shape[-1], outputs)
        phase = 0.4 + sum(map(ord, key)) % 7  # two Gaussian processes of the same inputs have other values
        waves = ((x / scale) @ (3.0 * (1.7 * places).cos()) + phase).sin()
        return mean + self.spread * prior.variance.sqrt() * waves

    def numbers_of(self, name: str, fn: Any) -> dict[_Number, Tensor]:
        """Return the parameters of a distribution; where it has others than it names, the log density of each element at one value."""
        found, seen = dict[_Number, Tensor](), OtherRows("parameters", name)
        for place, part in enumerate(_parts_of(fn)):
            try:
                known = parameters_of(part)
                known = {_LOG_DENSITY: self._log_density(f"{name} {place}", part)} if known is None else known
            except _NO_DENSITY:
                continue
            found |= {_Number(seen, which, place): values for which, values in known.items()}
        return found

    def _log_density(self, key: str, fn: Any) -> Tensor:
        """Return the log density of each element at a value of the first element, which is drawn once."""
        if key not in self.values:
            draw = fn.sample()
            self.values[key] = draw.reshape(-1, *draw.shape[draw.dim() - len(fn.event_shape) :])[0]
        log_prob: Tensor = fn.log_prob(self.values[key].expand(fn.shape()))
        return log_prob


def _parts_of(fn: Any) -> list[Any]:
    """Return the distribution of single elements, and both parts of a mixture."""
    inner = elementwise(fn)
    if isinstance(inner, MixtureSameFamily):
        return [*_parts_of(inner.mixture_distribution), *_parts_of(inner.component_distribution)]
    return [inner]


class _Met(SiteHandler, Messenger):
    """Handler that runs a model at given function values and near the middle of latent values, but not at it, and keeps what it is computed from at each row.

    :param rows: numbers of the rows of the call.
    :param axes: by name of latent sites with a value for each row, the axis of the rows.
    :ivar numbers: inputs and means of Gaussian processes ``(..., N, D)``, and parameters of sites, of any shape.
    :ivar latent: those of Gaussian processes whose values are latent, which may come in any order.
    """

    def __init__(self, memory: _Memory, rows: Tensor, axes: Mapping[str, int]) -> None:
        super().__init__()
        self.memory, self.rows, self.axes = memory, rows, axes
        self.shapes: dict[str, Size] = {}
        self.numbers: dict[_Number, Tensor] = {}
        self.latent: set[_Number] = set()

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set function values where they are not observed."""
        met = self._meet(msg["name"], prior)
        if msg["value"] is None:
            self.latent |= met
            msg["value"] = self.memory.function_values(msg["name"], prior)

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Set an observation to zeros."""
        f = {}
        for gp, prior in observation.priors.items():
            key = process_key(msg["name"], gp)
            self._meet(key, prior)
            f[gp] = self.memory.function_values(key, prior)
        try:
            given = observation.conditional.given(join(f))
        except _NO_DENSITY:  # values of a function that the likelihood cannot take
            given = None
        if given is not None:
            self.numbers |= self.memory.numbers_of(msg["name"], given)
        first = next(iter(observation.priors.values()))
        msg["value"] = first.mean.new_zeros(observation.batch_shape + observation.event_shape)

    def at_other(self, msg: Message) -> None:
        """Set a latent value near the middle of its distribution."""
        if is_random(msg):
            self.numbers |= self.memory.numbers_of(msg["name"], msg["fn"])
            if msg["value"] is None:
                middle = _middle(msg["fn"])
                self.shapes[msg["name"]] = msg["fn"].shape()
                is_moved = middle is not None and self.memory.spread > 0 and _is_any_real(msg["fn"])
                msg["value"] = self._moved(middle, msg) if middle is not None and is_moved else middle

    def _moved(self, middle: Tensor, msg: Message) -> Tensor:
        """Return real values moved from their mean: one of rows by what the number of the row decides, since at equal values no row tells that it looks at others.

        A value that all rows share may be the coefficient of a number of rows, and such a number would be lost at a mean of zero.
        """
        if msg["name"] not in self.axes:
            places = torch.arange(1, middle.numel() + 1).to(middle).reshape(middle.shape)
            return middle + self.memory.spread * _width(msg["fn"]) * (1.0 + 0.5 * (1.7 * places).sin())
        shape = [1] * middle.dim()
        shape[self.axes[msg["name"]]] = len(self.rows)
        return middle + self.memory.spread * (1.7 * self.rows.to(middle) + 0.4).sin().reshape(shape)

    def _meet(self, key: str, prior: FunctionPrior) -> set[_Number]:
        met = {_Number(OtherRows("inputs", key)): prior.x, _Number(OtherRows("mean", key)): prior.mean}
        self.numbers |= met
        return set(met)


def _is_any_real(fn: Any) -> bool:
    """Tell whether a value of a distribution may be any real number."""
    support: Any = fn.support
    return getattr(support, "base_constraint", support) is constraints.real


def _width(fn: Any) -> Tensor | float:
    """Return the standard deviation of a distribution, or 1 where it has none or is wider: a link of a large value, such as its exponential, is nothing or too much."""
    try:
        width: Tensor = fn.stddev
        return width.where(width < 1, 1.0)
    except _NO_DENSITY:
        return 1.0


def _middle(fn: Any) -> Tensor | None:
    """Return the mean of a distribution, or another value without chance; ``None`` where there is none to find."""
    try:
        if fn.support.is_discrete:
            return None
        value: Tensor = fn.mean
        if not bool(value.isfinite().all()):
            value = transform_to(fn.support)(torch.zeros_like(fn.sample()))
        return value if value.shape == fn.shape() else None
    except _NO_DENSITY:
        return None


class _Runs:
    """Runs of a model on some rows, on the first half of them, and on all of them in another order.

    :param rows: arguments of the model.
    :param is_single: whether a part of the model computes in single precision.
    :param spread: see :class:`_Memory`.
    """

    def __init__(self, model: Callable[..., Any], rows: RowArguments, *, is_single: bool, spread: float) -> None:
        self.model, self.rows, self.is_single, self.memory = model, rows, is_single, _Memory(spread)
        self.count = min(len(rows), _ROWS)
        self.index = torch.linspace(0, len(rows) - 1, self.count, dtype=torch.float64).round().long().to(rows.x.device)
        row = torch.arange(self.count, device=rows.x.device)
        self.order = torch.cat([row[1::2], row[::2].flip(0)])
        self.axes: dict[str, int] = {}
        self.whole, self.half = self._on(self.index), self._on(self.index[: self.count // 2])
        self.axes = self._axes_of_rows() if spread else {}
        if self.axes:
            self.memory = _Memory(spread)  # scales at other latent values
            self.whole, self.half = self._on(self.index), self._on(self.index[: self.count // 2])
        try:
            self.ordered = self._on(self.index[self.order])
        except Exception:  # whatever a model raises that cannot be run in another order
            self.ordered = _Met(self.memory, self.index[self.order], self.axes)

    def _on(self, index: Tensor) -> _Met:
        args, kwargs = self.rows[index]
        with _Met(self.memory, index, self.axes) as met:
            self.model(*args, **kwargs)
        return met

    def _axes_of_rows(self) -> dict[str, int]:
        """Return the axis of latent sites that is half as long on half of the rows, by name, where it is the only one that changes."""
        found = dict[str, int]()
        for name, shape in self.whole.shapes.items():
            half = self.half.shapes.get(name, Size())
            changed = [axis for axis, size in enumerate(shape) if len(half) == len(shape) and half[axis] != size]
            if [(shape[axis], half[axis]) for axis in changed] == [(self.count, self.count // 2)]:
                found[name] = changed[0]
        return found

    def differing(self) -> Iterator[OtherRows]:
        """Iterate over what changes at a row with the other rows, or with their order, and is not random."""
        for number, whole in self.whole.numbers.items():
            rounding = self._rounding(number, whole)
            changed = [part for part, same in self._parts(number, whole) if not _are_same(same, part, rounding)]
            if number in self.whole.latent:
                changed = [part for part in changed if not _is_in_other_order(part, whole, rounding)]
            if changed and all(_are_same(one, other, rounding) for one, other in self._repeated(number)):
                yield number.seen

    def leaves_to_others(self, seen: OtherRows) -> bool:
        """Tell whether numbers join rows of function values; at values of zero it is the parameters of sites that may."""
        if not self.memory.spread:
            return seen.part == "parameters"
        return site_joins_rows(self.model, self.rows[self.index[:LOOKED_AT]], seen.name)

    def _repeated(self, number: _Number) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Iterate over numbers of each run, with those of one more run on the same rows in the same order."""
        for first, again in self._again:
            if number in first.numbers:
                yield first.numbers[number], again.numbers.get(number)

    @cached_property
    def _again(self) -> list[tuple[_Met, _Met]]:
        """Each run with one more, several times."""
        pairs = [(self.whole, self.index), (self.half, self.index[: self.count // 2])]
        if self.ordered.numbers:
            pairs.append((self.ordered, self.index[self.order]))
        return [(first, self._on(index)) for _ in range(_REPEATED) for first, index in pairs]

    def _rounding(self, number: _Number, values: Tensor) -> float:
        """Return how far numbers are rounded, as a share of the largest."""
        is_double = values.dtype == torch.float64 and not self.is_single
        rounding = _ROUNDING if is_double else _ROUNDING_OF_FLOAT32
        return rounding * (_STEEPER if number.which == _LOG_DENSITY else 1)

    def _parts(self, number: _Number, whole: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over numbers of other runs, and what they are if no row looks at others; there is nothing where no axis holds the rows."""
        half, ordered = self.half.numbers.get(number), self.ordered.numbers.get(number)
        if half is None or half.dim() != whole.dim():
            return
        changed = [axis for axis, size in enumerate(whole.shape) if size != half.shape[axis]]
        if number.seen.part == "parameters":
            if len(changed) != 1:
                return
            axis = changed[0]
        else:
            axis = whole.dim() - 2
        if (whole.shape[axis], half.shape[axis]) != (self.count, self.count // 2):
            return
        yield half, whole.narrow(axis, 0, self.count // 2)
        if ordered is not None:
            yield ordered, whole.index_select(axis, self.order)


def _are_same(one: Tensor, other: Tensor | None, rounding: float) -> bool:
    """Tell whether numbers are the same up to rounding; those that are NaN differ from others."""
    if other is None or one.shape != other.shape:
        return False
    one, other = one.double(), other.double()
    return not one.numel() or bool((one - other).abs().max() <= rounding * one.abs().max())


def _is_in_other_order(part: Tensor, whole: Tensor, rounding: float) -> bool:
    """Tell whether each row of a matrix is one of those of all rows, as where ``torch.unique`` sorts them."""
    if part.shape[:-2] != whole.shape[:-2] or part.shape[-1] != whole.shape[-1]:
        return False
    nearest = torch.cdist(part, whole, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)
    return _are_same(part, whole.gather(-2, nearest.unsqueeze(-1).expand_as(part)), rounding)


@torch.no_grad()
def sees_other_rows(model: Callable[..., Any], call: Call, modules: Iterable[nn.Module]) -> OtherRows | None:
    """Return what of a model changes at a row with the other rows of a call; ``None`` if there is nothing.

    The model is run on some rows, on the first half of them, and on all of them in another order, in evaluation mode, with function values that the
    inputs at each row decide. Inputs and means of Gaussian processes, and parameters of sites, are compared. Numbers that are random, by noise of the
    model's own, differ between two runs on the same rows, and are not looked at. Nor are those that join rows of function values, as in ``f.cumsum(-1)``:
    such values are drawn jointly elsewhere. Nothing is found in a model that cannot be run on fewer rows.

    :param call: arguments of the model, among them a tensor ``(..., N, D)``.
    :param modules: those of the model.
    """
    (args, kwargs), modules = call, list(modules)
    inputs = next(iter(inputs_among(args, kwargs)), None)
    if inputs is None:
        return None
    rows = RowArguments(args, kwargs, x=inputs)
    if len(rows) < 2:
        return None
    with torch.random.fork_rng(), evaluating(*modules):
        is_single = any(
            each.is_floating_point() and each.dtype != torch.float64 for root in modules for each in root.parameters()
        )
        for spread in (_SPREAD, 0.0):
            try:
                runs = _Runs(model, rows, is_single=is_single, spread=spread)
                seen = list(runs.differing())
                apart = next((each for each in seen if not runs.leaves_to_others(each)), None)
            except Exception:  # of a model that cannot be run on fewer rows: other passes say what is wrong
                continue
            if apart is not None or not seen:
                return apart
    return None


def warn_of_other_rows(model: Callable[..., Any], call: Call, modules: Iterable[nn.Module]) -> None:
    """Warn of numbers of a model that change at a row with the other rows of a call."""
    seen = sees_other_rows(model, call, modules)
    if seen is not None:
        warn_user(f"{other_rows_message(seen)}, pass all of them in every call")


def other_rows_message(seen: OtherRows) -> str:
    """Say that numbers of a model are computed from several rows."""
    if seen.part == "inputs":
        return (
            f"the inputs of the Gaussian process {seen.name!r} at a row depend on the other rows of the call, as in x - x.mean(0), so that they are others in a batch or at new rows: "
            "compute such numbers once from the training rows, as buffers of the model or by Standardizer.fit(x, y). If rows belong together, as nodes of a graph do"
        )
    what = "mean of the Gaussian process" if seen.part == "mean" else "parameters of the site"
    verb, they = ("depends", "it is another") if seen.part == "mean" else ("depend", "they are others")
    return (
        f"the {what} {seen.name!r} at a row {verb} on the other rows of the call, as in x - x.mean(0), exposure / exposure.mean(), len(x) or a sort, so that {they} in a batch or at new "
        "rows: compute such numbers once from the training rows, before the model, and give them to it as an attribute or an argument. If rows belong together, as nodes of a graph do"
    )
