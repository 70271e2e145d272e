"""Gaussian processes conditioned on what a draw of MCMC holds of them, at the training inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.internal.parameters import evaluating, module_local_parameters, modules_of
from pyro_dgp.internal.site_names import function_site, inducing_site, is_inducing, process_key, whitened_site
from pyro_dgp.likelihoods import Observation
from pyro_dgp.mcmc.sparse import Inputs, at_inducing_inputs, sparse_values
from pyro_dgp.mcmc.whitening import WhitenedModel, without_whitening
from pyro_dgp.prediction.thinning import equally_spaced
from pyro_dgp.processes import ConditionedProcess

#: Values by site.
Draw = Mapping[str, Tensor]


def condition_on(
    model: Callable[..., Any],
    draws: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    num_draws: int,
) -> tuple[list[Draw], list[dict[str, ConditionedProcess]]]:
    """Return equally spaced draws, at most ``num_draws``, and for each the conditioned process of every GP, by process key.

    :param model: the model, or ``whitened(model)``, which it has to be if that has inducing inputs.
    :param draws: by site ``(K, ...)``. Empty for a model without latent sites: exact regression, which has one draw.
    :param args: arguments of the model at the training rows, with ``kwargs``.
    :raises ValueError: for draws that do not belong to the training rows, or of inducing variables without their inputs.
    """
    if len({len(values) for values in draws.values()}) > 1:
        sizes = {name: len(values) for name, values in draws.items()}
        raise ValueError(f"there are as many draws of each site, one behind another, got {sizes}: take chains.flat")
    inducing = _inducing_inputs_of(model, draws)
    model = without_whitening(model)
    total = len(next(iter(draws.values()))) if draws else 1
    chosen: list[Draw] = [{name: values[i] for name, values in draws.items()} for i in equally_spaced(total, num_draws)]
    scope = modules_of(model)
    conditioned: list[dict[str, ConditionedProcess]] = []
    with torch.no_grad(), module_local_parameters(*scope), evaluating(*scope):
        for draw in chosen:
            with _Condition(draw, inducing) as condition:
                model(*args, **kwargs)
            conditioned.append(condition.processes)
    return chosen, conditioned


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
