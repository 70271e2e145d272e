"""Prediction at new inputs from draws at the training inputs: each GP conditioned on its sampled values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.row_dependence import row_dependence
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.internal.parameters import constant_parameters, evaluating, module_local_parameters, modules_of
from pyro_dgp.internal.site_names import function_site, inducing_site, is_inducing, process_key, whitened_site
from pyro_dgp.likelihoods import CollapsedObservation, Observation
from pyro_dgp.mcmc.sparse import Inputs, at_inducing_inputs, sparse_values
from pyro_dgp.mcmc.whitening import WhitenedModel, without_whitening
from pyro_dgp.prediction.mixture import Mixture, stack_mixtures
from pyro_dgp.prediction.request import Answer, Request, answer
from pyro_dgp.prediction.site_components import (
    SiteLayout,
    components_at,
    one_name,
    probed_layout,
    require_reparameterised,
    sites_of,
)
from pyro_dgp.prediction.thinning import equally_spaced
from pyro_dgp.processes import ConditionedProcess, FunctionMarginal

#: Values by site.
Draw = Mapping[str, Tensor]


class _Condition(SiteHandler, Messenger):
    """Runs the model at the training inputs with the values of one draw, and keeps a conditioned process for each GP."""

    def __init__(self, draw: Draw, inducing: Inputs) -> None:
        super().__init__()
        self.draw, self.inducing = draw, inducing
        self.processes: dict[str, ConditionedProcess] = {}

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Condition each GP on its inducing variables, its values, or the targets: the first of these that there are."""
        noise, y = observation.conditional.noise_variance(), msg["value"]
        for gp, prior in observation.priors.items():
            key, site = process_key(msg["name"], gp), function_site(msg["name"], gp)
            if key in self.inducing:
                self.processes[key] = self._sparse(site, prior, self.inducing[key])
            elif site in self.draw or whitened_site(site) in self.draw:
                self.processes[key] = ConditionedProcess(prior, self._function_values(site, prior), None)
            elif noise is not None and y is not None:
                values = y.unsqueeze(-1) if observation.outputs == 1 else y
                self.processes[key] = ConditionedProcess(prior, values, noise)
            else:
                raise ValueError(
                    f"prediction needs draws of {whitened_site(site)!r}, from MCMC on whitened(model), or, under Gaussian noise, y_train"
                )

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Condition the GP on its inducing variables or its values, and set the values."""
        name = msg["name"]
        if name in self.inducing:
            self.processes[name] = self._sparse(name, prior, self.inducing[name])
            white, rest = self.draw[inducing_site(name)], self.draw[whitened_site(name)]
            msg["value"] = sparse_values(prior, self.inducing[name], white, rest)
            return
        if not msg["is_observed"]:
            msg["value"] = self._function_values(name, prior)
        self.processes[name] = ConditionedProcess(prior, msg["value"], None)

    def at_other(self, msg: Message) -> None:
        """Set a latent value."""
        name, fn = msg["name"], msg["fn"]
        if name in self.draw:
            msg["value"] = _shaped(name, self.draw[name], fn.batch_shape + fn.event_shape)
        elif not msg["is_observed"]:
            raise ValueError(f"the draws hold no value for the latent site {name!r}: they have {list(self.draw)}")

    def _sparse(self, name: str, prior: FunctionPrior, inputs: Tensor) -> ConditionedProcess:
        """The GP of the function site ``name``, conditioned on its inducing variables."""
        site = inducing_site(name)
        if site not in self.draw:
            raise ValueError(f"the draws do not hold {site!r}, the inducing variables: they have {list(self.draw)}")
        known = at_inducing_inputs(prior, inputs)
        return ConditionedProcess(known, known.unwhiten(self.draw[site]), None)

    def _function_values(self, name: str, prior: FunctionPrior) -> Tensor:
        """The values of the function site ``name`` in the draw, plain or whitened."""
        for site in (name, whitened_site(name)):
            if site in self.draw:
                values = _shaped(site, self.draw[site], prior.batch_shape + prior.event_shape)
                return values if site == name else prior.unwhiten(values)
        raise ValueError(
            f"the draws hold neither {name!r} nor {whitened_site(name)!r}, the values of that GP: they have {list(self.draw)}"
        )


class _Predict(SiteHandler, TraceMessenger):
    """Runs the model at test inputs, GPs by their conditioned processes and other latent sites by the draw, and keeps a trace."""

    def __init__(self, processes: Mapping[str, ConditionedProcess], draw: Draw, local: set[str]) -> None:
        super().__init__()
        self.processes, self.draw, self.local = processes, draw, local

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Integrate the conditioned processes out."""
        name = msg["name"]
        marginals = {gp: self.processes[process_key(name, gp)](prior) for gp, prior in observation.priors.items()}
        msg["fn"] = observation.collapse(marginals)

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Draw from the conditioned process."""
        msg["fn"] = self.processes[msg["name"]](prior)

    def at_other(self, msg: Message) -> None:
        """Set a latent value that all rows share; new rows have latent values of their own, from the prior."""
        name, fn = msg["name"], msg["fn"]
        if self.holds(name):
            msg["value"] = self.draw[name].reshape(fn.batch_shape + fn.event_shape)

    def holds(self, name: str) -> bool:
        """Tell whether the draw holds the value of a site at all rows."""
        return name in self.draw and name not in self.local


@dataclass(frozen=True)
class PosteriorDraws:
    """Draws of the posterior of a model, with what they belong to: what :func:`~pyro_dgp.predict` needs.

    For each draw, each GP is conditioned on its sampled values at the training inputs, and the last one, under Gaussian
    noise, on the targets in closed form. A prediction has one mixture component for each draw.

    :ivar model: the model itself, or ``whitened(model)``, which it has to be if that has inducing inputs.
    :ivar draws: ``mcmc.get_samples()`` or ``chains.flat``: by site ``(K, ...)``. Empty for a model without latent sites: exact
        regression.
    :ivar args: arguments that the model was sampled with, ``(x, y)`` or more; the first are the training inputs ``(N, D)``.
    :ivar kwargs: arguments by name.

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

    def __post_init__(self) -> None:
        if not isinstance(self.args, tuple) or not self.args or not isinstance(self.args[0], Tensor):
            raise TypeError(
                "the arguments that the model was sampled with are a tuple that begins with x, such as (x, y)"
            )
        if self.args[0].dim() != 2:
            raise ValueError(
                f"training inputs have shape (N, D), got {tuple(self.args[0].shape)}: use x[:, None] for one input"
            )
        if len({len(values) for values in self.draws.values()}) > 1:
            sizes = {name: len(values) for name, values in self.draws.items()}
            raise ValueError(f"there are as many draws of each site, one behind another, got {sizes}: take chains.flat")


@answer.register
def answer_from_draws(posterior: PosteriorDraws, request: Request) -> Answer:
    """Return the answer of posterior draws."""
    model, scope = without_whitening(posterior.model), modules_of(without_whitening(posterior.model))
    chosen = _chosen(posterior, request)
    inducing = _inducing_inputs_of(posterior.model, posterior.draws)
    conditioned = []
    with torch.no_grad(), module_local_parameters(*scope), evaluating(*scope):
        local = row_dependence(model, posterior.args, dict(posterior.kwargs)).sites
        for draw in chosen:
            with _Condition(draw, inducing) as condition:
                model(*posterior.args, **posterior.kwargs)
            conditioned.append(condition.processes)

    def run(rows: slice | Tensor, number: int) -> _Predict:
        args, kwargs = request.rows[rows]
        handler = _Predict(conditioned[number], chosen[number], local)
        with module_local_parameters(*scope), evaluating(*scope), constant_parameters(*scope), handler as done:
            model(*args, **kwargs)
        return done

    def components(done: _Predict) -> Any:
        return components_at(sites_of(done.trace)[name], drawn=done.holds(name))

    with torch.no_grad():
        first = run(slice(0, 1), 0)
        name = _name(first, request)
        layout = _layout(first, name) or probed_layout(name, len(request.x), lambda rows, _: components(run(rows, 0)))
        if request.wants_gradients:
            require_reparameterised(
                site for site in first.trace.nodes.values() if site["name"] in first.draw.keys() & local
            )

    def evaluate(rows: slice) -> Mixture:
        zero, count = request.x.new_zeros(1), len(request.x[rows])
        parts = []
        for number in range(len(chosen)):
            done = run(rows, number)
            fn = sites_of(done.trace)[name]["fn"]
            collapsed = fn if isinstance(fn, CollapsedObservation) else None
            parts.append(layout.mixture(components(done), zero, rows=count, observation=collapsed))
        return stack_mixtures(parts)

    return Answer(evaluate, layout.event_shape)


def _chosen(posterior: PosteriorDraws, request: Request) -> list[Draw]:
    """Return the draws that the prediction is made from; raise for a request that draws cannot answer."""
    if request.num_hyperparameter_draws is not None:
        raise ValueError(
            "num_hyperparameter_draws is for guides: posterior draws hold the hyperparameters, so set num_samples"
        )
    x = posterior.args[0]
    if x.shape[1] != request.x.shape[1]:
        raise ValueError(
            f"training and test inputs have shapes {tuple(x.shape)} and {tuple(request.x.shape)}: both are (N, D)"
        )
    draws = posterior.draws
    total = len(next(iter(draws.values()))) if draws else 1
    return [{name: values[i] for name, values in draws.items()} for i in equally_spaced(total, request.num_samples)]


def _name(first: _Predict, request: Request) -> str:
    """Return the name of the site to predict."""
    sites = sites_of(first.trace)
    observed = [
        name
        for name, site in sites.items()
        if isinstance(site["fn"], CollapsedObservation)
        or not (name in first.draw or site["is_observed"] or isinstance(site["fn"], FunctionMarginal))
    ]
    return one_name(sites, request.site, observed)


def _layout(first: _Predict, name: str) -> SiteLayout | None:
    """Return the layout of an observation, which is known."""
    fn = sites_of(first.trace)[name]["fn"]
    return SiteLayout(False, True, fn.event_shape[1:]) if isinstance(fn, CollapsedObservation) else None


def _inducing_inputs_of(model: Any, draws: Mapping[str, Tensor]) -> Inputs:
    """The inducing inputs of a whitened model; raises if there are none and the draws hold inducing variables."""
    inducing: Inputs = model.inducing if isinstance(model, WhitenedModel) else {}
    sparse = [name for name in draws if is_inducing(name)]
    if sparse and not inducing:
        raise ValueError(
            f"the draws hold {sparse[0]!r}, inducing variables: give the whitened(model, inducing_inputs(...)) that was sampled, not the "
            "model alone"
        )
    return inducing


def _shaped(name: str, value: Tensor, shape: Size) -> Tensor:
    """One draw of a site in the shape that the model has it in at the training inputs."""
    if value.numel() != shape.numel():
        raise ValueError(
            f"one draw of {name!r} has shape {tuple(value.shape)} and the model wants {tuple(shape)} at these training inputs: give the "
            "rows that were sampled with, and draws of several chains one behind another (chains.flat)"
        )
    return value.reshape(shape)
