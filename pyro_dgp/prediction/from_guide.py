"""Prediction from a trained guide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Size, Tensor

from pyro_dgp.guides.guide_pass import Components
from pyro_dgp.guides.sites import is_random
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.parameters import evaluating, module_local_parameters
from pyro_dgp.likelihoods import CollapsedObservation, Observation
from pyro_dgp.prediction.joining import chosen
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
    """The predictive distribution at new inputs.

    :param guide: a trained guide; its model is called as ``model(x, **kwargs)``, with no ``y``.
    :param x: test inputs ``(N, D)``.
    :param num_samples: mixture components in all under Monte Carlo propagation: more than in training, since the NLL of
        few is biased upwards. Sigma points predict by their own.
    :param num_hyperparameter_draws: R, draws of the latent sites besides GPs if the model has any; under Monte Carlo each gets
        ``num_samples / R`` components. The same draws of global ones serve every batch. If not given, 20, or ``num_samples`` where
        a site has values for each row: there each row is a mixture of its own draws, whose NLL falls as R grows.
    :param batch_size: test rows evaluated at a time.
    :param site: the observation to predict, if the model has several.
    :param states: values of the guide's parameters, by their names in ``named_parameters()``; each state has the same share of the
        mixture, and of ``num_samples``, and a draw of the latent sites of its own. The present values if not given.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"test inputs are a tensor, not {type(x).__name__}: use torch.as_tensor(x)")
    if isinstance(num_samples, Tensor):
        raise TypeError("predict takes test inputs and no targets: predict(guide, x).log_prob(y) scores y")
    if num_hyperparameter_draws is None:
        num_hyperparameter_draws = num_samples if guide.local_latents else 20
    if num_hyperparameter_draws < 1 or num_samples < 1:
        raise ValueError(
            f"num_samples and num_hyperparameter_draws are 1 or more, got {num_samples} and {num_hyperparameter_draws}"
        )
    if not bool(torch.isfinite(x).all()):
        raise ValueError("test inputs hold NaN or infinity: drop or fill such rows before prediction")
    if x.dim() != 2 or len(x) == 0:
        raise ValueError(f"test inputs have shape (N, D) with N at least 1, got {tuple(x.shape)}")
    parameters = dict(guide.named_parameters())
    unknown = [name for state in states for name in state if name not in parameters]
    if unknown:
        raise ValueError(f"the guide has no parameter {unknown[0]!r}: it has {list(parameters)}")
    with torch.no_grad(), _own_parameters(guide):
        first = guide.components(x[:1], new_rows=True, propagation=MonteCarlo(1), **kwargs)
        draws = _global_draws(guide, x, len(states) or num_hyperparameter_draws, kwargs)
    count = max(len(states), len(draws))  # one draw serves all states, or there is one for each
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
    """Whatever the caller's setting, prediction reads the modules' own parameters, writes to no store and evaluates."""
    modules = [m for m in (guide, guide.model) if isinstance(m, torch.nn.Module)]
    with module_local_parameters(*modules), evaluating(*modules):
        yield


@contextmanager
def _values(parameters: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Iterator[None]:
    """Other values of some parameters for a while."""
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
        return [{}] * (count if guide.local_latents else 1)
    # Networks of global sites look at the rows.
    draws, rows = [], x if any(name in guide.networks._modules for name in names) else x[:1]
    for _ in range(count):
        trace = guide.components(rows, new_rows=True, propagation=MonteCarlo(1), **kwargs).trace
        draws.append({name: trace.nodes[name]["value"].detach() for name in names})
    return draws


def _response(guide: Variational, components: Components, wanted: str | None) -> str:
    names = [
        name
        for name, site in components.trace.nodes.items()
        if is_random(site) and (isinstance(site["infer"].get("prior"), Observation) or name in guide.responses)
    ]
    if wanted is not None and wanted not in names:
        raise ValueError(f"there is no observation site {wanted!r}: the model has {names}")
    if wanted is not None:
        return wanted
    if len(names) != 1:
        raise ValueError(f"the model has {len(names)} observation sites, {names}: name one with site=")
    return names[0]


def _mixture_of(components: Components, name: str) -> Mixture:
    """The components of a site, ``(S, N, ...)``, with their log weights; without those that only carry a mean along."""
    site, log_weights = components.trace.nodes[name], components.log_weights
    fn, observations = site["fn"], []
    carried, counts = bool(site["infer"].get("carried")), log_weights > -torch.inf
    if isinstance(fn, CollapsedObservation):
        fn = fn.of_components(counts) if carried and not bool(counts.all()) else fn
        elementwise: Any = fn.components()
        observations = [fn]
    else:
        elementwise = fn
        while isinstance(elementwise, torch.distributions.Independent):
            elementwise = elementwise.base_dist
    if not carried:
        one = elementwise.expand((1, *elementwise.batch_shape))
        return Mixture(one, log_weights.new_zeros(1), observations)
    some = elementwise if observations else chosen(elementwise, counts)
    if some is None:  # they stay, with no weight
        return Mixture(elementwise, log_weights, observations)
    return Mixture(some, log_weights[counts], observations)
