"""Prediction from a trained guide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Size, Tensor

from pyro_dgp.guides.guide_pass import WeightedTrace
from pyro_dgp.guides.sites import is_observation, is_random
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.distributions import elementwise
from pyro_dgp.internal.parameters import evaluating, module_local_parameters
from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.prediction.joining import counted_components
from pyro_dgp.prediction.mixture import Mixture, stack_mixtures
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.propagation import MonteCarlo


def predict(
    guide: Variational,
    x: Tensor,
    num_samples: int = 100,
    *,
    num_hyperparameter_draws: int | None = None,
    batch_size: int = 1000,
    site: str | None = None,
    states: Sequence[Mapping[str, Tensor]] = (),
    **kwargs: Any,
) -> Prediction:
    """Return the predictive distribution at new inputs.

    :param guide: a trained guide; its model is called as ``model(x, **kwargs)``, with no ``y``.
    :param x: test inputs ``(N, D)``.
    :param num_samples: number of mixture components in all under Monte Carlo propagation. It exceeds that of training,
        since few components bias the NLL upwards. Sigma points predict by their own components.
    :param num_hyperparameter_draws: R, the number of draws of the latent sites besides GPs, if the model has such sites.
        Under Monte Carlo each draw gets ``num_samples / R`` components. The same draws of global sites serve every batch.
        If not given, R is 20. Where a site has values for each row, R is ``num_samples``: there each row is a mixture of
        its own draws, whose NLL falls as R grows.
    :param batch_size: number of test rows evaluated at a time.
    :param site: the observation to predict, if the model has several.
    :param states: values of the guide's parameters, by their names in ``named_parameters()``. Each state has the same
        share of the mixture and of ``num_samples``, and a draw of the latent sites of its own. If not given, the present
        values of the parameters are used.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, MonteCarlo, Variational, predict
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> guide = Variational(DeepGP(x, width=1), InducingPoints(20), MonteCarlo(10))
    >>> guide.initialize(x, y)
    >>> prediction = predict(guide, torch.linspace(-2, 2, 7)[:, None])  # a trained guide is used in the same way
    >>> prediction, prediction.mean.shape, prediction.quantile([0.1, 0.9]).shape
    (Prediction(rows=7), torch.Size([7]), torch.Size([2, 7]))
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"test inputs are a tensor, not {type(x).__name__}: use torch.as_tensor(x)")
    if isinstance(num_samples, Tensor):
        raise TypeError("predict takes test inputs and no targets: predict(guide, x).log_prob(y) scores y")
    if num_hyperparameter_draws is None:
        num_hyperparameter_draws = num_samples if guide.structure.local else 20
    if num_hyperparameter_draws < 1 or num_samples < 1:
        raise ValueError(
            f"num_samples and num_hyperparameter_draws are 1 or more, got {num_samples} and {num_hyperparameter_draws}"
        )
    if not bool(torch.isfinite(x).all()):
        raise ValueError("test inputs hold NaN or infinity: drop or fill such rows before prediction")
    if x.dim() != 2 or len(x) == 0:
        raise ValueError(
            f"test inputs have shape (N, D) with N at least 1, got {tuple(x.shape)}: use x[:, None] for one input"
        )
    parameters = dict(guide.named_parameters())
    unknown = [name for state in states for name in state if name not in parameters]
    if unknown:
        raise ValueError(f"the guide has no parameter {unknown[0]!r}: it has {list(parameters)}")
    with torch.no_grad(), _own_parameters(guide):
        first = guide.components(x[:1], new_rows=True, propagation=MonteCarlo(1), **kwargs)
        draws = _global_draws(guide, x, len(states) or num_hyperparameter_draws, kwargs)
    count = max(len(states), len(draws))  # one draw serves all states, or each state has its own
    at = [(states[i] if states else {}, draws[i % len(draws)]) for i in range(count)]
    name = _response(guide, first, site)
    one = _mixture_of(first, name).components
    event_shape = (one.batch_shape + one.event_shape)[2:]
    propagation = guide.propagation.for_prediction(max(1, num_samples // count))

    def evaluate(rows: slice) -> Mixture:
        parts = []
        with _own_parameters(guide):
            for state, fixed in at:
                with _values(parameters, state):
                    passed = guide.components(x[rows], new_rows=True, propagation=propagation, fixed=fixed, **kwargs)
                    parts.append(_mixture_of(passed, name))
        return stack_mixtures(parts)

    return Prediction(evaluate, len(x), Size(event_shape), batch_size=batch_size)


@contextmanager
def _own_parameters(guide: Variational) -> Iterator[None]:
    """Set guide and model to evaluation for a while, with their own parameters, whatever the caller's settings."""
    modules: tuple[torch.nn.Module, ...] = (guide, *guide.model_modules)
    with module_local_parameters(*modules), evaluating(*modules):
        yield


@contextmanager
def _values(parameters: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Iterator[None]:
    """Give some parameters other values for a while."""
    own = {name: parameters[name].detach().clone() for name in state}
    for name, value in state.items():
        parameters[name].data.copy_(value)
    try:
        yield
    finally:
        for name, value in own.items():
            parameters[name].data.copy_(value)


def _global_draws(guide: Variational, x: Tensor, count: int, kwargs: dict[str, Any]) -> list[dict[str, Tensor]]:
    names = guide.global_latents
    if not names:
        return [{}] * (count if guide.structure.local else 1)
    # Networks of global sites look at the rows.
    draws, rows = [], x if any(name in guide.networks._modules for name in names) else x[:1]
    for _ in range(count):
        trace = guide.components(rows, new_rows=True, propagation=MonteCarlo(1), **kwargs).trace
        draws.append({name: trace.nodes[name]["value"].detach() for name in names})
    return draws


def _response(guide: Variational, weighted: WeightedTrace, wanted: str | None) -> str:
    """Return the name of the observation site to predict."""
    names = [
        name
        for name, site in weighted.trace.nodes.items()
        if is_random(site) and (is_observation(site) or name in guide.structure.responses)
    ]
    if wanted is not None and wanted not in names:
        raise ValueError(f"there is no observation site {wanted!r}: the model has {names}")
    if wanted is not None:
        return wanted
    if len(names) != 1:
        raise ValueError(f"the model has {len(names)} observation sites, {names}: name one with site=")
    return names[0]


def _mixture_of(weighted: WeightedTrace, name: str) -> Mixture:
    """Return the mixture of the S components of a site, ``(S, N, ...)``."""
    site, log_weights = weighted.trace.nodes[name], weighted.log_weights
    carried, fn = weighted.record(site).carried, site["fn"]
    if isinstance(fn, CollapsedObservation):
        fn = fn.first_components(len(log_weights)) if carried else fn
        components, observations = fn.components(), [fn]
    else:
        components, observations = elementwise(fn), []
        if carried:
            components, log_weights = counted_components(components, log_weights)
    if not carried:
        components = components.expand((1, *components.batch_shape))
        return Mixture(components, log_weights.new_zeros(1), observations)
    return Mixture(components, log_weights, observations)
