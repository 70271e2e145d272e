"""What is done to the model of a named method before it is fitted: a short fit of one layer, which some of its parameters begin at."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.attributes import restore, snapshot
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.losses import ELBO
from pyro_dgp.processes import InducingPoints
from pyro_dgp.propagation import MonteCarlo
from pyro_dgp.training.loop import fit
from pyro_dgp.training.one_layer_start import OneLayerStart, start_from_one_layer
from pyro_dgp.training.optimising import Callback
from pyro_dgp.zoo.given_minutes import steps_within
from pyro_dgp.zoo.settings import Settings


def one_layer_first(model: nn.Module, x: Tensor, y: Tensor, settings: Settings) -> OneLayerStart:
    """Start learned hidden means at what one layer learns of the same rows, and the lengthscales of hidden kernels without such a mean.

    It takes half of the steps, at a rate of 0.05 or more, of 500 rows or more each. Where the settings have minutes, it takes a third of these at most.

    A validated method holds rows out afterwards: this start has seen them.
    """
    is_number = settings.task != "multiclass"
    start = partial(
        start_from_one_layer,
        x=x,
        y=y,
        numbers=None if is_number else torch.nn.functional.one_hot(y.long(), settings.classes).to(x),
        num_inducing=settings.inducing,
        batch_size=max(settings.rows_of_step, 500),
        learning_rate=max(settings.learning_rate, 0.05),
        seed=settings.seed,
        second=settings.minutes is None,
    )

    def trial(steps: int, callback: Callback) -> None:
        start(copy.deepcopy(model), steps=steps, callback=callback)

    return start(model, steps=_steps_before(settings, len(x), trial))


def one_layer_and_its_noise_first(model: nn.Module, x: Tensor, y: Tensor, settings: Settings) -> None:
    """Start as :func:`one_layer_first` does, and Gaussian noise at that of the one layer.

    Amortised guides overfit by the ELBO, and are stopped before noise that starts low has risen.
    """
    one_layer_first(model, x, y, settings).set_noise(model, x, y)


def sparse_gp_first(model: nn.Module, x: Tensor, y: Tensor, settings: Settings) -> None:
    """Start the hyperparameters of a one-layer model at those of a sparse GP with shared inducing points, trained for half of the steps.

    Inducing points of each row follow the noise of few rows. Noise and lengthscales that start where sparse variational inference ends keep the
    fit from it, for as long as it is stopped early. A validated method holds rows out afterwards: these few numbers have seen them.
    """
    before = snapshot(model)

    def train(model: nn.Module, steps: int, callback: Callback | None = None) -> None:
        guide = Variational(model, InducingPoints(min(settings.inducing, len(x))), MonteCarlo(1))
        guide.initialize(x, y)
        rows, rate = max(settings.rows_of_step, 500), max(settings.learning_rate, 0.05)
        options: dict[str, Any] = {"batch_size": rows, "learning_rate": rate, "seed": settings.seed}
        fit(ELBO(len(x))(model, guide), x, y, steps=steps, callback=callback, **options)

    def trial(steps: int, callback: Callback) -> None:
        train(copy.deepcopy(model), steps, callback)

    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        try:
            train(model, _steps_before(settings, len(x), trial))
        except NotPositiveDefiniteError:
            restore(model, before)


def _steps_before(settings: Settings, rows: int, trial: Callable[[int, Callback], object]) -> int:
    """Return the number of steps of a start: half of those of the settings, and 1,000 where they have that many.

    Where the settings have minutes, these steps take a third of the time at most.

    :param trial: runs the given number of steps of the start on copies, and calls a function after each.
    """
    steps = settings.num_steps(rows, settings.rows_of_step)
    steps = max(steps // 2, min(steps, 1000))
    if settings.minutes is None:
        return steps
    return min(steps, steps_within(settings.minutes / 3, trial, start=time.perf_counter()))
