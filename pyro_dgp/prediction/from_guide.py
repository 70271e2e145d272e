"""Prediction from a trained guide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from pyro.poutine.trace_struct import Trace
from torch import Size, Tensor

from pyro_dgp.guides.guide_pass import WeightedTrace
from pyro_dgp.guides.joint_rows import LOOKED_AT, joined_rows_message, site_joins_rows
from pyro_dgp.guides.sites import is_observation, is_random
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.global_store import require_none_loaded
from pyro_dgp.internal.parameters import constant_parameters, evaluating, module_local_parameters
from pyro_dgp.internal.plates import known_groups
from pyro_dgp.internal.rows import Call, RowArguments, num_rows
from pyro_dgp.internal.site_names import site_of
from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.prediction.drawn_observations import depends_on_draws, require_no_observation_of_draws
from pyro_dgp.prediction.mixture import Mixture, stack_mixtures
from pyro_dgp.prediction.request import Answer, Request, answer
from pyro_dgp.prediction.site_components import (
    Site,
    SiteLayout,
    components_at,
    is_computed,
    one_name,
    probed_layout,
    require_follows_rows,
    require_reparameterised,
    require_rows_apart,
    sites_of,
    warn_of_prior,
)
from pyro_dgp.prediction.without_targets import without_targets
from pyro_dgp.propagation import MonteCarlo

State = Mapping[str, Tensor]


@answer.register
def answer_from_guide(guide: Variational, request: Request, states: Sequence[State] = ()) -> Answer:
    """Return the answer of a guide.

    :param states: values of the guide's parameters, by their names in ``named_parameters()``. Each state has the same share
        of the mixture and of ``num_samples``, and a draw of the latent sites of its own. If not given, the present values of
        the parameters are used.
    """
    _require_known_parameters(guide, states)
    guide.require_initialized()
    request = request.of_groups(guide.groups, whole=guide.structure.whole)
    request.check_arguments(guide.structure.further, guide.structure.whole)
    with torch.no_grad(), _own_parameters(guide):
        first = _first_pass(guide, request)
        _require_whole_plates(guide, first)
        name, unseen = _name(guide, first, request)
        drawn = name in guide.global_latents
        _require_predictable(guide, first, name, request=request)
        is_fed = _is_fed(guide, first, name, request=request, unseen=unseen)
        count = _number_of_draws(guide, first, name, request=request, is_fed=is_fed)
        if states:
            count = len(states) * (max(1, request.num_samples // len(states)) if is_fed else 1)
        draws = _global_draws(guide, request, count)
        layout = _layout(guide, first, name, request=request, fixed=draws[0])
        require_follows_rows(name, layout, asked=request.site)
        is_new = is_computed(sites_of(first.trace)[name])
        if layout.carried and is_new:
            guide.propagation.require_plain_site(name)
        joins = _joins_rows(guide, request, name, is_new=is_new)
    at = [(states[i % len(states)] if states else {}, draws[i]) for i in range(count)]
    propagation = guide.propagation.for_prediction(max(1, request.num_samples // count))

    # A function inside of this one would be shared by copies of the prediction, and would not pickle.
    evaluate = partial(
        _mixture_of_rows,
        guide=guide,
        arguments=request.rows,
        at=at,
        propagation=propagation,
        name=name,
        layout=layout,
        drawn=drawn,
    )
    return Answer(
        evaluate,
        layout.event_shape,
        layout.groups,
        request.rows.tensors,
        joins,
        drawn_by_row=tuple(guide.structure.local),
    )


def _mixture_of_rows(
    rows: slice,
    *,
    guide: Variational,
    arguments: RowArguments,
    at: Sequence[tuple[State, dict[str, Tensor]]],
    propagation: Any,
    name: str,
    layout: SiteLayout,
    drawn: bool,
) -> Mixture:
    """Return the mixture of some rows at a site.

    :param arguments: test inputs and further arguments of all rows.
    :param at: values of parameters, and draws of the global latent sites, of each pass.
    :param drawn: whether the site is a latent one that all rows share.
    """
    parts, call = [], arguments[rows]
    with _own_parameters(guide):
        for state, fixed in at:
            with _values(guide, state):
                weighted = _pass(guide, call, propagation, fixed)
            parts.append(_mixture(weighted, name, layout, drawn=drawn, rows=num_rows(call[0][0])))
    return stack_mixtures(parts)


def _require_known_parameters(guide: Variational, states: Sequence[State]) -> None:
    """Raise for a state with a value of a parameter that the guide does not have."""
    known = dict(guide.named_parameters())
    unknown = [name for state in states for name in state if name not in known]
    if unknown:
        raise ValueError(f"the guide has no parameter {unknown[0]!r}: it has {list(known)}")


def _name(guide: Variational, first: WeightedTrace, request: Request) -> tuple[str, list[str]]:
    """Return the name of the site to predict, and the observations that the model does not make by itself."""
    sites = sites_of(first.trace)
    responses = [name for name, site in sites.items() if _is_response(guide, site)]
    unseen = [name for name in responses if not sites[name]["is_observed"]]
    return one_name(sites, request.site, unseen or responses), unseen


def _require_predictable(guide: Variational, first: WeightedTrace, name: str, *, request: Request) -> None:
    """Raise for a site that cannot be predicted as the model is written; warn of one that new rows draw from the prior."""
    site = sites_of(first.trace)[name]
    if name in guide.structure.local and first.record(site).prior is site["fn"]:
        warn_of_prior(name, f"guide(x, y)[{name!r}], drawn by each call")
    if request.wants_gradients:
        _require_differentiable(guide, first, name)
    _require_no_observation_of_draws(guide, first, name, request=request)


def _joins_rows(guide: Variational, request: Request, name: str, *, is_new: bool) -> bool:
    """Tell whether a site joins rows of function values; raise where the guide draws these row by row.

    :param is_new: whether the site is a computed one, which the guide did not look at when it was initialised.
    """
    if not (guide.structure.joins_rows or is_new):
        return False
    with known_groups(guide.structure.group_plates):
        joins = site_joins_rows(guide.model, request.rows[slice(0, LOOKED_AT)], name)
    if joins and not guide.structure.joins_rows:
        raise ValueError(joined_rows_message(name))
    return joins


def _require_whole_plates(guide: Variational, weighted: WeightedTrace) -> None:
    """Raise for a plate that takes some of the groups at random, of which a prediction would be made."""
    for site in weighted.trace.nodes.values():
        for frame in site.get("cond_indep_stack", ()):
            if frame.name in guide.structure.group_plates and frame.full_size not in (None, frame.size):
                raise ValueError(
                    f"the plate {frame.name!r} takes {frame.size} of its {frame.full_size} groups, and a prediction is one of all: let it take "
                    f"all outside training, as in subsample_size={frame.size} if self.training else {frame.full_size}"
                )


def _first_pass(guide: Variational, request: Request) -> WeightedTrace:
    """Make a pass at the first row; an error about its shape names that of all test inputs."""
    try:
        with without_targets():
            return _pass(guide, request.rows[slice(0, 1)], MonteCarlo(1), {})
    except ZeroDivisionError as error:
        raise ValueError(
            "at one new row the model divides by zero, as where a plate takes no row of one: let it take all rows outside training, as in subsample_size=n if self.training else "
            "len(x)"
        ) from error
    except ValueError as error:
        of_all, of_first = (
            str(tuple(shape)) for shape in (request.x.shape, (*request.x.shape[:-2], 1, request.x.shape[-1]))
        )
        if of_first not in str(error):
            raise
        raise ValueError(str(error).replace(of_first, of_all)) from error


def _pass(
    guide: Variational, call: Call, propagation: Any, fixed: Mapping[str, Tensor], *, wanted: Sequence[str] = ()
) -> WeightedTrace:
    """Make one pass with components at new rows, which ends after the wanted sites if there are any."""
    args, kwargs = call
    return guide.components(*args, new_rows=True, propagation=propagation, fixed=fixed, wanted=wanted, **kwargs)


def _mixture(weighted: WeightedTrace, name: str, layout: SiteLayout, *, drawn: bool, rows: int) -> Mixture:
    """Return the mixture of the components at a site."""
    site, observation, count = sites_of(weighted.trace)[name], None, len(weighted.log_weights)
    if isinstance(site["fn"], CollapsedObservation):
        observation = site["fn"]
        if layout.carried:
            observation = _first_components(observation, name, count)
        site = {**site, "fn": observation}
    components = components_at(site, drawn=drawn)
    if observation is not None and layout.carried and components.batch_shape[0] != count:
        raise ValueError(_unequal_components_message(name, components.batch_shape[0], count))
    return layout.mixture(components, weighted.log_weights, rows=rows, observation=observation)


def _first_components(observation: CollapsedObservation, name: str, count: int) -> CollapsedObservation:
    """Return an observation without the components that have no weight; raise where parameters of its likelihood lead with these components too."""
    found = observation.first_components(count)
    if found is observation:
        return found
    given = observation.conditional.given(observation.moments.mean[:1])
    if len(given.batch_shape) and given.batch_shape[0] not in (1, count):
        raise ValueError(_unequal_components_message(name, given.batch_shape[0], count))
    return found


def _unequal_components_message(name: str, values: int, count: int) -> str:
    return (
        f"the likelihood of {name!r} has a parameter that depends on a hidden layer, and the propagation carries it as {values} "
        f"values beside {count} of the function: set guide.propagation = MonteCarlo(100)"
    )


def _layout(
    guide: Variational, first: WeightedTrace, name: str, *, request: Request, fixed: Mapping[str, Tensor]
) -> SiteLayout:
    """Return the layout of a site. That of an observation of the rows is known; others are looked at in two small passes."""
    structure, site = guide.structure, sites_of(first.trace)[name]
    if _is_response(guide, site) and name not in structure.without_rows:
        carried, known = first.record(site).carried, components_at(site)
        shape, groups = (known.batch_shape + known.event_shape)[int(carried) :], guide.groups
        if shape[: len(groups) + 1] != (*groups, 1):  # one observation of all groups together
            groups = Size()
        if 1 in shape[len(groups) + 1 :] and shape[len(groups)] != 1:
            raise ValueError(
                f"the site {name!r} has shape {tuple(shape)} at one row, where predictions need the rows in front, or behind the groups: observe several values of a row "
                "as its outputs, (N, D_out), or write replicates as rows of their own"
            )
        require_rows_apart(name, known, int(carried) + len(groups))
        return SiteLayout(carried, True, shape[len(groups) + 1 :], groups)
    drawn = name in guide.global_latents

    def components(rows: Tensor, count: int) -> Any:
        probe = _pass(guide, request.rows[rows], MonteCarlo(count), fixed)
        return components_at(sites_of(probe.trace)[name], drawn=drawn)

    return probed_layout(name, len(request.rows), components, guide.groups)


def _is_fed(guide: Variational, first: WeightedTrace, name: str, *, request: Request, unseen: Sequence[str]) -> bool:
    """Tell whether a site depends on an observation that a pass draws once for all of its components."""
    nodes = list(first.trace.nodes)
    draws_at_random = guide.propagation.for_prediction(request.num_samples) is not guide.propagation
    before = [other for other in unseen if site_of(name) in nodes[nodes.index(other) + 1 :]]
    shared = [
        other for other in before if not (draws_at_random and first.record(first.trace.nodes[other]).carried)
    ]  # each component of a carried one has a draw of its own

    def run(rows: Tensor) -> Trace:
        return _pass(guide, request.rows[rows], MonteCarlo(1), {}).trace

    return depends_on_draws(run, len(request.rows), name, others=shared, drawn=name in guide.global_latents)


def _require_no_observation_of_draws(guide: Variational, first: WeightedTrace, name: str, *, request: Request) -> None:
    """Raise where the new rows bring an observation of what is drawn at them; a network looks at it."""
    nodes = {key: node for key, node in first.trace.nodes.items() if is_random(node)}
    if not any(node["is_observed"] for node in nodes.values()):
        return
    known = {*guide.global_latents, *guide.networks._modules}
    drawn = [key for key, node in nodes.items() if not node["is_observed"] and key not in known]

    def run(rows: Tensor) -> Trace:
        return _pass(guide, request.rows[rows], MonteCarlo(1), {}).trace

    require_no_observation_of_draws(run, len(request.rows), name, drawn=drawn)


def _number_of_draws(guide: Variational, first: WeightedTrace, name: str, *, request: Request, is_fed: bool) -> int:
    """Return R, see :func:`~pyro_dgp.predict`."""
    has_own = bool(guide.structure.local) or is_fed
    if not (has_own or guide.global_latents):
        return 1
    if request.num_hyperparameter_draws is not None:
        return request.num_hyperparameter_draws
    by_values = name in guide.global_latents or is_computed(sites_of(first.trace)[name])
    return request.num_samples if has_own or by_values else 20


def _require_differentiable(guide: Variational, first: WeightedTrace, name: str) -> None:
    """Raise where gradients in the inputs would leave out a path from the inputs to the prediction."""
    shared, nodes = guide.global_latents, first.trace.nodes
    for other in shared:
        if guide.networks._modules.get(other) is not None:
            raise ValueError(
                f"the network of {other!r} looks at all test rows, and its draws serve every batch: a prediction has no gradients in "
                "the inputs here, so give predict inputs without, x.detach()"
            )
    require_reparameterised(
        site
        for other, site in nodes.items()
        if is_random(site) and other not in (name, *shared) and not _is_response(guide, site)
    )


def _is_response(guide: Variational, site: Site) -> bool:
    return is_random(site) and (is_observation(site) or site["name"] in guide.structure.responses)


@contextmanager
def _own_parameters(guide: Variational) -> Iterator[None]:
    """Set guide and model to evaluation for a while, with their own parameters, whatever the caller's settings."""
    modules: tuple[torch.nn.Module, ...] = (guide, *guide.model_modules)
    require_none_loaded(*modules)
    with module_local_parameters(*modules), evaluating(*modules), constant_parameters(*modules):
        yield


@contextmanager
def _values(guide: Variational, state: State) -> Iterator[None]:
    """Put other parameters in the place of some for a while; the guide's own keep their values, and graphs keep the others."""
    places = {name: (guide.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in state}
    own = {name: module._parameters[leaf] for name, (module, leaf) in places.items()}
    for name, (module, leaf) in places.items():
        module._parameters[leaf] = torch.nn.Parameter(state[name].to(own[name]), requires_grad=False)
    try:
        yield
    finally:
        for name, (module, leaf) in places.items():
            module._parameters[leaf] = own[name]


def _global_draws(guide: Variational, request: Request, count: int) -> list[dict[str, Tensor]]:
    names = guide.global_latents
    if not names:
        return [{}] * count
    # Networks of global sites look at the rows.
    looking = any(name in guide.networks._modules for name in names)
    call, draws = request.rows[slice(None) if looking else slice(0, 1)], []
    for _ in range(count):
        trace = _pass(guide, call, MonteCarlo(1), {}, wanted=names).trace
        draws.append({name: trace.nodes[name]["value"].detach() for name in names})
    return draws
