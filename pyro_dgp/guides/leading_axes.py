"""Check that a model means the same where its function values have an axis of components in front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import Independent

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.joint_rows import LOOKED_AT, SPREAD
from pyro_dgp.guides.row_dependence import RowDependence
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.internal.parameters import evaluating
from pyro_dgp.internal.plates import known_groups
from pyro_dgp.internal.rows import Call, RowArguments
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.likelihoods import Conditional, Observation
from pyro_dgp.likelihoods.observation import join

#: Errors of a model at random function values, or at stacked ones: what is wrong with it is said where it is trained.
ERRORS = (
    RuntimeError,
    ValueError,
    IndexError,
    AssertionError,
    KeyError,
    TypeError,
    NotImplementedError,
    AttributeError,
)
#: Numbers of components, of which the first is taken that no axis of the model has.
_COUNTS = (2, 3, 5, 7, 11, 13)
#: Relative difference that rounding makes at most, in single precision.
_ROUNDING = 1e-3


class _Met(SiteHandler, Messenger):
    """Handler that runs a model at given function values, drawn where none are given, and keeps what the model makes of them.

    :ivar values: by site, or by process key for GPs inside an observation, the values; those of plain latent sites and subsamples among them.
    :ivar met: what the model makes of them, each with the name of its site: inputs and means of GPs, log densities of elements, deterministic values.
    :ivar drawn: names of those values that are of functions.
    :ivar stamp: a random number that is drawn with the first of them; none where all are given.
    """

    def __init__(self, values: Mapping[str, Tensor], components: int | None = None) -> None:
        super().__init__()
        self.values, self.components = dict(values), components
        self.met: dict[str, tuple[str, Tensor]] = {}
        self.drawn: set[str] = set()
        self.stamp: float | None = None

    def at_subsample(self, msg: Message) -> None:
        """Take the rows or groups that the first run took."""
        msg["value"] = self.values.get(msg["name"], msg["value"])

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set function values where they are not observed."""
        self._meet(msg["name"], msg["name"], prior)
        if not msg["is_observed"]:
            msg["value"] = self._values_of(msg["name"], prior)

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Note p(y | f) at values of the functions inside."""
        f = {}
        for gp, prior in observation.priors.items():
            key = process_key(msg["name"], gp)
            self._meet(key, msg["name"], prior)
            f[gp] = self._values_of(key, prior)
        if msg["value"] is None:
            msg["value"] = next(iter(observation.priors.values())).mean.new_zeros(
                observation.batch_shape + observation.event_shape
            )
        self._note(msg["name"], "likelihood", observation.conditional.given(join(f)), msg["value"])

    def at_other(self, msg: Message) -> None:
        """Set a plain latent site to the value that it had before, once for each component where its distribution has them."""
        if msg["is_observed"] or msg["name"] not in self.values:
            return
        value, shape = self.values[msg["name"]], msg["fn"].shape()
        is_carried = len(shape) > value.dim() and shape[0] == self.components
        msg["value"] = value.expand(shape) if is_carried else value

    def _values_of(self, key: str, prior: FunctionPrior) -> Tensor:
        self.drawn.add(key)
        if key not in self.values:
            self.stamp = float(torch.rand((), dtype=torch.float64)) if self.stamp is None else self.stamp
            self.values[key] = prior.mean + SPREAD * prior.variance.sqrt() * torch.randn_like(prior.mean)
        return self.values[key]

    def _meet(self, key: str, name: str, prior: FunctionPrior) -> None:
        self.met[f"inputs of {key}"] = name, prior.x
        self.met[f"mean of {key}"] = name, prior.mean

    def _note(self, name: str, kind: str, fn: Any, value: Tensor) -> None:
        while isinstance(fn, Independent):
            fn = fn.base_dist
        self.met[f"{kind} of {name}"] = name, fn.log_prob(value)

    def _pyro_post_sample(self, msg: Message) -> None:
        name, fn = msg["name"], msg["fn"]
        if isinstance(fn, FunctionPrior | Observation):
            return
        if site_is_subsample(msg):
            self.values.setdefault(name, msg["value"])
            return
        if msg["infer"].get("_deterministic"):
            self.met[name] = name, msg["value"]
            return
        if not msg["is_observed"]:
            self.values.setdefault(name, msg["value"])
        self._note(name, "density", fn, msg["value"])


@torch.no_grad()
def require_leading_axes(
    model: Callable[..., Any], call: Call, dependence: RowDependence, *, modules: Sequence[nn.Module]
) -> None:
    """Raise for a model that makes other numbers of function values ``(S, N, D)`` than of each of the S values ``(N, D)`` alone.

    Operations that count axes from the front, such as ``softmax(f, 1)`` and ``F.normalize(h)``, act on an output in the model and on the rows in a guide,
    in the same shape. The model is run at random function values on some of its rows, its networks in evaluation mode. One that draws random numbers itself, or that cannot be run there, passes.

    :param modules: what the model runs.
    """
    args, kwargs = call
    if dependence.inputs is not None:
        inputs = args[dependence.inputs] if isinstance(dependence.inputs, int) else kwargs[dependence.inputs]
        call = RowArguments(args, kwargs, x=inputs, groups=dependence.groups)[slice(0, LOOKED_AT)]
    try:
        with torch.random.fork_rng(), known_groups(dependence.group_plates), evaluating(*modules):
            torch.manual_seed(0)
            name = _unlike(model, call)
    except ERRORS:
        return
    if name is not None:
        raise ValueError(_message(name))


@torch.no_grad()
def require_leading_axes_of_likelihood(name: str, conditional: Conditional, f: Tensor) -> None:
    """Raise for a likelihood that is another one at function values with axes in front, as its integrals have them.

    :param name: of the site.
    :param f: function values ``(..., N, F)``.
    """
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            parts = [f + SPREAD * torch.randn_like(f) for _ in range(2)]
            given = [conditional.given(part) for part in parts]
            y = given[0].sample()
            stacked = conditional.given(torch.stack(parts)).log_prob(y)
            is_same = _is_stack(stacked, [each.log_prob(y) for each in given])
    except ERRORS:
        return
    if not is_same:
        raise ValueError(_message(name))


def _message(name: str) -> str:
    return (
        f"at the site {name!r} the model makes other numbers of function values (S, N, D), which have samples or nodes in front, than of values (N, D): "
        "count axes from the end in all that follows a Gaussian process, as in softmax(f, -1), normalize(h, dim=-1) and f[..., 0]"
    )


def _unlike(model: Callable[..., Any], call: Call) -> str | None:
    """Return the name of the first site at which stacked function values make a difference; ``None`` if there is none."""
    first = run_at(model, call, {})
    if not first.drawn:
        return None
    others = {name: value for name, value in first.values.items() if name not in first.drawn}
    if not are_equal(run_at(model, call, first.values).met, first.met):
        return None  # the model is random itself
    sizes = {size for _, tensor in first.met.values() for size in tensor.shape}
    count = next(count for count in _COUNTS if count not in sizes)
    runs = [first, *(run_at(model, call, others) for _ in range(1, count))]
    stacked = {key: torch.stack([run.values[key] for run in runs]) for key in first.drawn}
    met = run_at(model, call, others | stacked, count).met
    for key, (name, _) in first.met.items():
        if key in met and not _is_stack(met[key][1], [run.met[key][1] for run in runs]):
            return name
    return None


def run_at(model: Callable[..., Any], call: Call, values: Mapping[str, Tensor], components: int | None = None) -> _Met:
    """Run a model at values of its sites, drawn where none are given, and return what it makes of them."""
    args, kwargs = call
    with _Met(values, components) as handler:
        model(*args, **kwargs)
    return handler


def are_equal(one: Mapping[str, tuple[str, Tensor]], other: Mapping[str, tuple[str, Tensor]]) -> bool:
    """Tell whether two runs met the same, up to rounding."""
    return one.keys() == other.keys() and all(_is_stack(one[key][1], [other[key][1]]) for key in one)


def _is_stack(values: Tensor, parts: Sequence[Tensor]) -> bool:
    """Tell whether values are those of the parts, one behind the other, up to rounding; values that are the same for all parts may lack the first axis."""
    wanted = torch.stack(list(parts))
    try:
        values = values.to(wanted).expand_as(wanted)
    except RuntimeError:
        return False
    finite = wanted[wanted.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(values, wanted, rtol=_ROUNDING, atol=_ROUNDING * scale + 1e-12, equal_nan=True)
