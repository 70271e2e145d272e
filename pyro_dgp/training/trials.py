"""Trials of a validation: runs of one guide from one start, scored at held-out rows as they train."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from pyro_dgp.diagnosis.symptoms import Finding, found
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.attributes import restore, snapshot
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.rows import Call, num_rows
from pyro_dgp.prediction.predict import predict
from pyro_dgp.training.checkpoints import CheckpointError
from pyro_dgp.training.fallback import Recipes
from pyro_dgp.training.held_out import MOST_CRPS_ROWS, Curve, RowScores, Targets, row_nll
from pyro_dgp.training.remarks import EXPLODING, Trained

#: Symptom of a fit that has next to no noise; with the other one, a fit has taken noise for its function.
NO_NOISE, OVERFITTED = "collapsed noise", "overfitted"
#: Difference of validation NLL and training NLL, nats a row, that is worth a remark.
APART = 0.3
#: Times that difference that a predictive loss without noise must be ahead of a fallback with noise.
GAINED = 2.0


class Start:
    """A guide and its model as they are before training.

    :param kept: arguments of a training step on the rows that the model is trained on in the end.
    """

    def __init__(self, guide: Variational, kept: Call) -> None:
        self.guide = guide
        self.state = torch.nn.ModuleList([guide, *guide.model_modules])
        self._values = snapshot(self.state)
        (x, y), named = kept
        self.trained = Trained(guide, (x, y), named)

    def restore(self) -> None:
        """Set all parameters back."""
        restore(self.state, self._values)


@dataclass
class Fold:
    """One part of the training rows that is held out, and the rest.

    :ivar rows: arguments of a training step on the rest.
    :ivar held_out: those on the held-out rows.
    :ivar few: those on at most :data:`MOST_CRPS_ROWS` of them.
    """

    rows: Call
    held_out: Call
    few: Call


class Trial:
    """One run at one beta. Called after each step, it scores the held-out rows at the checks and says when to stop.

    A run that has come to rest goes on to its end, where the learning rate falls and scores improve once more. One that has become worse is stopped.

    :param patience: number of checks without improvement after which it says so, if the scores are then worse than the best by more than a standard
        error; never if not given.
    :param state: what is kept of the best check; nothing if it is ``None``.
    :param say: called with the scores of the checks after each of them.
    """

    def __init__(
        self,
        score: Callable[[], RowScores],
        *,
        steps: int,
        checks: int,
        patience: int | None,
        state: torch.nn.Module | None,
        say: Callable[[Mapping[int, RowScores]], object],
    ) -> None:
        self.score, self.steps, self.patience, self.state, self.say = score, steps, patience, state, say
        self.at = {math.ceil((k + 1) * steps / checks) for k in range(checks)}
        self.scores: dict[int, RowScores] = {}
        self.best, self.since = math.inf, 0
        self.best_scores: RowScores | None = None
        self.best_state: dict[str, Any] = {}
        self.seconds = self.checking_seconds = 0.0
        self.failure: Exception | None = None
        self.losses: list[float] = []
        self.symptoms: set[str] = set()

    def __call__(self, step: int) -> bool:
        """Score the state if the step is one of the checks; return true after a number of checks without improvement, if it is clearly worse."""
        if step not in self.at:
            return False
        start = time.perf_counter()
        scores = self.scores[step] = self.score()
        self.since += 1
        if scores.merit < self.best:
            self.best, self.since, self.best_scores = scores.merit, 0, scores
            if self.state is not None:
                self.best_state = snapshot(self.state)
        self.say(self.scores)
        self.checking_seconds += time.perf_counter() - start
        if self.patience is None or self.since < self.patience:
            return False
        return self.best_scores is None or not scores.is_close_to(self.best_scores)

    def state_dict(self) -> dict[str, Any]:
        """Return the scores and the best checkpoint."""
        return {
            "scores": {str(step): vars(scores) for step, scores in self.scores.items()},
            "since": self.since,
            "best_state": self.best_state,
            "checking_seconds": self.checking_seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what ``state_dict`` returned."""
        self.scores = {int(step): RowScores(**scores) for step, scores in state["scores"].items()}
        self.since, self.best_state = state["since"], state["best_state"]
        self.checking_seconds = state["checking_seconds"]
        self.best_scores = min(self.scores.values(), key=lambda scores: scores.merit, default=None)
        self.best = math.inf if self.best_scores is None else self.best_scores.merit


@dataclass
class Candidate:
    """The runs of one beta and one length, one for each fold so far. The fallback has the beta ``None``.

    :ivar stops: whether it is judged by its best check, or by the last one alone.
    """

    beta: float | None
    steps: int
    trials: list[Trial] = field(default_factory=list)
    stops: bool = True

    def curve_on(self, folds: int) -> Curve:
        """Return the joint curve of the first folds."""
        curve = Curve.of(self.beta, self.steps, [trial.scores for trial in self.trials[:folds]])
        return curve if self.stops else curve.at_end()

    @property
    def curve(self) -> Curve:
        """The joint curve of all folds so far."""
        return self.curve_on(len(self.trials))

    @property
    def best_state(self) -> dict[str, Any]:
        """The best checkpoint, where there is a single fold."""
        return self.trials[0].best_state if len(self.trials) == 1 else {}

    @property
    def failure(self) -> Exception | None:
        """The first error of a run."""
        return next((trial.failure for trial in self.trials if trial.failure is not None), None)

    @property
    def has_noise(self) -> bool:
        """Whether no run of all steps of the fallback has next to no noise."""
        return bool(self.trials) and all(NO_NOISE not in trial.symptoms for trial in self.trials)

    @property
    def seconds(self) -> float:
        """Wall-clock time of all runs, without that of the checks."""
        return sum(trial.seconds - trial.checking_seconds for trial in self.trials)


@dataclass(frozen=True)
class Last:
    """The run whose end or checkpoint was kept.

    :ivar step: that of the checkpoint, or the last.
    :ivar steps: number of steps that it was planned for.
    :ivar rows: what it was trained on.
    :ivar losses: of its steps.
    :ivar seconds: wall-clock time of its steps.
    """

    step: int
    steps: int
    rows: Call
    losses: Sequence[float]
    seconds: float


@dataclass
class Training:
    """Runs of guides of one model, each from its start.

    :ivar recipes: the guides and losses.
    :ivar folds: parts of the rows that are held out in turn.
    :ivar kept: arguments of a training step on the rows that the betas are trained on in the end.
    :ivar everything: those on all rows, for the fallback.
    :ivar steps: number of steps of a full run.
    :ivar checks: number of checks of a run, and ``patience`` those without improvement after which it stops.
    :ivar fit: function that trains.
    :ivar batch_size: number of rows in a step, where the fallback has none of its own.
    :ivar total: steps of all runs, for the report.
    :ivar trials: the runs so far, with their betas.
    :ivar is_last_run: whether the run on all rows has begun, whose state is kept.
    """

    recipes: Recipes
    folds: Sequence[Fold]
    kept: Call
    everything: Call
    steps: int
    seed: int
    checks: int
    patience: int
    fit: Callable[..., Any]
    batch_size: int
    report: Progress | None
    total: int
    site: str | None = None
    done: int = 0
    known: dict[str, float] = field(default_factory=dict)
    trials: list[tuple[float | None, Trial]] = field(default_factory=list)
    is_last_run: bool = False

    def __post_init__(self) -> None:
        guides = [self.recipes.guide_of(0.0), self.recipes.guide_of(None)]
        self._starts = {guide: Start(guide, self.kept) for guide in guides}

    def start_of(self, beta: float | None) -> Start:
        """Return the start of the guide of a beta, or of the fallback."""
        return self._starts[self.recipes.guide_of(beta)]

    @property
    def states(self) -> list[torch.nn.Module]:
        """The modules of each guide and its model."""
        return [start.state for start in self._starts.values()]

    def restore(self) -> None:
        """Set all guides and the model back."""
        for start in self._starts.values():
            start.restore()

    def leave(self) -> None:
        """Set the state that a validation leaves which an error ended.

        It is that of the last step in the run on all rows, else the best checkpoint, else the start.
        """
        if self.is_last_run:
            return
        self.restore()
        saved = [(beta, trial) for beta, trial in self.trials if trial.best_state]
        if saved:
            beta, best = min(saved, key=lambda pair: pair[1].best)
            restore(self.start_of(beta).state, best.best_state)

    def extend(self, candidate: Candidate) -> None:
        """Train from the start at the beta of a candidate, on the next fold."""
        fold = self.folds[len(candidate.trials)]
        candidate.trials.append(self._trial(fold, candidate.beta, candidate.steps))

    def keep(self, best: Candidate) -> Last:
        """Set the guide and its model to what a candidate says: its best checkpoint, or a run on all rows."""
        beta, step = best.curve.beta, best.curve.best_step
        self.restore()
        if best.best_state:
            restore(self.start_of(beta).state, best.best_state)
            return Last(step or 0, best.curve.steps, self.kept, best.trials[0].losses, best.seconds)
        rows, steps = (self.kept, best.curve.steps) if best.stops else (self.everything, self.steps)
        end = (step or 0) if best.stops else steps
        started, self.is_last_run = time.perf_counter(), True
        losses = self.run(rows, beta, steps, lambda done: done >= end)
        return Last(end, steps, rows, losses, time.perf_counter() - started)

    def keep_after_all(self, best: Candidate) -> Last:
        """Keep another candidate than the one that was kept, by one run more."""
        self.total = max(self.total, self.done + self.steps)
        return self.keep(best)

    def run(self, rows: Call, beta: float | None, steps: int, stop: Callable[[int], bool]) -> list[float]:
        """Train from the start on some rows, and return the losses."""
        self.start_of(beta).restore()
        torch.manual_seed(self.seed)
        first = self.done

        def after(step: int, value: float) -> None:
            self.done = first + step + 1
            if self.report is not None:
                weight = {} if beta is None else {"beta": beta}
                self.report(self.done, self.total, {"loss": value} | weight | self.known)

        args, kwargs = rows
        objective = self.recipes.objective(beta, num_rows(args[0]))
        options = {"batch_size": self.batch_size} | self.recipes.options(beta)
        result = self.fit(objective, *args, **kwargs, steps=steps, callback=after, stop=stop, **options)
        self.done = first + len(result.losses)
        return result.losses

    def _trial(self, fold: Fold, beta: float | None, steps: int) -> Trial:
        """Train on the rows of a fold. An error of the training ends the run and is kept as its ``failure``."""

        def say(scores: Mapping[int, RowScores]) -> None:
            curve = Curve.of(beta, steps, [scores])
            self.known = {"validation NLL": curve.nll} if curve.scores else self.known

        trial = Trial(
            lambda: self._score(self.recipes.guide_of(beta), fold),
            steps=steps,
            checks=self.checks,
            patience=self.patience if self.recipes.stops(beta) else None,
            state=self.start_of(beta).state if len(self.folds) == 1 and self.recipes.stops(beta) else None,
            say=say,
        )
        self.known = {}
        self.trials.append((beta, trial))
        start = time.perf_counter()
        try:
            trial.losses = self.run(fold.rows, beta, steps, trial)
        except CheckpointError:
            raise
        except (ValueError, NotPositiveDefiniteError) as error:
            trial.failure = error
        trial.seconds = time.perf_counter() - start
        if beta is None and steps == self.steps and trial.failure is None:
            trial.symptoms = self._symptoms_of_fallback()
        return trial

    def _symptoms_of_fallback(self) -> set[str]:
        """Return the names of what is found of the fallback as it is now; nothing where it cannot be looked at."""
        try:
            return {each.symptom for each in self.start_of(None).trained.findings(site=self.site)}
        except (ValueError, NotPositiveDefiniteError):
            return set()

    def _score(self, guide: Variational, fold: Fold) -> RowScores:
        """Score the held-out rows of a fold."""
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            (x, y), named = fold.held_out
            prediction = predict(guide, x, site=self.site, **named)
            (few_x, few_y), few_named = fold.few
            is_all = num_rows(x) <= MOST_CRPS_ROWS
            few = prediction if is_all else predict(guide, few_x, site=self.site, **few_named)
            return RowScores.of(prediction, y, (few, few_y), targets=self._targets)

    @cached_property
    def _targets(self) -> Targets:
        """The targets of all rows."""
        return Targets(self.everything[0][1])

    def verdict(self, curve: Curve, last: Last) -> Verdict:
        """Return what is found of the fit that was kept.

        Held-out rows say whether it is too sure at those that it was trained on. Those of a shorter run, as that of a fallback in the search, do not.
        """
        trained = self.start_of(curve.beta).trained
        said = trained.findings(last.losses if last.step >= 0.9 * last.steps else [], self.site)
        (x, y), named = trained.seen()
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(self.seed)
            training = float(row_nll(predict(trained.guide, x, site=self.site, **named), y).mean())
        gap = curve.nll - training
        is_overfitted = curve.steps == last.steps and gap > max(APART, 3 * curve.error)
        if curve.beta is None or not is_overfitted:
            said = [each for each in said if each.symptom != EXPLODING]
        return Verdict(
            [*said, *([found(OVERFITTED, training=training, held_out=curve.nll)] if is_overfitted else [])], gap
        )


@dataclass(frozen=True)
class Verdict:
    """Findings on a fit, and how much better it scores the rows that it was trained on.

    :ivar gap: NLL of the held-out rows minus that of the training rows, nats a row.
    """

    findings: list[Finding]
    gap: float

    def takes_noise_for_function(self, kept: Candidate, fallback: Candidate | None) -> bool:
        """Whether a fit by a beta has next to no noise and has overfitted, where the fallback of the same model has noise and is not far behind."""
        if kept.beta is None or fallback is None or fallback.curve.best is None or not fallback.has_noise:
            return False
        gained = fallback.curve.nll - kept.curve_on(len(fallback.trials)).nll
        return {NO_NOISE, OVERFITTED} <= {each.symptom for each in self.findings} and gained < GAINED * self.gap
