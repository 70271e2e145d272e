"""The plan of a validation: which candidates are tried, on how many folds, and which run is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyro_dgp.training.held_out import RowScores, simplest_of_the_best
from pyro_dgp.training.trials import Candidate, Training

#: Share of the steps of the search after which its best check calls for longer runs.
STILL_BETTER = 0.75
#: Standard errors by which a beta must be ahead of the fallback on some of the folds for the others to be spared.
SPARED_ERRORS = 5.0
#: Standard errors by which a beta must be behind the best one on some of the folds to be left out of the others.
LEFT_OUT_ERRORS = 3.0


@dataclass(frozen=True)
class Plan:
    """Betas that are searched for, and the lengths of the runs.

    :ivar candidates: betas, and ``None`` for the fallback.
    :ivar search_steps: number of steps of each run of the search, 0 if there is nothing to search for.
    :ivar lengths: numbers of steps of the runs that follow it.
    :ivar fallback_steps: number of steps of the fallback that the best run is held against at last, 0 if there is none or the search
        has made that run.
    """

    candidates: tuple[float | None, ...]
    search_steps: int
    lengths: list[int]
    fallback_steps: int

    @classmethod
    def of(
        cls, candidates: tuple[float | None, ...], *, steps: int, search: float, lengths: Sequence[int], fallback: bool
    ) -> Plan:
        """Plan a validation.

        :param candidates: betas to choose from; one alone is not searched for.
        :param steps: number of steps of a full run.
        :param search: length of each run of the search, as a share of the steps.
        :param lengths: numbers of steps of the runs at the chosen beta; the search may have made one of them.
        :param fallback: whether there is one.
        """
        candidates = (*candidates, None) if fallback else candidates
        searched = max(1, round(search * steps)) if len(candidates) > 1 else 0
        longer = [length for length in lengths if length != searched]
        return cls(candidates, searched, longer, steps if fallback and searched != steps else 0)

    @property
    def steps(self) -> int:
        """Number of steps on each fold, at most."""
        return len(self.candidates) * self.search_steps + sum(self.lengths) + self.fallback_steps

    def search(self, training: Training) -> tuple[list[Candidate], list[Candidate]]:
        """Run the candidates for the steps of the search, and return those that it chooses from, and those that were left out before the last fold."""
        if not self.search_steps:
            return [], []
        running = [_untried(training, beta, self.search_steps) for beta in self.candidates]
        left_out: list[Candidate] = []
        for _ in training.folds:
            for each in running:
                training.extend(each)
            staying = _still_running(running)
            if len(running[0].trials) == len(training.folds):
                break
            running, left_out = staying, left_out + [run for run in running if run not in staying]
            if [run.beta for run in running] == [None]:
                break
        return running, left_out

    def best(
        self, training: Training, search: Sequence[Candidate]
    ) -> tuple[Candidate, Candidate | None, Exception | None]:
        """Return the best run, the fallback that it was held against, and the first failure among the runs after the search.

        The search chooses the candidate, whose run is the best one already where it stopped improving, or where it is the fallback.
        """
        beta, made, is_over = self.candidates[0], [], False
        if search:
            curves = [run.curve for run in search]
            chosen = simplest_of_the_best(curves)
            beta, made = chosen.beta, [run for run, curve in zip(search, curves, strict=True) if curve is chosen]
            is_over = chosen.best_step is not None and chosen.best_step <= STILL_BETTER * chosen.steps
        is_over = is_over or (beta is None and not made[0].stops)
        longer = [] if search and is_over else [_untried(training, beta, length) for length in self.lengths]
        fallback = _untried(training, None, self.fallback_steps) if beta is not None and self.fallback_steps else None
        if beta is None and not longer:
            best, folds = made[0], len(made[0].trials)
        else:
            best, folds = self._raced(training, [*made, *longer], fallback)
        failure = next((run.failure for run in (*made, *longer) if run.failure is not None), None)
        if best.curve_on(folds).best is None:
            raise failure or ValueError(
                "the scores of held-out rows are infinite or NaN at every check: build the model and the guide anew and train at a lower learning rate"
            )
        if fallback is not None:
            curves = [best.curve_on(folds), fallback.curve_on(folds)]
            best = best if simplest_of_the_best(curves) is curves[0] else fallback
        return best, fallback or next((run for run in search if run.beta is None), None), failure

    def _raced(
        self, training: Training, runs: Sequence[Candidate], fallback: Candidate | None
    ) -> tuple[Candidate, int]:
        """Make the runs that are not made, fold by fold beside the fallback, and return the best of them, and the number of folds it was judged by."""
        folds = len(training.folds)
        for number in range(1, folds + 1):
            for run in runs:
                if len(run.trials) < number:
                    training.extend(run)
            best = min(runs, key=lambda run: run.curve_on(number).merit)
            scores = best.curve_on(number).best
            if scores is None:
                return best, number
            if fallback is None:
                continue
            training.extend(fallback)
            if _is_decided(scores, fallback.curve_on(number).best) is not None:
                return best, number
        return best, folds


def _untried(training: Training, beta: float | None, steps: int) -> Candidate:
    return Candidate(beta, steps, stops=training.recipes.stops(beta))


def _still_running(running: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates of a search that the next fold is for."""
    betas = [run for run in running if run.beta is not None]
    fallback = [run for run in running if run.beta is None]
    lowest = min((run.curve for run in betas), key=lambda curve: curve.merit).best
    if lowest is None:
        return fallback or betas
    decided = _is_decided(lowest, fallback[0].curve.best) if fallback else True
    if decided is False:
        return fallback
    close = [run for run in betas if run.curve.best is not None and run.curve.best.is_close_to(lowest, LEFT_OUT_ERRORS)]
    return close + (fallback if decided is None else [])


def _is_decided(scores: RowScores, fallback: RowScores | None) -> bool | None:
    """Tell whether some folds are enough to take a beta, or the fallback (false); nothing where the other folds are needed."""
    if fallback is None or scores.is_clearly_better_than(fallback, SPARED_ERRORS):
        return True
    return None if scores.is_ahead_of(fallback) else False
