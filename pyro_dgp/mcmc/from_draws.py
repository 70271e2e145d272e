"""Prediction at new inputs from draws at the training inputs: each GP conditioned on its sampled values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.row_dependence import row_dependence
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.internal.distributions import elementwise
from pyro_dgp.internal.parameters import evaluating, module_local_parameters, modules_of
from pyro_dgp.internal.site_names import function_site, inducing_site, is_inducing, process_key, whitened_site
from pyro_dgp.likelihoods import CollapsedObservation, Observation
from pyro_dgp.mcmc.sparse import Inputs, at_inducing_inputs, sparse_values
from pyro_dgp.mcmc.whitening import WhitenedModel, without_whitening
from pyro_dgp.prediction.mixture import Mixture, stack_mixtures
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.thinning import equally_spaced
from pyro_dgp.processes import ConditionedProcess

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


class _Predict(SiteHandler, Messenger):
    """Runs the model at test inputs: GPs by their conditioned processes, other latent sites by the draw."""

    def __init__(self, processes: Mapping[str, ConditionedProcess], draw: Draw, local: set[str]) -> None:
        super().__init__()
        self.processes, self.draw, self.local = processes, draw, local
        self.observations: dict[str, Any] = {}

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Integrate the conditioned processes out."""
        name = msg["name"]
        marginals = {gp: self.processes[process_key(name, gp)](prior) for gp, prior in observation.priors.items()}
        self.observations[name] = msg["fn"] = observation.collapse(marginals)

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Draw from the conditioned process."""
        msg["fn"] = self.processes[msg["name"]](prior)

    def at_other(self, msg: Message) -> None:
        """Set a latent value that all rows share; new rows have latent values of their own, from the prior."""
        name, fn = msg["name"], msg["fn"]
        if name in self.draw:
            if name not in self.local:
                msg["value"] = self.draw[name].reshape(fn.batch_shape + fn.event_shape)
        elif not msg["is_observed"]:
            self.observations[name] = fn


def predict_mcmc(
    model: Callable[..., Any],
    draws: Mapping[str, Tensor],
    x_train: Tensor,
    y_train: Tensor,
    x: Tensor,
    *,
    num_draws: int = 100,
    batch_size: int = 1000,
    site: str | None = None,
) -> Prediction:
    """The predictive distribution at new inputs from MCMC draws: one mixture component for each draw.

    For each draw, each GP is conditioned on its sampled values at the training inputs, and the last one, under Gaussian
    noise, on ``y_train`` in closed form.

    :param model: the model itself, or ``whitened(model)``, which it has to be if that has inducing inputs; called as ``model(x, y)`` and ``model(x)``.
    :param draws: ``mcmc.get_samples()``: by site ``(K, ...)``. Empty for a model without latent sites: exact regression.
    :param num_draws: at most this many draws, equally spaced, are used: as many of each chain if it is a multiple of their number.
    :param site: the observation to predict, if the model has several.
    :raises ValueError: for inputs of other shapes, draws of several chains that are not one behind another, or draws of inducing
        variables without their inputs.
    """
    if x.dim() != 2 or len(x) == 0:
        raise ValueError(f"test inputs have shape (N, D) with N at least 1, got {tuple(x.shape)}")
    _check_shapes(x_train, x, draws)
    inducing = _inducing_inputs_of(model, draws)
    model = without_whitening(model)
    total = len(next(iter(draws.values()))) if draws else 1
    chosen = [{name: values[i] for name, values in draws.items()} for i in equally_spaced(total, num_draws)]
    scope = modules_of(model)
    conditioned = []
    with torch.no_grad(), module_local_parameters(*scope), evaluating(*scope):
        local = row_dependence(model, (x_train, y_train), {}).sites
        for draw in chosen:
            with _Condition(draw, inducing) as condition:
                model(x_train, y_train)
            conditioned.append(condition.processes)

    def observation(rows: slice, number: int) -> Any:
        with (
            module_local_parameters(*scope),
            evaluating(*scope),
            _Predict(conditioned[number], chosen[number], local) as run,
        ):
            model(x[rows])
        if site is None and len(run.observations) != 1:
            raise ValueError(f"the model has observation sites {list(run.observations)}: name one with site=")
        return run.observations[site or next(iter(run.observations))]

    def evaluate(rows: slice) -> Mixture:
        zero = x.new_zeros(1)
        parts = []
        for number in range(len(chosen)):
            fn = observation(rows, number)
            elements = _of_elements(fn)
            collapsed = [fn] if isinstance(fn, CollapsedObservation) else []
            parts.append(Mixture(elements.expand((1, *elements.batch_shape)), zero, collapsed))
        return stack_mixtures(parts)

    with torch.no_grad():
        one = _of_elements(observation(slice(0, 1), 0))
        event_shape = (one.batch_shape + one.event_shape)[1:]
    return Prediction(evaluate, len(x), Size(event_shape), batch_size=batch_size)


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


def _check_shapes(x_train: Tensor, x: Tensor, draws: Mapping[str, Tensor]) -> None:
    """Raise for shapes that do not belong together."""
    if x_train.dim() != 2 or x_train.shape[1] != x.shape[1]:
        raise ValueError(
            f"training and test inputs have shapes {tuple(x_train.shape)} and {tuple(x.shape)}: both are (N, D)"
        )
    if len({len(values) for values in draws.values()}) > 1:
        sizes = {name: len(values) for name, values in draws.items()}
        raise ValueError(f"there are as many draws of each site, one behind another, got {sizes}: take chains.flat")


def _shaped(name: str, value: Tensor, shape: Size) -> Tensor:
    """One draw of a site in the shape that the model has it in at the training inputs."""
    if value.numel() != shape.numel():
        raise ValueError(
            f"one draw of {name!r} has shape {tuple(value.shape)} and the model wants {tuple(shape)} at these training inputs: give the "
            "rows that were sampled with, and draws of several chains one behind another (chains.flat)"
        )
    return value.reshape(shape)


def _of_elements(fn: Any) -> Any:
    """The distribution of each row of an observation, or of each output of a row where outputs are independent."""
    return fn.components() if isinstance(fn, CollapsedObservation) else elementwise(fn)
