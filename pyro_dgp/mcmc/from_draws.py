"""Prediction at new inputs from draws at the training inputs: each GP conditioned on its sampled values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.hidden_draws import require_no_hidden_draws
from pyro_dgp.guides.joint_rows import LOOKED_AT, joined_rows_message, site_joins_rows
from pyro_dgp.guides.leading_axes import require_leading_axes_of_likelihood
from pyro_dgp.guides.other_rows import warn_of_other_rows
from pyro_dgp.guides.row_dependence import RowDependence, row_dependence
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.sites import gps_of_site, is_random, require_values_of_rows, warn_of_repeated
from pyro_dgp.internal.call_arguments import arguments_by_name
from pyro_dgp.internal.parameters import constant_parameters, evaluating, module_local_parameters, modules_of
from pyro_dgp.internal.plates import known_groups
from pyro_dgp.internal.rows import Call, num_rows
from pyro_dgp.internal.site_names import process_key, site_of
from pyro_dgp.likelihoods import CollapsedObservation, Observation
from pyro_dgp.mcmc.at_training_rows import AsSampled
from pyro_dgp.mcmc.conditioning import Draw, KeptConditions, condition_on, inducing_inputs_of
from pyro_dgp.mcmc.whitening import without_whitening
from pyro_dgp.prediction.drawn_observations import depends_on_draws, require_no_observation_of_draws
from pyro_dgp.prediction.mixture import Mixture, stack_mixtures
from pyro_dgp.prediction.request import Answer, Request, answer
from pyro_dgp.prediction.site_components import (
    SiteLayout,
    components_at,
    one_name,
    probed_layout,
    require_follows_rows,
    require_reparameterised,
    sites_of,
    warn_of_prior,
)
from pyro_dgp.prediction.without_targets import without_targets
from pyro_dgp.processes import FunctionMarginal, Process


class _Predict(SiteHandler, TraceMessenger):
    """Runs the model at test inputs, GPs by their conditioned processes and other latent sites by the draw, and keeps a trace."""

    def __init__(self, processes: Mapping[str, Process], draw: Draw, local: set[str]) -> None:
        super().__init__()
        self.processes, self.draw, self.local = processes, draw, local
        self.priors: dict[str, FunctionPrior] = {}

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Integrate the conditioned processes out."""
        keys = {gp: process_key(msg["name"], gp) for gp in observation.priors}
        self.priors |= {keys[gp]: prior for gp, prior in observation.priors.items()}
        marginals = {gp: self.processes[keys[gp]](prior) for gp, prior in observation.priors.items()}
        msg["fn"] = observation.collapse(marginals)

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Draw from the conditioned process."""
        if msg["is_observed"]:
            require_values_of_rows(msg, prior)
        self.priors[msg["name"]] = prior
        msg["fn"] = self.processes[msg["name"]](prior)

    def at_other(self, msg: Message) -> None:
        """Set a latent value that all rows share; new rows have latent values of their own, from the prior."""
        name, fn = msg["name"], msg["fn"]
        if self.holds(name):
            msg["value"] = self.draw[name].reshape(fn.batch_shape + fn.event_shape)

    def holds(self, name: str) -> bool:
        """Tell whether the draw holds the value of a site at all rows."""
        return name in self.draw and name not in self.local


class _Repeated(Messenger):
    """Collects the Gaussian processes of a model while it runs, and warns once, at the end, of one that is sampled several times."""

    def __init__(self) -> None:
        super().__init__()
        self.met: dict[str, FunctionPrior] = {}
        self.is_over = False

    def _pyro_sample(self, msg: Message) -> None:
        self.met |= gps_of_site(msg["name"], msg["fn"])

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if not self.is_over and error[0] is None:
            self.is_over = True
            warn_of_repeated(self.met.items())
        self.met = {}


@dataclass(frozen=True)
class PosteriorDraws:
    """Draws of the posterior of a model, with what they belong to: what :func:`~pyro_dgp.predict` needs.

    For each draw, each GP is conditioned on its sampled values at the training inputs, and the last one, under Gaussian
    noise, on the targets in closed form. A prediction has one mixture component for each draw, or several for each, ``num_samples`` or more in all, where it
    draws hidden layers, latent values or observations at the new rows. What the draws are conditioned on is factorised once for several predictions, if it has at most 20 million numbers (160 MB).

    :ivar model: the model itself, or ``whitened(model)``, which it has to be if that has inducing inputs.
    :ivar draws: ``mcmc.get_samples()`` or ``chains.flat``: by site ``(K, ...)``. Empty for a model without latent sites: exact
        regression.
    :ivar args: arguments that the model was sampled with, ``(x, y)`` or more; the first are the training inputs ``(N, D)``, or
        ``(B, N, D)`` for a batch of data sets.
    :ivar kwargs: arguments by name.
    :ivar conditions: keeps what the draws are conditioned on from one prediction to the next, for a model that does not change.

    >>> import torch
    >>> from pyro_dgp import DeepGP, PosteriorDraws, predict
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> exact = PosteriorDraws(DeepGP(x, layers=1), {}, (x, y))  # one layer, Gaussian noise: nothing to sample
    >>> predict(exact, torch.linspace(-2, 2, 7)[:, None]).mean.shape
    torch.Size([7])
    """

    model: Callable[..., Any]
    draws: Mapping[str, Tensor]
    args: tuple[Any, ...]
    _: KW_ONLY
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    conditions: KeptConditions | None = field(default=None, repr=False, compare=False)
    _repeated: _Repeated = field(default_factory=_Repeated, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.args, tuple) or not self.args or not isinstance(self.args[0], Tensor):
            raise TypeError(
                "the arguments that the model was sampled with are a tuple that begins with x, such as (x, y)"
            )
        if self.args[0].dim() < 2:
            raise ValueError(
                f"training inputs have shape (..., N, D), got {tuple(self.args[0].shape)}: use x[:, None] for one input"
            )
        if len({len(values) for values in self.draws.values()}) > 1:
            sizes = {name: len(values) for name, values in self.draws.items()}
            raise ValueError(f"there are as many draws of each site, one behind another, got {sizes}: take chains.flat")


@dataclass(frozen=True)
class _Passes:
    """Passes of a model at new rows, each with the values of one draw.

    :ivar modules: modules of the model, whose parameters its passes read.
    :ivar processes: by draw, each GP conditioned on its values at the training inputs.
    """

    model: Callable[..., Any]
    modules: list[nn.Module]
    request: Request
    dependence: RowDependence
    draws: Sequence[Draw]
    processes: Sequence[Mapping[str, Process]]

    def at(self, rows: slice | Tensor, number: int = 0) -> _Predict:
        """Run the model at rows of the request by a draw."""
        args, kwargs = self.request.rows[rows]
        handler = _Predict(self.processes[number], self.draws[number], self.dependence.sites)
        with self.as_trained(), constant_parameters(*self.modules), handler as done:
            self.model(*args, **kwargs)
        return done

    def trace(self, rows: slice | Tensor) -> Trace:
        """Return the trace of a pass by the first draw."""
        return self.at(rows).trace

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Run the model with parameters of its own, in evaluation mode, and with the groups of the training data."""
        groups = self.dependence.group_plates
        with known_groups(groups), module_local_parameters(*self.modules), evaluating(*self.modules):
            yield


@answer.register
def answer_from_draws(posterior: PosteriorDraws, request: Request) -> Answer:
    """Return the answer of posterior draws."""
    passes = _passes(posterior, request)
    request, draws = passes.request, passes.draws
    with torch.no_grad():
        with without_targets():
            first = passes.at(slice(0, 1))
        name, by_row = _name(first, request), _drawn_by_row(first)
        _require_predictable(passes, first, name, by_row=by_row)
        fewest = _fewest_passes(passes, first, name) if len(draws) < request.num_samples else 1
        layout = _layout(passes, first, name)
        require_follows_rows(name, layout, asked=request.site)
        with passes.as_trained():
            if site_joins_rows(passes.model, request.rows[slice(0, LOOKED_AT)], name):
                raise ValueError(joined_rows_message(name))
    of_draw = -(-fewest // len(draws))  # each draw as often as the others
    return Answer(
        partial(_mixture_of_rows, passes=passes, name=name, layout=layout, of_draw=of_draw),
        layout.event_shape,
        layout.groups,
        request.rows.tensors,
        components_of_draw=of_draw,
        drawn_by_row=[*by_row, *_drawn_afresh(posterior, first)],
        sampled=_sampled(posterior, passes, name, layout),
    )


def _mixture_of_rows(rows: slice, *, passes: _Passes, name: str, layout: SiteLayout, of_draw: int) -> Mixture:
    """Return the mixture of some rows at a site, from so many passes of each draw."""
    request, draws = passes.request, passes.draws
    zero, count = request.x.new_zeros(1), num_rows(request.rows[rows][0][0])
    parts = []
    for number in range(of_draw * len(draws)):
        done = passes.at(rows, number % len(draws))
        fn = sites_of(done.trace)[name]["fn"]
        collapsed = fn if isinstance(fn, CollapsedObservation) else None
        parts.append(layout.mixture(_components(done, name), zero, rows=count, observation=collapsed))
    return stack_mixtures(parts)


def _sampled(posterior: PosteriorDraws, passes: _Passes, name: str, layout: SiteLayout) -> Callable[[], Mixture] | None:
    """Return what gives the mixture over the draws as they are at the training rows, for a prediction at these rows."""
    args, kwargs = passes.request.rows[slice(0, len(passes.request.rows))]
    sampled_with = arguments_by_name(passes.model, posterior.args, posterior.kwargs)
    given = [(args[0], posterior.args[0]), *((value, sampled_with.get(key)) for key, value in kwargs.items())]
    if layout.groups or not all(_are_same(one, other) for one, other in given):
        return None
    return partial(_mixture_of_training_rows, posterior, passes, name, layout)


def _mixture_of_training_rows(posterior: PosteriorDraws, passes: _Passes, name: str, layout: SiteLayout) -> Mixture:
    """Return the mixture of all rows at a site, over the draws as they are at these rows."""
    inducing, rows, parts = inducing_inputs_of(posterior.model, posterior.draws), len(passes.request.rows), []
    for draw in passes.draws:
        handler = AsSampled(draw, inducing, rows)
        with torch.no_grad(), passes.as_trained(), constant_parameters(*passes.modules), handler as done:
            passes.model(*posterior.args, **posterior.kwargs)
        site = sites_of(done.trace)[name]
        collapsed = site["fn"] if isinstance(site["fn"], CollapsedObservation) else None
        components = components_at(site, drawn=name in draw)
        parts.append(layout.mixture(components, passes.request.x.new_zeros(1), rows=rows, observation=collapsed))
    return stack_mixtures(parts)


def _are_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.shape == other.shape and torch.equal(one, other)
    if one is other:
        return True
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):  # arrays, and what holds tensors
        return False


def _drawn_afresh(posterior: PosteriorDraws, first: _Predict) -> list[str]:
    """Return the Gaussian processes of which a prediction draws a part anew even at training rows: beside inducing variables, and white noise."""
    sparse = inducing_inputs_of(posterior.model, posterior.draws)

    def has_white_noise(prior: FunctionPrior) -> bool:
        x = prior.x.unsqueeze(-3)
        apart = prior.covariance.matrix(x, x.clone()).diagonal(dim1=-2, dim2=-1)
        return not torch.allclose(prior.covariance.diagonal(x).expand(apart.shape), apart)

    return [key for key, prior in first.priors.items() if key in sparse or has_white_noise(prior)]


def _passes(posterior: PosteriorDraws, request: Request) -> _Passes:
    """Condition each GP on its values in the draws, and look at which sites of the model follow its rows."""
    model = without_whitening(posterior.model)
    modules = modules_of(model)
    _check(posterior, request)
    conditioned_on = condition_on if posterior.conditions is None else posterior.conditions.of
    repeated = getattr(posterior, "_repeated", None) or _Repeated()  # draws that an older version pickled have none
    is_first = not repeated.is_over
    with repeated if model is posterior.model else nullcontext():  # a whitened model has said it
        chosen, conditioned = conditioned_on(
            posterior.model, posterior.draws, posterior.args, posterior.kwargs, num_draws=request.num_samples
        )
    dependence = _looked_at(model, (posterior.args, dict(posterior.kwargs)), modules, is_first=is_first)
    request = request.of_groups(dependence.groups, whole=dependence.whole)
    request.check_arguments(dependence.further, dependence.whole)
    return _Passes(model, modules, request, dependence, chosen, conditioned)


def _drawn_by_row(first: _Predict) -> list[str]:
    """Return the latent sites of rows that the draws hold; new rows draw them anew."""
    return [
        key
        for key, node in first.trace.nodes.items()
        if is_random(node) and key in first.local and key in first.draw and not _is_function(node)
    ]


def _require_predictable(passes: _Passes, first: _Predict, name: str, *, by_row: Sequence[str]) -> None:
    """Raise for a site that cannot be predicted as the model is written; warn of one that new rows draw from the prior."""
    request, rows = passes.request, passes.request.rows
    if name in by_row:
        warn_of_prior(name, f"chains.draws[{name!r}]")
    nodes = {key: node for key, node in first.trace.nodes.items() if is_random(node)}
    drawn = [key for key, node in nodes.items() if not (node["is_observed"] or first.holds(key))]
    if any(node["is_observed"] for node in nodes.values()):
        require_no_observation_of_draws(passes.trace, len(rows), name, drawn=drawn)
    if request.wants_gradients:
        held = first.draw.keys() & first.local
        require_reparameterised(site for site in first.trace.nodes.values() if site["name"] in held)


def _is_function(site: Mapping[str, Any]) -> bool:
    return isinstance(site["fn"], FunctionMarginal)


def _looked_at(model: Callable[..., Any], call: Call, scope: list[nn.Module], *, is_first: bool) -> RowDependence:
    """Return what of a model follows the rows of the call that it was sampled with; raise, at the first prediction, for hidden draws."""
    args, kwargs = call
    with torch.no_grad(), module_local_parameters(*scope), evaluating(*scope):
        dependence = row_dependence(model, args, dict(kwargs))
        if is_first:
            require_no_hidden_draws(model, call, modules=scope, groups=dependence.group_plates)
        with known_groups(dependence.group_plates):
            warn_of_other_rows(model, call, scope)
    return dependence


def _check(posterior: PosteriorDraws, request: Request) -> None:
    """Raise for a request that draws cannot answer."""
    if request.num_hyperparameter_draws is not None:
        raise ValueError(
            "num_hyperparameter_draws is for guides: posterior draws hold the hyperparameters, so set num_samples"
        )
    x = posterior.args[0]
    if x.shape[-1] != request.x.shape[-1]:
        raise ValueError(
            f"training and test inputs have shapes {tuple(x.shape)} and {tuple(request.x.shape)}: both are (..., N, D)"
        )


def _name(first: _Predict, request: Request) -> str:
    """Return the name of the site to predict; raise for one whose likelihood cannot be integrated as it is written."""
    sites = sites_of(first.trace)
    observed = [
        name
        for name, site in sites.items()
        if isinstance(site["fn"], CollapsedObservation)
        or not (name in first.draw or site["is_observed"] or isinstance(site["fn"], FunctionMarginal))
    ]
    name = one_name(sites, request.site, observed)
    fn = sites[name]["fn"]
    if isinstance(fn, CollapsedObservation):
        require_leading_axes_of_likelihood(name, fn.conditional, fn.moments.mean)
    return name


def _fewest_passes(passes: _Passes, first: _Predict, name: str) -> int:
    """Return ``num_samples`` where a site depends on values that a pass draws once at new rows: hidden layers, latent values of rows, other observations."""
    nodes = first.trace.nodes
    others = [
        other
        for other in takewhile(lambda other: other != site_of(name), nodes)
        if is_random(nodes[other]) and not nodes[other]["is_observed"] and not first.holds(other)
    ]
    rows = len(passes.request.rows)
    is_fed = depends_on_draws(passes.trace, rows, name, others=others, drawn=first.holds(name))
    return passes.request.num_samples if is_fed else 1


def _components(done: _Predict, name: str) -> Any:
    return components_at(sites_of(done.trace)[name], drawn=done.holds(name))


def _layout(passes: _Passes, first: _Predict, name: str) -> SiteLayout:
    """Return the layout of a site. That of an observation is known where it has one row at one row, and two at two."""
    fn, rows = sites_of(first.trace)[name]["fn"], len(passes.request.rows)
    if isinstance(fn, CollapsedObservation) and fn.event_shape[0] == 1:
        of_two = sites_of(passes.trace(torch.arange(2) % rows))[name]["fn"]
        if of_two.event_shape[0] == 2:
            return SiteLayout(False, True, fn.event_shape[1:], fn.batch_shape)
    return probed_layout(name, rows, lambda numbers, _: _components(passes.at(numbers), name), passes.dependence.groups)
