"""Training with a validation set: the weight of the KL, early stopping and the best checkpoint, chosen by one routine."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.fit import OptimizerRecipe, adam, fit
from pyro_dgp.guide import Variational
from pyro_dgp.linalg import NotPositiveDefiniteError
from pyro_dgp.losses import Loss
from pyro_dgp.parameters import module_local_parameters
from pyro_dgp.predict import predict

#: ``callback(step, total, figures)``: steps of the search counted too.
Report = Callable[[int, int, dict[str, float]], None]


@dataclass(frozen=True)
class Validation:
    """How a predictive loss is kept from overfitting.

    1. A share of the training rows, drawn with the number of the split as its seed, is held out: ``n_validation``.
    2. Search: each beta is tried from the same start for ``search`` of the steps, and the one whose best checkpoint has the
       lowest validation NLL is kept. A beta that the user names is not searched for.
    3. From the same start again, the model is trained for all steps on the other rows. At ``checks`` equally spaced steps the
       validation NLL is taken (of the predictive mixture, as in every result); training stops after ``patience`` checks without
       a better one, and the best checkpoint is what is left in the model.

    Held-out rows are not trained on afterwards, and a guide that is initialised here does not see them (a model that was built
    on the inputs, such as one with projections, may have). A beta whose training breaks down loses the search. The cost is
    ``len(betas) * search`` of a run, and the checks.

    :ivar share: of the training rows, one ninth: nine tenths in training become eight.
    """

    share: float = 1 / 9
    betas: tuple[float, ...] = (0.01, 0.05, 0.2, 1.0)
    search: float = 0.25
    checks: int = 20
    patience: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"the share of validation rows lies between 0 and 1, got {self.share}")
        if not self.betas or self.checks < 1 or self.patience < 1 or not 0 < self.search <= 1:
            raise ValueError(
                "a validation needs at least one beta, one check, a patience of one, and a search of (0, 1]"
            )

    def held_out(self, rows: int, split: int) -> Tensor:
        """Mask of the validation rows, ``(rows,)``."""
        mask = torch.zeros(rows, dtype=torch.bool)
        count = max(1, round(rows * self.share))
        if count >= rows:
            raise ValueError(f"{rows} training rows leave none besides {count} validation rows: give more data")
        mask[torch.as_tensor(np.random.RandomState(split).permutation(rows)[:count])] = True
        return mask


@dataclass
class ValidatedFit:
    """What a validated training run leaves behind.

    :ivar beta: the one in use, and whether it was ``searched``.
    :ivar best_step: step of the checkpoint that was kept, and ``validation_nll`` there, nats per row.
    :ivar rows: rows trained on, and ``validation_rows``.
    :ivar steps: optimiser steps in all, those of the search included; ``search_steps`` of them in the search.
    :ivar seconds: wall-clock time in all; ``extra_seconds`` of it in the search and the checks.
    :ivar searched: best validation NLL of each beta that was tried.
    """

    beta: float
    best_step: int
    validation_nll: float
    rows: int
    validation_rows: int
    steps: int = 0
    search_steps: int = 0
    seconds: float = 0.0
    extra_seconds: float = 0.0
    searched: dict[float, float] = field(default_factory=dict)


class _Checkpoints:
    """Keeps the state of lowest validation NLL; called after each step, says when to stop."""

    def __init__(self, state: torch.nn.Module, score: Callable[[], float], steps: int, validation: Validation) -> None:
        self.state, self.score, self.validation = state, score, validation
        self.at = {math.ceil((k + 1) * steps / validation.checks) for k in range(validation.checks)}
        self.best, self.best_step, self.since = math.inf, 0, 0
        self.best_state: dict[str, Any] = {}
        self.seconds = 0.0
        self.error: Exception | None = None

    def __call__(self, step: int) -> bool:
        """Score the state if it is time; true after ``patience`` checks without improvement."""
        if step not in self.at:
            return False
        start = time.perf_counter()
        value = self.score()
        self.since += 1
        if value < self.best:
            self.best, self.best_step, self.best_state, self.since = value, step, _snapshot(self.state), 0
        self.seconds += time.perf_counter() - start
        return self.since >= self.validation.patience


def fit_validated(
    guide: Variational,
    loss: Callable[[float, int], Loss],
    x: Tensor,
    y: Tensor,
    steps: int,
    batch_size: int = 256,
    learning_rate: float = 0.02,
    seed: int = 0,
    validation: Validation | None = None,
    split: int = 0,
    beta: float | None = None,
    report: Report | None = None,
    optimizer: OptimizerRecipe = adam,
) -> ValidatedFit:
    """Train a guide and its model as :class:`Validation` says, in place.

    :param guide: initialised here, on the rows trained on, if it has not been; its state is the start of every run.
    :param loss: from beta and the number of training rows to the loss.
    :param x: training inputs ``(N, D)``, validation rows among them.
    :param y: targets ``(N,)`` or ``(N, D_out)``.
    :param seed: of the order of the batches, and of the draws in training and in the checks.
    :param split: seed of the validation rows.
    :param beta: given, it is not searched for.
    :param optimizer: as in :func:`pyro_dgp.fit.fit`.
    """
    validation = validation or Validation()
    began = time.perf_counter()
    mask = validation.held_out(len(x), split).to(x.device)
    kept = ~mask
    x_fit, y_fit, x_held, y_held = x[kept], y[kept], x[mask], y[mask]
    if not guide.is_initialized:
        guide.initialize(x_fit, y_fit)
    state = torch.nn.ModuleList([m for m in (guide, guide.model) if isinstance(m, torch.nn.Module)])
    start = _snapshot(state)
    betas = validation.betas if beta is None else (beta,)
    trial_steps = max(1, round(validation.search * steps)) if len(betas) > 1 else 0
    total = len(betas) * trial_steps + steps
    done = 0

    def score() -> float:
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(seed)
            value = -float(predict(guide, x_held).log_prob(y_held).mean())
        return value if math.isfinite(value) else math.inf

    def run(factor: float, count: int) -> _Checkpoints:
        nonlocal done
        _restore(state, start)
        torch.manual_seed(seed)
        checkpoints, first = _Checkpoints(state, score, count, validation), done

        def after(step: int, value: float) -> None:
            nonlocal done
            done = first + step + 1
            if report is not None:
                report(done, total, {"loss": value, "beta": factor, "validation NLL": checkpoints.best})

        objective = loss(factor, len(x_fit))(guide.model, guide)
        try:
            fit(objective, x_fit, y_fit, count, batch_size, learning_rate, seed, after, optimizer, checkpoints)
        except (ValueError, NotPositiveDefiniteError) as error:
            checkpoints.error = error
        return checkpoints

    try:
        with module_local_parameters(state), torch.random.fork_rng():
            trials = {factor: run(factor, trial_steps) for factor in betas} if trial_steps else {}
            search_seconds, search_steps = time.perf_counter() - began, done
            chosen = min(trials, key=lambda factor: trials[factor].best) if trials else betas[0]
            best = run(chosen, steps)
            if not best.best_state:
                raise best.error or ValueError(
                    "the validation NLL was infinite or NaN at every check: lower the learning rate"
                )
    except BaseException:
        _restore(state, start)
        raise
    _restore(state, best.best_state)
    seconds = time.perf_counter() - began
    extra = best.seconds + (search_seconds if trials else 0.0)
    searched = {factor: trial.best for factor, trial in trials.items()}
    return ValidatedFit(
        chosen, best.best_step, best.best, len(x_fit), len(x_held), done, search_steps, seconds, extra, searched
    )


def _snapshot(module: torch.nn.Module) -> dict[str, Any]:
    return copy.deepcopy(module.state_dict())


def _restore(module: torch.nn.Module, state: dict[str, Any]) -> None:
    module.load_state_dict(state)
