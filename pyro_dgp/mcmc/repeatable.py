"""Densities that are the same in every evaluation: what a sampler needs, and what a model with hidden draws lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyro_dgp.guides.hidden_draws import HIDDEN_DRAWS
from pyro_dgp.mcmc.evaluation import IMPOSSIBLE

#: Evaluations at one point that are compared, and those of a model that has moved the random state of torch: a hidden draw of few values may be the same twice.
_REPEATS, _REPEATS_OF_DRAWS = 2, 10


def require_repeatable(density: Callable[[], float], point: Mapping[str, Tensor]) -> None:
    """Raise if the log density at one point differs between runs of the model, since a part of it is drawn anew in each of them.

    :param density: log density at the point. Where it has none nothing is raised: the sampler looks for another point, or says what is wrong.
    :param point: values of all sites, whose dtypes say how exactly two evaluations agree.
    """
    tolerance = max(math.sqrt(torch.finfo(value.dtype).eps) for value in point.values())
    found: list[float] = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        state, repeats = torch.get_rng_state(), _REPEATS
        while len(found) < repeats:
            try:
                found.append(density())
            except (ValueError, *IMPOSSIBLE):
                return
            if not torch.equal(state, torch.get_rng_state()):
                repeats = _REPEATS_OF_DRAWS
    if not all(math.isclose(each, found[0], rel_tol=tolerance, abs_tol=tolerance) for each in found):
        raise ValueError(HIDDEN_DRAWS)
