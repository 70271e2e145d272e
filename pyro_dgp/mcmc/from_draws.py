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
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.likelihoods import CollapsedObservation, Observation
from pyro_dgp.mcmc.conditioning import Draw, condition_on
from pyro_dgp.mcmc.whitening import without_whitening
from pyro_dgp.prediction.mixture import Mixture, stack_mixtures
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.processes import ConditionedProcess


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
    if x_train.dim() != 2 or x_train.shape[1] != x.shape[1]:
        raise ValueError(
            f"training and test inputs have shapes {tuple(x_train.shape)} and {tuple(x.shape)}: both are (N, D)"
        )
    chosen, conditioned = condition_on(model, draws, x_train, y_train, num_draws=num_draws)
    model = without_whitening(model)
    scope = modules_of(model)
    with torch.no_grad(), module_local_parameters(*scope), evaluating(*scope):
        local = row_dependence(model, (x_train, y_train), {}).sites

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


def _of_elements(fn: Any) -> Any:
    """The distribution of each row of an observation, or of each output of a row where outputs are independent."""
    return fn.components() if isinstance(fn, CollapsedObservation) else elementwise(fn)
