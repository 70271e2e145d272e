"""Densities of components at values that some of them do not have, and the values of those that have few."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal.views import View
from pyro_dgp.likelihoods.placed_mixture import FunctionMixture
from pyro_dgp.likelihoods.supports import innermost, is_mixture_of_numbers
from pyro_dgp.prediction.target_kinds import kind_of


def log_prob_of(components: Any, value: Tensor) -> Tensor:
    """Return the log density of each component, minus infinity where its own support, as of a uniform distribution, leaves a value out."""
    try:
        log_prob: Tensor = components.log_prob(value)
        return log_prob
    except ValueError:
        inside = _has(components, value)
        if not bool(inside.any(0).all()):
            raise
    return _log_prob_where(components, value, inside)


def row_log_prob_of(components: Any, value: Tensor) -> Tensor:
    """Return the log density of all outputs of a row together under each component, ``(S, N)``."""
    if share_functions(components):
        value = value.expand(torch.broadcast_shapes(value.shape, components.shape()))
        try:
            return _row_log_prob(components, value)
        except ValueError:  # a value that the components do not have
            inside = _has(components, value).expand(value.shape)
            if bool(inside.all()):
                raise
        with torch.random.fork_rng():
            possible = components.sample()
        return _row_log_prob(components, torch.where(inside, value, possible)).where(inside.all(-1), -torch.inf)
    log_prob = log_prob_of(components, value)
    return log_prob.sum(-1) if log_prob.dim() == 3 else log_prob


def share_functions(components: Any) -> bool:
    """Tell whether each output of a row is an element of the batch, and several may read the same functions, which were integrated out."""
    single = components
    while isinstance(single, View) and not isinstance(single, FunctionMixture):
        single = single.inner
    return isinstance(single, FunctionMixture) and len(components.shape()) == 3 and not components.event_shape


def _row_log_prob(components: Any, value: Tensor | None) -> Tensor:
    if isinstance(components, FunctionMixture) and value is not None:
        return components.row_log_prob(value)
    found: Tensor = components.evaluate(_row_log_prob, value)
    return found


def _log_prob_where(components: Any, value: Tensor, inside: Tensor) -> Tensor:
    """Return the log density where a value is inside the support of a component, and minus infinity elsewhere."""
    if is_mixture_of_numbers(components):
        each, value = components.component_distribution, value.unsqueeze(-1)
        log_shares = components.mixture_distribution.logits.log_softmax(-1)
        return torch.logsumexp(_log_prob_where(each, value, _has(each, value)) + log_shares, -1)
    within = inside.reshape(*inside.shape, *[1] * len(components.event_shape))
    with torch.random.fork_rng():
        possible = components.sample()
    return components.log_prob(torch.where(within, value, possible)).where(inside, -torch.inf)  # type: ignore[no-any-return]


def _has(components: Any, value: Tensor) -> Tensor:
    """Tell whether a value is inside the support of each component; a mixture in itself has what any of its parts has."""
    if is_mixture_of_numbers(components):
        return _has(components.component_distribution, value.unsqueeze(-1)).any(-1)
    inside: Tensor = components.support.check(value)
    return inside


def enumerated(components: Any) -> Tensor | None:
    """Return all values of classes and of other targets of few values, ``(C, ...)``; nothing for other targets.

    :raises ValueError: where the components have different numbers of values, as binomial counts of different totals.
    """
    is_mixture = is_mixture_of_numbers(innermost(components))
    single = kind_of(components) if is_mixture else components
    if not single.has_enumerate_support:
        return None
    try:
        values: Tensor = single.enumerate_support(expand=False)
    except NotImplementedError as error:
        raise ValueError(
            f"the rows of {type(innermost(single)).__name__} have different numbers of values, which probs would list: take log_prob or sample of the prediction"
        ) from error
    return values.flatten() if is_mixture else values
