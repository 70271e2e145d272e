"""Draws of functions, their log likelihoods and replicates of y, all of the same weight, as PSIS-LOO and WAIC take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_dgp.prediction.mixture import Mixture, with_components
from pyro_dgp.prediction.picked_draws import picked_draws
from pyro_dgp.prediction.prediction import Prediction, require_no_groups


class LikelihoodDraws(NamedTuple):
    """Draws of equal weight.

    :ivar functions: function values ``(R, N, F)``, independent over rows; ``None`` where the likelihood is given sampled
        values.
    :ivar log_prob: log p(y_n | f_n) at these values, ``(R, N)``, nats.
    :ivar replicates: draws of y given these values, ``(R, N, ...)``.
    """

    functions: Tensor | None
    log_prob: Tensor
    replicates: Tensor

    def thinned(self, row_step: int) -> LikelihoodDraws:
        """Return the draws of every so many rows."""
        functions = None if self.functions is None else self.functions[:, ::row_step]
        return LikelihoodDraws(functions, self.log_prob[:, ::row_step], self.replicates[:, ::row_step])


def likelihood_draws(prediction: Prediction, value: Tensor, least: int = 1) -> LikelihoodDraws:
    """Draw functions from a prediction and score the targets given these functions.

    Each component has one draw, or, where there are fewer components than ``least``, as many as make ``least`` draws or more. Components of different
    weights are drawn by systematic resampling. Of posterior draws at their training rows they are the values that were sampled.

    :param value: targets ``(N,)`` or ``(N, D_out)``.
    """
    require_no_groups(prediction, "draws of the functions and their likelihoods")
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(prediction.seed)
        if prediction.sampled is not None:
            return _draws_of_batch(prediction.sampled(), value, least)
        parts = [_draws_of_batch(mixture, part, least) for mixture, part in prediction.mixtures(value)]
    return _joined(parts, 1)


def _draws_of_batch(mixture: Mixture, value: Tensor, least: int) -> LikelihoodDraws:
    index = _components(mixture, least)
    if not mixture.observations:
        each = index[:, None].expand(-1, mixture.components.batch_shape[1])
        replicates = picked_draws(mixture.components, each, reparameterised=False)
        return LikelihoodDraws(None, mixture.component_log_prob(value)[index], replicates)
    parts, start = [], 0
    for observation in mixture.observations:
        mean, variance = with_components(observation.moments)
        chosen = index[(index >= start) & (index < start + len(mean))] - start
        f = mean[chosen] + variance[chosen].sqrt() * torch.randn_like(mean[chosen])
        given = observation.conditional.given(f).base_dist
        log_prob = given.log_prob(value)
        parts.append(LikelihoodDraws(f, log_prob.sum(-1) if log_prob.dim() == 3 else log_prob, given.sample()))
        start += len(mean)
    return _joined(parts, 0)


def _components(mixture: Mixture, least: int) -> Tensor:
    """Return the numbers of the components to draw from, so that each draw has the same weight."""
    index, weights = torch.arange(len(mixture.log_weights)), mixture.log_weights.exp()
    if bool(torch.isclose(weights, weights[0]).all()):
        return index.repeat(-(-least // len(index)))  # each as often, so that averages are those of the mixture
    count = max(least, len(weights))
    levels = (torch.arange(count).to(weights) + 0.5) / count
    return torch.searchsorted(weights.cumsum(0), levels).clamp_max(len(weights) - 1)


def _joined(parts: Sequence[LikelihoodDraws], axis: int) -> LikelihoodDraws:
    functions = [part.functions for part in parts if part.functions is not None]
    return LikelihoodDraws(
        torch.cat(functions, axis) if functions else None,
        torch.cat([part.log_prob for part in parts], axis),
        torch.cat([part.replicates for part in parts], axis),
    )
