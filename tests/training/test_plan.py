"""The plan of a validation: on how many folds a candidate is tried, and which run is kept. Scores are planted."""

from __future__ import annotations

from types import SimpleNamespace
from zlib import crc32

import pytest
import torch

from pyro_dgp import Validation
from pyro_dgp.training.held_out import RowScores
from pyro_dgp.training.plan import Plan
from pyro_dgp.training.trials import Training

STEPS, ROWS = 100, 40


class Planted(Training):
    """Runs that are not made: the NLL of each fold is given by beta and number of steps, with noise that is the same for all in a row.

    :param nll: mean NLL at the last step by (beta, steps): a number, or one for each fold.
    :param spread: standard deviation over rows of noise that is a beta's own.
    """

    def __init__(self, nll, folds=3, spread=0.1):
        self.nll, self.spread, self.made = nll, spread, []
        self.folds = [None] * folds  # type: ignore[list-item]
        self.recipes = SimpleNamespace(stops=lambda beta: beta is not None)  # type: ignore[assignment]

    def extend(self, candidate):
        fold, key = len(candidate.trials), (candidate.beta, candidate.steps)
        self.made.append((*key, fold))
        mean = self.nll[key]
        mean = mean[fold] if isinstance(mean, list) else mean
        shared = torch.randn(ROWS, generator=torch.Generator().manual_seed(fold), dtype=torch.float64)
        own = torch.randn(
            ROWS, generator=torch.Generator().manual_seed(crc32(str((key, fold)).encode())), dtype=torch.float64
        )
        own = (own - own.mean()) / own.std(correction=0) * self.spread
        scores = {candidate.steps: RowScores(mean + shared + own, None)}
        candidate.trials.append(SimpleNamespace(scores=scores, failure=None, best_state={}))


def planned(validation, fallback):
    lengths = validation.lengths(STEPS)
    return Plan.of(validation.betas, steps=STEPS, search=validation.search, lengths=lengths, fallback=fallback)


def carried_out(nll, betas=(0.1, 1.0), fallback=True, **options):
    training = Planted(nll, **options)
    plan = planned(Validation(betas=betas), fallback=fallback)
    search, left_out = plan.search(training)
    best, held_against, _ = plan.best(training, search)
    if best.beta is not None and fallback:
        assert (held_against.beta, held_against.steps) == (None, STEPS)
    return best, [each.beta for each in left_out], training.made


def test_a_candidate_that_is_far_behind_is_left_out_of_the_next_folds():
    nll = {(0.1, 25): 5.0, (1.0, 25): 0.0, (None, 25): 0.2, (1.0, 100): -1.0, (None, 100): 0.0}
    best, left_out, made = carried_out(nll)
    assert left_out == [0.1, None] and best.beta == 1.0
    assert [run for run in made if run[1] == 25] == [
        (0.1, 25, 0),
        (1.0, 25, 0),
        (None, 25, 0),
        (1.0, 25, 1),
        (1.0, 25, 2),
    ]


def test_a_search_ends_where_no_beta_is_ahead_of_the_fallback():
    nll = {(0.1, 25): 0.1, (1.0, 25): 0.05, (None, 25): 0.0}
    best, left_out, made = carried_out(nll)
    assert best.beta is None and left_out == [0.1, 1.0] and {fold for *_, fold in made} == {0}
    later = {(0.1, 25): [-0.05, 0.3, 0.0], (1.0, 25): 5.0, (None, 25): 0.0}
    best, left_out, made = carried_out(later)
    assert best.beta is None and left_out == [1.0, 0.1] and {fold for *_, fold in made} == {0, 1}


def test_a_fallback_that_is_behind_but_not_by_far_stays_in_the_search():
    """The betas are chosen from beside it: three standard errors are needed over all folds."""
    nll = {(0.1, 25): 5.0, (1.0, 25): -0.03, (None, 25): [0.0, -0.02, -0.02]}
    best, left_out, made = carried_out(nll)
    assert best.beta is None and left_out == [0.1] and len(made) == 7


def test_a_candidate_whose_lag_is_within_the_noise_stays():
    nll = {(0.1, 25): 0.02, (1.0, 25): 0.0, (None, 25): 0.03, (1.0, 100): -1.0, (None, 100): 0.0}
    _, left_out, made = carried_out(nll, fallback=False)
    assert left_out == [] and len([run for run in made if run[1] == 25]) == 6
    far = nll | {(0.1, 25): 0.02 + 0.5}
    assert carried_out(far, fallback=False)[1] == [0.1]
    assert carried_out(far, fallback=False, spread=2.0)[1] == []


def test_one_that_was_left_out_wins_no_search_by_the_folds_it_had():
    """Its first fold is the easiest: over all folds the one that stayed has the higher NLL."""
    nll = {(0.1, 25): 0.5, (1.0, 25): [0.0, 9.0, 9.0], (1.0, 100): 8.0}
    best, left_out, _ = carried_out(nll, fallback=False)
    assert left_out == [0.1] and best.beta == 1.0


@pytest.mark.parametrize(
    ("beta", "fallback", "folds", "kept"),
    [
        (-1.0, 0.0, 1, 1.0),  # far ahead: the other folds are spared
        (0.01, 0.0, 1, None),  # not ahead on the first fold
        ([-0.05, -0.05, -0.05], 0.0, 3, 1.0),  # three to five errors ahead in the end: all folds are needed
        ([-0.05, 0.3, 0.0], 0.0, 2, None),  # no longer ahead after the second
        ([-0.03, -0.02, -0.02], 0.0, 3, None),  # ahead, and not clearly
    ],
)
def test_the_long_runs_stop_at_the_fold_that_decides(beta, fallback, folds, kept):
    nll = {(0.1, 25): 5.0, (1.0, 25): 0.0, (None, 25): 5.0, (1.0, 100): beta, (None, 100): fallback}
    best, _, made = carried_out(nll)
    long = [run for run in made if run[1] == 100]
    assert long == [(each, 100, fold) for fold in range(folds) for each in (1.0, None)]
    assert best.beta == kept and best.steps == 100


def test_without_a_fallback_the_long_runs_have_all_folds():
    nll = {(0.1, 25): 0.0, (1.0, 25): 0.0, (1.0, 100): -3.0}
    best, _, made = carried_out(nll, fallback=False)
    assert [run for run in made if run[1] == 100] == [(1.0, 100, fold) for fold in range(3)]
    assert (best.beta, best.steps, len(best.trials)) == (1.0, 100, 3)


def test_scores_that_are_no_numbers_lose_or_are_an_error():
    nan = float("nan")
    nll = {(0.1, 25): nan, (1.0, 25): 0.0, (None, 25): 1.0, (1.0, 100): -1.0, (None, 100): nan}
    best, left_out, _ = carried_out(nll)
    assert left_out == [0.1, None] and best.beta == 1.0
    everywhere = dict.fromkeys([(0.1, 25), (1.0, 25), (1.0, 100), (0.1, 100)], nan)
    with pytest.raises(ValueError, match="the scores of held-out rows are infinite or NaN at every check"):
        carried_out(everywhere, fallback=False)


def test_the_steps_of_a_plan_are_the_most_that_a_fold_can_take():
    plan = planned(Validation(betas=(0.1, 1.0), runs=(0.25, 0.5, 1.0)), fallback=True)
    assert plan.steps == 3 * 25 + 150 + 100 and plan.lengths == [50, 100]
    assert planned(Validation(betas=(0.3,)), fallback=False).steps == 100
