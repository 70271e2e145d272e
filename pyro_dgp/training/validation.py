"""Training with a validation set: the weight of the KL, early stopping and the best checkpoint, chosen by one routine."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.losses import Loss
from pyro_dgp.prediction.from_guide import predict
from pyro_dgp.training.loop import OptimizerRecipe, adam, check_data, fit

#: ``callback(step, total, figures)``: steps of the search counted too; the validation NLL is there once it is known.
Report = Callable[[int, int, dict[str, float]], None]

#: ``loss(beta, rows)(model, guide)``, an objective: a :class:`~pyro_dgp.losses.Loss` for each beta, or a function of model and guide.
LossRecipe = Callable[[float, int], Callable[[Any, Any], torch.nn.Module]]


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How a predictive loss is kept from overfitting.

    1. A share of the training rows, drawn with the number of the split as its seed, is held out: ``n_validation``.
    2. Search: each beta is tried from the same start for ``search`` of the steps. Of those whose best checkpoint has a validation
       NLL within one standard error of the lowest (the error of the lowest as a mean over rows), the largest is taken: few
       rows tell little apart, and more regularisation is the safer error (the one-standard-error rule of Breiman et al. 1984).
       On small data that is nearly always the largest of ``betas``, which is then the setting that matters.
       A beta that the user names is not searched for.
    3. From the same start again, the model is trained on the other rows for all steps, or for each share of them that ``runs``
       lists. At ``checks`` equally spaced steps of each run the validation NLL is taken (of the predictive mixture, as in every
       result); a run stops after ``patience`` checks without a better one. The best checkpoint of that beta is what is left
       in the model: of the longest run, or of a shorter one or that of the search, whose learning rate fell before it could
       overfit.

    Held-out rows are not trained on afterwards, and a guide that is initialised here does not see them (a model that was built
    on the inputs, such as one with projections, may have). A beta whose training breaks down loses the search. The cost is
    ``len(betas) * search`` of a run, the runs below the longest, and the checks.

    :ivar share: of the training rows, one ninth: nine tenths in training become eight.
    :ivar betas: those that are tried, each 0 or more.
    :ivar runs: lengths of the runs at the chosen beta, as shares of the steps. One that the search has made is not made again.
    """

    share: float = 1 / 9
    betas: tuple[float, ...] = (0.01, 0.05, 0.2, 1.0)
    search: float = 0.25
    runs: tuple[float, ...] = (1.0,)
    checks: int = 20
    patience: int = 10

    def __post_init__(self) -> None:
        if isinstance(self.betas, str) or not isinstance(self.betas, Sequence):
            raise TypeError(f"betas is a tuple of numbers, got {self.betas!r}: for a single one write betas=(0.05,)")
        for beta in self.betas:
            if not isinstance(beta, Real) or not 0 <= beta < math.inf:
                raise ValueError(f"a beta is a finite number, 0 or more, got {beta!r} in betas={self.betas}")
        if not 0 < self.share < 1:
            raise ValueError(f"the share of validation rows lies between 0 and 1, got {self.share}")
        if not self.betas or self.checks < 1 or self.patience < 1 or not 0 < self.search <= 1:
            raise ValueError(
                "a validation needs at least one beta, one check, a patience of one, and a search of (0, 1]"
            )
        if isinstance(self.runs, str) or not isinstance(self.runs, Sequence):
            raise TypeError(f"runs is a tuple of shares, got {self.runs!r}: for a single one write runs=(1.0,)")
        if not self.runs or not all(0 < share <= 1 for share in self.runs):
            raise ValueError(f"runs lists shares of the steps, each above 0 and at most 1, got {self.runs!r}")

    def held_out(self, rows: int, split: int) -> Tensor:
        """Mask of the validation rows, ``(rows,)``."""
        mask = torch.zeros(rows, dtype=torch.bool)
        count = max(1, round(rows * self.share))
        if count >= rows:
            raise ValueError(f"{rows} training rows leave none besides {count} validation rows: give more data")
        mask[torch.as_tensor(np.random.RandomState(split).permutation(rows)[:count])] = True
        return mask


@dataclass(kw_only=True)
class ValidatedFit:
    """What a validated training run leaves behind.

    :ivar beta: the one in use.
    :ivar best_step: step of the checkpoint that was kept, of the ``run_steps`` of its run (the longest, a shorter one, or that of the search).
    :ivar validation_nll: there, nats per row, and its standard error ``validation_error``.
    :ivar rows: rows trained on, and ``validation_rows``.
    :ivar steps: optimiser steps in all, those of the search included; ``search_steps`` of them in the search.
    :ivar seconds: wall-clock time in all; ``extra_seconds`` of it in the checks and in all runs but the longest.
    :ivar searched: best validation NLL of each beta that was tried.
    :ivar failure: what broke the longest run down, if anything did.
    """

    beta: float
    best_step: int
    run_steps: int
    validation_nll: float
    validation_error: float
    rows: int
    validation_rows: int
    steps: int
    search_steps: int
    seconds: float
    extra_seconds: float
    searched: dict[float, float] = field(default_factory=dict)
    failure: str | None = None


class Trial:
    """One run at one beta: keeps the state of lowest validation NLL; asked after each step, says when to stop."""

    def __init__(
        self, state: torch.nn.Module, score: Callable[[], Tensor], beta: float, steps: int, validation: Validation
    ) -> None:
        self.state, self.score, self.beta, self.steps, self.validation = state, score, beta, steps, validation
        self.at = {math.ceil((k + 1) * steps / validation.checks) for k in range(validation.checks)}
        self.best, self.standard_error, self.best_step, self.since = math.inf, 0.0, 0, 0
        self.best_state: dict[str, Any] = {}
        self.seconds = self.checking_seconds = 0.0
        self.failure: Exception | None = None

    def __call__(self, step: int) -> bool:
        """Score the state if it is time; true after ``patience`` checks without improvement."""
        if step not in self.at:
            return False
        start = time.perf_counter()
        values = self.score()
        value = float(values.mean())
        self.since += 1
        if math.isfinite(value) and value < self.best:
            self.best, self.best_step, self.best_state, self.since = value, step, _snapshot(self.state), 0
            self.standard_error = float(values.std(correction=0)) / math.sqrt(len(values))
        self.checking_seconds += time.perf_counter() - start
        return self.since >= self.validation.patience


def largest_within_error(trials: list[Trial]) -> float:
    """The largest beta whose NLL is within one standard error of the lowest."""
    lowest = min(trials, key=lambda run: run.best)
    return max(run.beta for run in trials if run.best <= lowest.best + lowest.standard_error)


@dataclass
class _Training:
    """Runs of one guide from one start, on the rows that are not held out."""

    guide: Variational
    loss: LossRecipe
    rows: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    seed: int
    validation: Validation
    fit: Callable[..., Any]
    report: Report | None
    total: int
    done: int = 0

    def __post_init__(self) -> None:
        self.state = torch.nn.ModuleList([m for m in (self.guide, self.guide.model) if isinstance(m, torch.nn.Module)])
        self.start = _snapshot(self.state)

    def score(self) -> Tensor:
        """NLL of each held-out row."""
        x, y = self.held_out
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            nll = -predict(self.guide, x).log_prob(y)
        return nll

    def run(self, beta: float, steps: int) -> Trial:
        """Train from the start at one beta; a breakdown ends the run and is kept."""
        _restore(self.state, self.start)
        torch.manual_seed(self.seed)
        run, first = Trial(self.state, self.score, beta, steps, self.validation), self.done
        start = time.perf_counter()

        def after(step: int, value: float) -> None:
            self.done = first + step + 1
            if self.report is not None:
                known = {"validation NLL": run.best} if math.isfinite(run.best) else {}
                self.report(self.done, self.total, {"loss": value, "beta": beta} | known)

        objective = self.loss(beta, len(self.rows[0]))(self.guide.model, self.guide)
        try:
            self.fit(objective, *self.rows, steps=steps, callback=after, stop=run)
        except (ValueError, NotPositiveDefiniteError) as error:
            run.failure = error
        run.seconds = time.perf_counter() - start
        return run


def fit_validated(
    guide: Variational,
    loss: LossRecipe,
    x: Tensor,
    y: Tensor,
    *,
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
    :param loss: from beta and the number of training rows to the loss. For one that has no beta, as the ELBO, give
        ``Validation(betas=(1.0,))``: each beta is a run. A function of model and guide does in the place of a loss, as in
        ``lambda beta, rows: lambda *pair: CompiledObjective(PredictiveLogLikelihood(rows, beta)(*pair))`` (a program for each run).
    :param x: training inputs ``(N, D)``, validation rows among them.
    :param y: targets ``(N,)`` or ``(N, D_out)``.
    :param seed: of the order of the batches, and of the draws in training and in the checks.
    :param split: seed of the validation rows.
    :param beta: given, it is not searched for.
    :param optimizer: as in :func:`pyro_dgp.fit.fit`.
    """
    check_data(x, y)
    if isinstance(loss, Loss):
        kind = type(loss).__name__
        raise TypeError(
            f"loss is a function of beta and the number of rows, as lambda beta, rows: {kind}(rows, ...), not a {kind}"
        )
    validation = validation or Validation()
    began = time.perf_counter()
    mask = validation.held_out(len(x), split).to(x.device)
    if not guide.is_initialized:
        guide.initialize(x[~mask], y[~mask])
    betas = validation.betas if beta is None else (beta,)
    trial_steps = max(1, round(validation.search * steps)) if len(betas) > 1 else 0
    lengths = sorted({max(1, round(share * steps)) for share in validation.runs} - {trial_steps})
    train = partial(fit, batch_size=batch_size, learning_rate=learning_rate, seed=seed, optimizer=optimizer)
    training = _Training(
        guide,
        loss,
        rows=(x[~mask], y[~mask]),
        held_out=(x[mask], y[mask]),
        seed=seed,
        validation=validation,
        fit=train,
        report=report,
        total=len(betas) * trial_steps + sum(lengths),
    )
    try:
        with module_local_parameters(training.state), torch.random.fork_rng():
            trials = [training.run(factor, trial_steps) for factor in betas] if trial_steps else []
            search_steps = training.done
            chosen = largest_within_error(trials) if trials else betas[0]
            runs = [run for run in trials if run.beta == chosen] + [training.run(chosen, length) for length in lengths]
            best, longest = min(runs, key=lambda run: run.best), max(runs, key=lambda run: run.steps)
            if not best.best_state:
                raise longest.failure or ValueError(
                    "the validation NLL was infinite or NaN at every check: lower the learning rate"
                )
    except BaseException:
        _restore(training.state, training.start)
        raise
    _restore(training.state, best.best_state)
    return ValidatedFit(
        beta=chosen,
        best_step=best.best_step,
        run_steps=best.steps,
        validation_nll=best.best,
        validation_error=best.standard_error,
        rows=int((~mask).sum()),
        validation_rows=int(mask.sum()),
        steps=training.done,
        search_steps=search_steps,
        seconds=time.perf_counter() - began,
        extra_seconds=longest.checking_seconds + sum(run.seconds for run in {*trials, *runs} - {longest}),
        searched={run.beta: run.best for run in trials},
        failure=None if longest.failure is None else str(longest.failure),
    )


def _snapshot(module: torch.nn.Module) -> dict[str, Any]:
    return copy.deepcopy(module.state_dict())


def _restore(module: torch.nn.Module, state: dict[str, Any]) -> None:
    module.load_state_dict(state)
