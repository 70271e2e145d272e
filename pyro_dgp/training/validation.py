"""Training with held-out rows, which choose the weight of the KL, whether to be predictive at all, and the length of the run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
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
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.rows import RowArguments, num_rows
from pyro_dgp.losses import Loss
from pyro_dgp.training.checkpoints import CheckpointError, told_apart_by
from pyro_dgp.training.fallback import Fallback, LossRecipe, Recipes
from pyro_dgp.training.held_out import MOST_CRPS_ROWS
from pyro_dgp.training.loop import fit, groups_of_guide, training_rows
from pyro_dgp.training.optimising import OptimizerRecipe, adam
from pyro_dgp.training.plan import Plan
from pyro_dgp.training.run_facts import plain_values
from pyro_dgp.training.trials import Candidate, Fold, Last, Training, Verdict, restore, snapshot

#: Rows that are held out in all, at least, and folds at most, where the number of folds is not given.
HELD_OUT_ROWS, MOST_FOLDS = 200, 3

_NOISE_FOR_FUNCTION = "the fit with beta {beta:g} had next to no noise and overfitted, where the fallback has noise and is not far behind: the fallback is kept"


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Settings of a validation, which keeps a predictive loss from overfitting.

    1. Rows are held out: a share of the training rows, drawn with the number of the split as its seed. Few rows tell little
       apart, so that several such folds are held out in turn where the training rows are few, each row in one fold at most.
    2. Search: each beta, and the fallback if there is one, is trained from the same start on the rows of each fold that are
       not held out, for a share ``search`` of the steps. Held-out rows are scored at ``checks`` equally spaced steps. The
       merit of a beta is that of its best check over the held-out rows of all folds, and that of a fallback that does not stop is that of its last
       check: NLL plus the logarithm of the CRPS, so that the mean is not paid for the density. The largest beta within one
       standard error of the best (of the differences between rows) wins: more regularisation is the safer error. It must be
       better than the fallback by three standard errors in NLL, and worse by no more than one in CRPS. Where the targets take few values, less than one for
       50 rows, a density can put a spike on each, and the CRPS alone decides, by three standard errors. The folds are held out one after
       another. A beta that is behind the best one by more than three standard errors is left out of those that come next. The remaining folds are skipped where no beta
       is ahead of the fallback so far, and the fallback is left out where one is ahead by five standard errors.
    3. Runs: where the best check of the search lies in its last quarter, or where nothing was to be searched for, the chosen
       beta is trained from the same start for each share of the steps that ``runs`` lists, and judged in the same way. A short
       run can win because its learning rate falls before it overfits. A run stops after ``patience`` checks without
       improvement, once it is clearly worse than its best check: one that has come to rest may gain where the learning rate falls.
    4. Where a beta was chosen, the fallback is trained for all steps too, fold by fold beside it, and must be beaten once more. The next folds
       are spared where the beta is not ahead so far, or ahead by five standard errors.
    5. With one fold the model gets the best checkpoint and has not been trained on the held-out rows. With several it is
       trained once more, on all rows, to the step of the best check. A fallback that does not stop is trained on all rows for all steps.

    6. A fit by a beta is dropped for the fallback where it has next to no noise and scores its training rows better than the held-out ones, by 0.3
       nats a row and three standard errors, and the fallback has noise and is behind it at held-out rows by less than twice the gap between
       both. Such a fit follows the noise. It loses much at a few rows, and the held-out rows may hold none of these.

    A guide that is initialised here does not see the held-out rows of a single fold. (A model that was built on all inputs,
    such as one with projections, has seen these.) A candidate whose training breaks down loses the search. The cost is
    ``folds * (candidates * search + runs)`` of a run at most, one more for each fold with the fallback, one more with several folds, and one more
    where a fit is dropped.

    :ivar share: share of the training rows that is held out. By default it is one ninth: where nine tenths of the data
        are training rows, eight remain.
    :ivar betas: the betas to try, each 0 or more.
    :ivar search: length of each run of the search, as a share of the steps.
    :ivar runs: lengths of the runs at the chosen beta, as shares of the steps. A run that the search has made is not
        repeated.
    :ivar checks: number of times that held-out rows are scored in each run.
    :ivar patience: number of checks without improvement after which a run stops, if it is worse than its best check by more than a standard error.
    :ivar folds: number of folds; if not given, as many as hold out 200 rows in all, three at most.

    >>> from pyro_dgp import Validation
    >>> validation = Validation(betas=(0.05, 1.0), share=0.25)
    >>> int(validation.held_out(rows=100, split=0).sum())
    25
    >>> validation.num_folds(rows=300), validation.num_folds(rows=3000)
    (3, 1)
    """

    share: float = 1 / 9
    betas: tuple[float, ...] = (0.05, 1.0)
    search: float = 0.25
    runs: tuple[float, ...] = (1.0,)
    checks: int = 20
    patience: int = 10
    folds: int | None = None

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
                "a validation needs at least one beta, one check, a patience of one, and a search above 0 and at most 1"
            )
        if isinstance(self.runs, str) or not isinstance(self.runs, Sequence):
            raise TypeError(f"runs is a tuple of shares, got {self.runs!r}: for a single one write runs=(1.0,)")
        if not self.runs or not all(0 < share <= 1 for share in self.runs):
            raise ValueError(f"runs lists shares of the steps, each above 0 and at most 1, got {self.runs!r}")

        if self.folds is not None and not 1 <= self.folds <= 1 / self.share:
            raise ValueError(
                f"folds of a share of {self.share:.3g} of the rows are 1 to {int(1 / self.share)} in number, got {self.folds}"
            )

    def num_folds(self, rows: int) -> int:
        """Return the number of folds for a number of training rows."""
        count = self._count(rows)
        if self.folds is not None:
            return min(self.folds, max(1, rows // count))
        wanted = min(MOST_FOLDS, -(-HELD_OUT_ROWS // count))
        return max(1, min(wanted, int(1 / self.share + 1e-9), rows // count))

    def held_out(self, rows: int, split: int, fold: int = 0) -> Tensor:
        """Return the mask of the validation rows of a fold, ``(rows,)``."""
        mask = torch.zeros(rows, dtype=torch.bool)
        count = self._count(rows)
        if count >= rows:
            raise ValueError(f"{rows} training rows leave none besides {count} validation rows: give more data")
        order = np.random.RandomState(split).permutation(rows)
        mask[torch.as_tensor(order[fold * count : (fold + 1) * count])] = True
        return mask

    def lengths(self, steps: int) -> list[int]:
        """Return the numbers of steps of the runs that come after the search."""
        return sorted({max(1, round(share * steps)) for share in self.runs})

    def _count(self, rows: int) -> int:
        """Rows of a fold: the share of all, or the most that as many folds as are asked for can have where rounding would leave too few."""
        count = round(rows * self.share)
        return max(1, count if self.folds is None else min(count, rows // self.folds))


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
    data = training_rows(x, y, arguments, modules=guide.model_modules, groups=groups_of_guide(guide, (x, y), arguments))
    if isinstance(loss, Loss):
        kind = type(loss).__name__
        raise TypeError(
            f"loss is a function of beta and the number of rows, as lambda beta, rows: {kind}(rows, ...), not a {kind}"
        )
    validation, fallback = validation or Validation(), fallback if beta is None else None
    began = time.perf_counter()
    masks = [
        validation.held_out(len(data), split, fold).to(x.device) for fold in range(validation.num_folds(len(data)))
    ]
    everything = data[torch.ones_like(masks[0])]
    kept = data[~masks[0]] if len(masks) == 1 else everything
    for each in (guide, None if fallback is None else fallback.guide):
        if each is not None and not each.is_initialized:
            each.initialize(*kept[0], **kept[1])
        if each is not None and each.structure.joins_data_rows:
            raise ValueError(
                "a part of the model joins rows of function values, and without the held-out rows it joins others: train on all rows, by fit"
            )
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
    facts = plain_values(own, "the validation")
    try:
        with told_apart_by(facts), module_local_parameters(*training.states), torch.random.fork_rng():
            search, left_out = plan.search(training)
            search_steps = training.done
            best, held_against, failure = plan.best(training, search)
            held_against = held_against or next(
                (run for run in left_out if run.beta is None and run.steps == steps), None
            )
            end = _keep(training, best, held_against)
            best, last, failure = end.best, end.last, failure or end.failure
            remarks = end.remarks or _on_fallback(best, [*search, *left_out])
            remarks += [finding.sentence for finding in end.verdict.findings]
    except BaseException:
        training.leave()
        raise
    scored = best.curve.best
    assert scored is not None
    seconds = time.perf_counter() - began
    return ValidatedFit(
        guide=training.recipes.guide_of(best.curve.beta),
        beta=best.curve.beta,
        best_step=last.step,
        run_steps=last.steps,
        validation_nll=best.curve.nll,
        validation_error=best.curve.error,
        validation_crps=None if scored.crps is None else float(scored.crps.mean()),
        rows=num_rows(last.rows[0][0]),
        validation_rows=sum(int(mask.sum()) for mask in masks[: len(best.trials)]),
        folds=len(best.trials),
        steps=training.done,
        search_steps=search_steps,
        seconds=seconds,
        extra_seconds=seconds - last.seconds,
        searched={
            run.beta: run.curve.nll
            for run in sorted((*search, *left_out), key=lambda run: plan.candidates.index(run.beta))
        },
        failure=None if failure is None else str(failure),
        remarks=remarks,
    )


@dataclass(frozen=True)
class _Kept:
    """Candidate that was kept, its last run, what is found of it, a remark where it is kept in the place of another, and the error of a run in its place."""

    best: Candidate
    last: Last
    verdict: Verdict
    remarks: list[str] = field(default_factory=list)
    failure: Exception | None = None


def _keep(training: Training, best: Candidate, fallback: Candidate | None) -> _Kept:
    """Keep the best candidate, or the fallback where the best has taken noise for its function (step 6 of :class:`Validation`)."""
    last = training.keep(best)
    verdict = training.verdict(best.curve, last)
    if fallback is None or not verdict.takes_noise_for_function(best, fallback):
        return _Kept(best, last, verdict)
    state = training.start_of(best.beta).state
    before = snapshot(state)
    try:
        other = training.keep_after_all(fallback)
    except CheckpointError:
        raise
    except (ValueError, NotPositiveDefiniteError) as error:
        restore(state, before)
        return _Kept(best, last, verdict, failure=error)
    return _Kept(fallback, other, training.verdict(fallback.curve, other), [_NOISE_FOR_FUNCTION.format(beta=best.beta)])


def _on_fallback(fallback: Candidate, tried: Sequence[Candidate]) -> list[str]:
    """Return the sentence on a fallback that was kept, where a beta was ahead of it at the held-out rows that both had; nothing of a beta."""
    if fallback.beta is not None:
        return []
    betas = [
        run for run in tried if run.beta is not None and run.curve.best is not None and run.steps == fallback.steps
    ]
    best = min(betas, key=lambda run: run.curve.nll, default=None)
    if best is None:
        return []
    folds = min(len(best.trials), len(fallback.trials))
    ours, theirs = best.curve_on(folds).best, fallback.curve_on(folds).best
    if ours is not None and theirs is not None and ours.by_crps and ours.crps is not None and theirs.crps is not None:
        share = float(ours.crps.mean() / theirs.crps.mean())
        return [
            f"the fallback is kept: the targets take few values, on which a density puts spikes, so that the CRPS of held-out rows decides, and that of "
            f"beta {best.beta:g} is {share:.3f} times the fallback's"
        ]
    if ours is None or theirs is None or not float((ours.nll - theirs.nll).mean()) < 0:
        return []
    lead = theirs.nll - ours.nll
    error = float(lead.std(correction=0)) / math.sqrt(len(lead))
    return [
        f"the fallback is kept: beta {best.beta:g} is ahead of it by {float(lead.mean()):.2f} nats a row (+- {error:.2f}) at {len(lead)} held-out rows, and "
        "three standard errors are asked for, and a CRPS that is not worse"
    ]


def _fold(data: RowArguments, mask: Tensor) -> Fold:
    """Return the rows that a mask does not hold out, those that it does, and the first of these."""
    some = torch.nonzero(mask).squeeze(1)[:MOST_CRPS_ROWS]
    return Fold(data[~mask], data[mask], data[some])
