"""Training with a validation set, which chooses the weight of the KL, the length of the run and the checkpoint."""

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
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.rows import Call, num_rows
from pyro_dgp.losses import Loss
from pyro_dgp.prediction.predict import predict
from pyro_dgp.training.loop import OptimizerRecipe, adam, fit, groups_of_guide, training_rows
from pyro_dgp.training.remarks import Trained

#: Function ``loss(beta, rows)`` that returns a :class:`~pyro_dgp.losses.Loss`, or any function from model and guide to an
#: objective.
LossRecipe = Callable[[float, int], Callable[[Any, Any], torch.nn.Module]]


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Settings of a validation, which keeps a predictive loss from overfitting.

    1. A share of the training rows is held out, drawn with the number of the split as its seed.
    2. Search: each beta is tried from the same start for a share ``search`` of the steps. Among betas within one standard
       error of the best, the largest wins. (A beta is judged by the validation NLL of its best checkpoint, and the error
       is that of the lowest NLL as a mean over rows.) Few rows tell little apart, and more regularisation is the safer
       error: this is the one-standard-error rule of Breiman et al. 1984. On small data the winner is nearly always the
       largest of ``betas``, so choose that one with care. A beta that the user gives is not searched for.
    3. Runs: from the same start again, the model is trained on the other rows for each share of the steps that ``runs``
       lists. The validation NLL (of the predictive mixture) is measured at ``checks`` equally spaced steps of each run. A
       run stops after ``patience`` checks without improvement. The model gets the best checkpoint of the chosen beta, be
       it of the longest run, of a shorter one or of the search. A short run can win because its learning rate falls
       before it overfits.

    The model is not trained on the held-out rows afterwards, and a guide that is initialised here does not see them. (A
    model that was built on all inputs, such as one with projections, has seen these.) A beta whose training breaks down
    loses the search. The cost is ``len(betas) * search`` of a run, the runs besides the longest, and the checks.

    :ivar share: share of the training rows that is held out. By default it is one ninth: where nine tenths of the data
        are training rows, eight remain.
    :ivar betas: the betas to try, each 0 or more.
    :ivar search: length of each run of the search, as a share of the steps.
    :ivar runs: lengths of the runs at the chosen beta, as shares of the steps. A run that the search has made is not
        repeated.
    :ivar checks: number of measurements of the validation NLL in each run.
    :ivar patience: number of checks without improvement after which a run stops.

    >>> from pyro_dgp import Validation
    >>> validation = Validation(betas=(0.05, 1.0), share=0.25)
    >>> int(validation.held_out(rows=100, split=0).sum())
    25
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
                "a validation needs at least one beta, one check, a patience of one, and a search above 0 and at most 1"
            )
        if isinstance(self.runs, str) or not isinstance(self.runs, Sequence):
            raise TypeError(f"runs is a tuple of shares, got {self.runs!r}: for a single one write runs=(1.0,)")
        if not self.runs or not all(0 < share <= 1 for share in self.runs):
            raise ValueError(f"runs lists shares of the steps, each above 0 and at most 1, got {self.runs!r}")

    def held_out(self, rows: int, split: int) -> Tensor:
        """Return the mask of the validation rows, ``(rows,)``."""
        mask = torch.zeros(rows, dtype=torch.bool)
        count = max(1, round(rows * self.share))
        if count >= rows:
            raise ValueError(f"{rows} training rows leave none besides {count} validation rows: give more data")
        mask[torch.as_tensor(np.random.RandomState(split).permutation(rows)[:count])] = True
        return mask


@dataclass(kw_only=True)
class ValidatedFit:
    """Record of a validated training run.

    :ivar beta: KL weight of the returned model.
    :ivar best_step: step of the checkpoint that was kept, counted in its own run.
    :ivar run_steps: number of steps of that run, which is the longest, a shorter one, or one of the search.
    :ivar validation_nll: validation NLL of the checkpoint, nats per row.
    :ivar validation_error: standard error of ``validation_nll``.
    :ivar rows: number of rows trained on.
    :ivar validation_rows: number of rows held out.
    :ivar steps: number of optimiser steps in all, those of the search included.
    :ivar search_steps: number of optimiser steps in the search.
    :ivar seconds: wall-clock time in all.
    :ivar extra_seconds: wall-clock time of the checks and of all runs but the longest.
    :ivar searched: best validation NLL of each beta that the search tried.
    :ivar failure: message of the error that ended the longest run, if one did.
    :ivar remarks: sentences on how the fit went, from :func:`~pyro_dgp.remarks`, and one where training and held-out rows are apart.
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
    remarks: list[str] = field(default_factory=list)


#: Difference of validation NLL and training NLL, nats a row, that is worth a remark.
APART = 0.3


class Trial:
    """One run at one beta. Called after each step, it keeps the state of lowest validation NLL and says when to stop."""

    def __init__(
        self, state: torch.nn.Module, score: Callable[[], Tensor], beta: float, steps: int, validation: Validation
    ) -> None:
        self.state, self.score, self.beta, self.steps, self.validation = state, score, beta, steps, validation
        self.at = {math.ceil((k + 1) * steps / validation.checks) for k in range(validation.checks)}
        self.best, self.standard_error, self.best_step, self.since = math.inf, 0.0, 0, 0
        self.best_state: dict[str, Any] = {}
        self.seconds = self.checking_seconds = 0.0
        self.failure: Exception | None = None
        self.losses: list[float] = []

    def __call__(self, step: int) -> bool:
        """Score the state if the step is one of the checks; return true after ``patience`` checks without improvement."""
        if step not in self.at:
            return False
        start = time.perf_counter()
        values = self.score()
        value = float(values.mean())
        self.since += 1
        if math.isfinite(value) and value < self.best:
            self.best, self.best_step, self.best_state, self.since = value, step, _snapshot(self.state), 0
            self.standard_error = float(values.std(correction=0)) / math.sqrt(values.numel())
        self.checking_seconds += time.perf_counter() - start
        return self.since >= self.validation.patience


def largest_within_error(trials: list[Trial]) -> float:
    """Return the largest beta whose NLL is within one standard error of the lowest."""
    lowest = min(trials, key=lambda run: run.best)
    return max(run.beta for run in trials if run.best <= lowest.best + lowest.standard_error)


@dataclass
class _Training:
    """Runs of one guide from one start, on the rows that are not held out."""

    guide: Variational
    loss: LossRecipe
    rows: Call
    held_out: Call
    seed: int
    validation: Validation
    fit: Callable[..., Any]
    report: Progress | None
    total: int
    site: str | None = None
    done: int = 0

    def __post_init__(self) -> None:
        self.state = torch.nn.ModuleList([self.guide, *self.guide.model_modules])
        self.start = _snapshot(self.state)
        (x, y), named = self.rows
        self.trained = Trained(self.guide, (x, y), named)

    def remarks(self, best: Trial) -> list[str]:
        """Return sentences on the checkpoint that was kept."""
        ran_to_its_end = best.best_step >= 0.9 * best.steps
        found = self.trained.remarks(best.losses if ran_to_its_end else [], self.site)
        (x, y), named = self.trained.seen()
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            training = -float(predict(self.guide, x, site=self.site, **named).log_prob(y).mean())
        if best.best - training > max(APART, 3 * best.standard_error):
            found.append(
                f"it scores {training:.2f} nats a row at its training rows and {best.best:.2f} at those held out, so that it has overfitted: "
                "larger betas, fewer inducing points or svgp may do better"
            )
        return found

    def score(self) -> Tensor:
        """Return the NLL of each held-out row."""
        (x, y), named = self.held_out
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            nll = -predict(self.guide, x, site=self.site, **named).log_prob(y)
        return nll

    def run(self, beta: float, steps: int) -> Trial:
        """Train from the start at one beta. An error of the training ends the run and is kept as its ``failure``."""
        _restore(self.state, self.start)
        torch.manual_seed(self.seed)
        run, first = Trial(self.state, self.score, beta, steps, self.validation), self.done
        start = time.perf_counter()

        def after(step: int, value: float) -> None:
            run.losses.append(value)
            self.done = first + step + 1
            if self.report is not None:
                known = {"validation NLL": run.best} if math.isfinite(run.best) else {}
                self.report(self.done, self.total, {"loss": value, "beta": beta} | known)

        args, kwargs = self.rows
        objective = self.loss(beta, num_rows(args[0]))(self.guide.model, self.guide)
        try:
            self.fit(objective, *args, **kwargs, steps=steps, callback=after, stop=run)
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
    report: Progress | None = None,
    optimizer: OptimizerRecipe = adam,
    site: str | None = None,
    **arguments: Any,
) -> ValidatedFit:
    """Train a guide and its model with the validation that :class:`Validation` describes, in place.

    :param guide: the guide, whose state is the start of every run. If it has no parameters yet, it is initialised here on
        the rows that are not held out.
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
    >>> validation = Validation(betas=(0.1, 1.0), share=0.2, checks=2)
    >>> fitted = fit_validated(guide, loss, x, y, steps=8, validation=validation)
    >>> fitted.rows, fitted.validation_rows, sorted(fitted.searched)
    (16, 4, [0.1, 1.0])
    """
    data = training_rows(x, y, arguments, groups=groups_of_guide(guide, (x, y), arguments))
    if isinstance(loss, Loss):
        kind = type(loss).__name__
        raise TypeError(
            f"loss is a function of beta and the number of rows, as lambda beta, rows: {kind}(rows, ...), not a {kind}"
        )
    validation = validation or Validation()
    began = time.perf_counter()
    mask = validation.held_out(len(data), split).to(x.device)
    rows = data[~mask]
    if not guide.is_initialized:
        guide.initialize(*rows[0], **rows[1])
    betas = validation.betas if beta is None else (beta,)
    trial_steps = max(1, round(validation.search * steps)) if len(betas) > 1 else 0
    lengths = sorted({max(1, round(share * steps)) for share in validation.runs} - {trial_steps})
    train = partial(fit, batch_size=batch_size, learning_rate=learning_rate, seed=seed, optimizer=optimizer)
    training = _Training(
        guide,
        loss,
        rows=rows,
        held_out=data[mask],
        seed=seed,
        validation=validation,
        fit=train,
        report=report,
        total=len(betas) * trial_steps + sum(lengths),
        site=site,
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
                    "the validation NLL is infinite or NaN at every check: lower the learning rate"
                )
    except BaseException:
        _restore(training.state, training.start)
        raise
    _restore(training.state, best.best_state)
    with module_local_parameters(training.state):
        remarks = training.remarks(best)
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
        remarks=remarks,
    )


def _snapshot(module: torch.nn.Module) -> dict[str, Any]:
    return copy.deepcopy(module.state_dict())


def _restore(module: torch.nn.Module, state: dict[str, Any]) -> None:
    module.load_state_dict(state)
