"""Training with held-out rows, which choose the weight of the KL, whether to be predictive at all, and the length of the run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.rows import Call, RowArguments, num_rows
from pyro_dgp.losses import Loss
from pyro_dgp.training.checkpoints import told_apart_by
from pyro_dgp.training.fallback import Fallback, LossRecipe, Recipes
from pyro_dgp.training.held_out import MOST_CRPS_ROWS
from pyro_dgp.training.loop import fit, groups_of_guide, training_rows
from pyro_dgp.training.optimising import OptimizerRecipe, adam
from pyro_dgp.training.outcome import Outcome, carried_out
from pyro_dgp.training.plan import Plan
from pyro_dgp.training.run_facts import plain_values
from pyro_dgp.training.trials import Fold, Training
from pyro_dgp.training.validation import Validation


@dataclass(kw_only=True)
class ValidatedFit:
    """Record of a validated training run.

    :ivar guide: the guide that was kept: that of the fallback, if it has one and was chosen.
    :ivar beta: KL weight of the returned model; ``None`` where the fallback was chosen.
    :ivar best_step: step of the checkpoint that was kept, or to which the model was trained on all rows, counted in its own run.
    :ivar run_steps: number of steps of that run, which is the longest, a shorter one, or one of the search.
    :ivar validation_nll: NLL of the held-out rows at that step, nats per row. Of a fallback that was chosen in the search it is that after the share
        of the steps that the search has; the fit has had all of them, and is likely better.
    :ivar validation_error: standard error of ``validation_nll``.
    :ivar validation_crps: their CRPS, in units of y; ``None`` where the observation has none.
    :ivar rows: number of rows trained on: all, if there were several folds.
    :ivar validation_rows: number of held-out rows that the kept run was judged by.
    :ivar folds: number of folds that they lie in.
    :ivar steps: number of optimiser steps in all, those of the search included.
    :ivar search_steps: number of optimiser steps in the search.
    :ivar seconds: wall-clock time in all.
    :ivar extra_seconds: wall-clock time of the checks and of all runs but the last.
    :ivar searched: NLL of each candidate that the search tried, by beta; that of the fallback is ``None``. Of one that was left out it is that of
        the folds before.
    :ivar failure: message of the error that ended a run after the search, if one did.
    :ivar remarks: sentences on how the fit went, from :func:`~pyro_dgp.remarks`, and one where training and held-out rows are apart.
    """

    guide: Variational = field(repr=False)
    beta: float | None
    best_step: int
    run_steps: int
    validation_nll: float
    validation_error: float
    validation_crps: float | None
    rows: int
    validation_rows: int
    folds: int
    steps: int
    search_steps: int
    seconds: float
    extra_seconds: float
    searched: dict[float | None, float] = field(default_factory=dict)
    failure: str | None = None
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, outcome: Outcome, plan: Plan, training: Training, *, seconds: float) -> ValidatedFit:
        """Return the record of what was kept, and of all that was tried."""
        best, last = outcome.best, outcome.last
        scored = best.curve.best
        assert scored is not None
        return cls(
            guide=training.recipes.guide_of(best.curve.beta),
            beta=best.curve.beta,
            best_step=last.step,
            run_steps=last.steps,
            validation_nll=best.curve.nll,
            validation_error=best.curve.error,
            validation_crps=None if scored.crps is None else float(scored.crps.mean()),
            rows=num_rows(last.rows[0][0]),
            validation_rows=sum(num_rows(fold.held_out[0][0]) for fold in training.folds[: len(best.trials)]),
            folds=len(best.trials),
            steps=training.done,
            search_steps=outcome.search_steps,
            seconds=seconds,
            extra_seconds=seconds - last.seconds,
            searched={
                run.beta: run.curve.nll
                for run in sorted(outcome.tried, key=lambda run: plan.candidates.index(run.beta))
            },
            failure=None if outcome.failure is None else str(outcome.failure),
            remarks=outcome.remarks,
        )


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
    fallback: Fallback | None = None,
    report: Progress | None = None,
    optimizer: OptimizerRecipe = adam,
    site: str | None = None,
    **arguments: Any,
) -> ValidatedFit:
    """Train a guide and its model with the validation that :class:`Validation` describes, in place.

    An error, or the user who interrupts, leaves the parameters at the best checkpoint so far, or in the run on all rows at its last step.
    Without either they are set back.

    :param guide: the guide, whose state is the start of every run. If it has no parameters yet, it is initialised here: with a
        single fold on the rows that are not held out, with several on all.
    :param loss: function from beta and the number of training rows to the loss. A loss without beta, as the ELBO, needs
        ``Validation(betas=(1.0,))``, since each beta is a run. The function may also return a function from model and guide
        to an objective: ``lambda beta, rows: lambda *pair: CompiledObjective(PredictiveLogLikelihood(rows, beta)(*pair))``
        compiles a program for each run.
    :param x: training inputs ``(N, D)`` or ``(B, N, D)``, validation rows among them. Groups have the same validation rows.
    :param y: targets ``(N,)`` or ``(N, D_out)``, with groups ``(*groups, N)``, as in :func:`fit`.
    :param steps: number of steps of a full run.
    :param batch_size: number of rows in a step.
    :param learning_rate: learning rate of the first steps.
    :param seed: seed of the order of the batches, and of the draws in training and in the checks.
    :param validation: the settings; ``Validation()`` if not given.
    :param split: seed of the validation rows.
    :param beta: KL weight to use without a search.
    :param fallback: a loss that is tried beside the betas, with a guide of its own if it has one. ``Fallback(ELBO)`` makes a fit that
        is predictive only where held-out rows say that this is better.
    :param report: function that is called after each step with progress and figures.
    :param optimizer: builds the optimiser from the objective and the learning rate; Adam by default.
    :param site: the observation whose held-out values are scored, if the model has several.
    :param arguments: further arguments of the model, such as ``exposure=e``; a tensor of N rows is split as x is.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, PredictiveLogLikelihood, SigmaPoints
    >>> from pyro_dgp import Validation, Variational, fit_validated
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> guide = Variational(DeepGP(x, layers=1), InducingPoints(16), SigmaPoints("qr3", 8))
    >>> loss = lambda beta, rows: PredictiveLogLikelihood(rows, beta)
    >>> validation = Validation(betas=(0.1, 1.0), share=0.2, checks=2, folds=3)
    >>> fitted = fit_validated(guide, loss, x, y, steps=8, validation=validation)
    >>> fitted.rows, fitted.validation_rows, sorted(fitted.searched)
    (20, 12, [0.1, 1.0])
    """
    _require_recipe(loss)
    began, validation, fallback = time.perf_counter(), validation or Validation(), fallback if beta is None else None
    data = training_rows(x, y, arguments, modules=guide.model_modules, groups=groups_of_guide(guide, (x, y), arguments))
    masks = [
        validation.held_out(len(data), split, fold).to(x.device) for fold in range(validation.num_folds(len(data)))
    ]
    everything = data[torch.ones_like(masks[0])]
    kept = data[~masks[0]] if len(masks) == 1 else everything
    for each in (guide, None if fallback is None else fallback.guide):
        if each is not None:
            _initialize(each, kept)
    plan = Plan.of(
        validation.betas if beta is None else (beta,),
        steps=steps,
        search=validation.search,
        lengths=validation.lengths(steps),
        fallback=fallback is not None,
    )
    training = Training(
        Recipes(guide, loss, fallback),
        folds=[_fold(data, mask) for mask in masks],
        kept=kept,
        everything=everything,
        steps=steps,
        seed=seed,
        checks=validation.checks,
        patience=validation.patience,
        fit=partial(fit, learning_rate=learning_rate, seed=seed, optimizer=optimizer),
        batch_size=batch_size,
        report=report,
        total=len(masks) * plan.steps + (steps if len(masks) > 1 or None in plan.candidates else 0),
        site=site,
    )
    own = {**vars(validation), "steps": steps, "beta": beta, "site": site, "fallback": fallback is not None}
    with told_apart_by(plain_values(own, "the validation")):
        outcome = carried_out(plan, training)
    return ValidatedFit.of(outcome, plan, training, seconds=time.perf_counter() - began)


def _require_recipe(loss: LossRecipe) -> None:
    """Raise for a loss in the place of the function that makes it."""
    if isinstance(loss, Loss):
        kind = type(loss).__name__
        raise TypeError(
            f"loss is a function of beta and the number of rows, as lambda beta, rows: {kind}(rows, ...), not a {kind}"
        )


def _initialize(guide: Variational, rows: Call) -> None:
    """Initialise a guide that has no parameters yet; raise where the rows of its model cannot be held out."""
    if not guide.is_initialized:
        guide.initialize(*rows[0], **rows[1])
    if guide.structure.joins_data_rows:
        raise ValueError(
            "a part of the model joins rows of function values, and without the held-out rows it joins others: train on all rows, by fit"
        )


def _fold(data: RowArguments, mask: Tensor) -> Fold:
    """Return the rows that a mask does not hold out, those that it does, and the first of these."""
    some = torch.nonzero(mask).squeeze(1)[:MOST_CRPS_ROWS]
    return Fold(data[~mask], data[mask], data[some])
