"""Check that a model draws nothing beyond its sites, and that nothing sets the seed of what it draws."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from pyro_dgp.guides.leading_axes import ERRORS, are_equal, run_at
from pyro_dgp.internal.parameters import evaluating
from pyro_dgp.internal.plates import known_groups
from pyro_dgp.internal.rows import Call

#: Runs at one point that are compared where the random state of torch moves: a hidden draw of few values may be the same twice.
_REPEATS = 10

#: Sentence on a model with hidden draws.
HIDDEN_DRAWS = (
    "the model draws at random beyond its sites, as a site that pyro.poutine.block hides or torch.randn does, so that its density at one point "
    "differs from run to run: take the block away or give the hidden site a value, as in pyro.condition(model, {'a': value}), and make other "
    "draws pyro.sample sites, or draw them once, before the model"
)


@torch.no_grad()
def require_no_hidden_draws(
    model: Callable[..., Any], call: Call, *, modules: Sequence[nn.Module], groups: Collection[str] = ()
) -> None:
    """Raise for a model that draws at random beyond its sites, and for one that sets the seed of its random numbers.

    A prediction of the first holds one of its draws for all samples, and all samples of the second are one. The model is run several times at the same values of all
    sites, with its networks in evaluation mode. A model that changes from run to run without a draw, as one that is annealed, passes, and so does one that cannot be run here.

    :param modules: what the model runs.
    :param groups: names of the plates that hold groups.
    """
    try:
        with torch.random.fork_rng(devices=[]), known_groups(groups), evaluating(*modules):
            torch.manual_seed(0)
            first = run_at(model, call, {})
            state = _random_state()
            others = [run_at(model, call, first.values)]
            has_drawn = state != _random_state()
            others += [run_at(model, call, first.values) for _ in range(_REPEATS if has_drawn else 0)]
            is_same = not has_drawn or all(are_equal(other.met, first.met) for other in others)
            torch.manual_seed(1)
            is_seeded = first.stamp is not None and run_at(model, call, {}).stamp == first.stamp
    except ERRORS:
        return
    if not is_same:
        raise ValueError(HIDDEN_DRAWS)
    if is_seeded:
        raise ValueError(
            "the model sets the seed of its random numbers, as pyro.poutine.seed or torch.manual_seed does, so that all samples would be one: set the seed before training in its place, "
            "as pyro.set_rng_seed does"
        )


def _random_state() -> tuple[Any, ...]:
    """Return the states of the generators that a model may draw from: those of PyTorch, of Python and of NumPy."""
    of_gpus = [each.tolist() for each in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else []
    return torch.get_rng_state().tolist(), of_gpus, random.getstate(), repr(np.random.get_state(legacy=False))
