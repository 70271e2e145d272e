import math

import numpy as np
import pytest
import torch

from pyro_dgp import ELBO, InducingPoints, MonteCarlo, PredictiveLogLikelihood, Validation, Variational, fit, predict
from pyro_dgp.fit import fit as plain_fit
from pyro_dgp.validation import fit_validated
from tests.examples import OneLayer, regression

pytestmark = pytest.mark.usefixtures("local")


def predictive(beta, rows):
    return PredictiveLogLikelihood(rows, beta)


def guided(x, y, points=10):
    torch.manual_seed(0)
    guide = Variational(OneLayer(), InducingPoints(points, covariance="diagonal"), MonteCarlo(1))
    guide.initialize(x, y)
    return guide


def state(guide):
    return {**guide.state_dict(prefix="guide."), **guide.model.state_dict(prefix="model.")}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a if isinstance(a[name], torch.Tensor))


def test_validation_rows_are_a_ninth_drawn_with_the_number_of_the_split():
    mask = Validation().held_out(90, 3)
    assert int(mask.sum()) == 10
    assert set(torch.nonzero(mask).squeeze(1).tolist()) == set(np.random.RandomState(3).permutation(90)[:10].tolist())
    assert not torch.equal(mask, Validation().held_out(90, 4))
    with pytest.raises(ValueError, match="leave none"):
        Validation().held_out(1, 0)


def test_held_out_rows_are_not_trained_on():
    x, y = regression(45)
    mask = Validation().held_out(45, 2)
    spoiled = y.clone()
    spoiled[mask] = 1e3
    guide, other = guided(x, y), guided(x, y)
    validation = Validation(checks=1)
    fit_validated(guide, predictive, x, spoiled, 40, 10, validation=validation, split=2, beta=0.3)
    plain_fit(PredictiveLogLikelihood(40, 0.3)(other.model, other), x[~mask], y[~mask], 40, 10)
    assert same(state(guide), state(other))


def test_the_best_checkpoint_is_kept_and_training_stops():
    x, y = regression(45)
    guide = guided(x, y)
    seen = []

    def report(step, total, figures):
        seen.append((step, total, figures["validation NLL"]))

    result = fit_validated(
        guide, predictive, x, y, 400, 45, 0.3, validation=Validation(checks=40, patience=3), beta=0.0, report=report
    )
    mask = Validation().held_out(45, 0)
    assert -float(predict(guide, x[mask]).log_prob(y[mask]).mean()) == pytest.approx(result.validation_nll, abs=1e-12)
    assert result.validation_nll == min(value for *_, value in seen)
    assert result.steps == len(seen) == result.best_step + 30 < 400  # three checks of ten steps without a better one
    assert seen[-1][:2] == (result.steps, 400)


def test_beta_is_searched_from_one_start_and_the_run_is_that_of_the_one_chosen():
    torch.manual_seed(3)
    x = torch.rand(72, 3) * 4 - 2
    y = 0.3 * torch.randn(72)  # noise alone: the KL must hold the function down
    guide, other = guided(x, y, 60), guided(x, y, 60)
    validation = Validation(betas=(1e-4, 10.0), search=0.5, patience=100)
    result = fit_validated(guide, predictive, x, y, 300, 72, 0.05, validation=validation)
    assert result.beta == 10.0 and set(result.searched) == {1e-4, 10.0}
    assert result.searched[1e-4] > result.searched[10.0]
    alone = fit_validated(other, predictive, x, y, 300, 72, 0.05, validation=validation, beta=10.0)
    assert same(state(guide), state(other))
    assert (alone.search_steps, alone.searched) == (0, {})
    assert alone.best_step == result.best_step
    assert result.search_steps == 300 and 0 < result.extra_seconds < result.seconds


def test_it_overfits_less_than_training_on_everything():
    torch.manual_seed(5)
    x, x_test = torch.rand(135, 3) * 2 - 1, torch.rand(300, 3) * 2 - 1
    y, y_test = (0.5 * v[:, 0] + 0.5 * torch.randn(len(v)) for v in (x, x_test))
    guide, other = guided(x, y, 60), guided(x, y, 60)
    validation = Validation(betas=(0.01, 1.0), checks=10)
    fit_validated(guide, predictive, x, y, 300, 135, 0.05, validation=validation)
    plain_fit(PredictiveLogLikelihood(135, 0.01)(other.model, other), x, y, 300, 135, 0.05)
    ours, theirs = (-float(predict(g, x_test).log_prob(y_test).mean()) for g in (guide, other))
    truth = 0.5 * math.log(2 * math.pi * 0.25) + 0.5
    assert truth < ours < truth + 0.5
    assert theirs > ours + 1.5


def test_any_loss_can_be_validated():
    x, y = regression(30)
    guide = guided(x, y)
    result = fit_validated(guide, lambda beta, rows: ELBO(rows), x, y, 50, 30, beta=1.0)
    assert math.isfinite(result.validation_nll)


def test_bad_arguments_are_one_sentence():
    for arguments, word in (({"share": 1.0}, "share"), ({"betas": ()}, "beta"), ({"search": 0.0}, "search")):
        with pytest.raises(ValueError, match=word):
            Validation(**arguments)


def test_a_callback_that_is_true_ends_the_training():
    x, y = regression(30)
    guide = guided(x, y)
    assert len(fit(ELBO(30)(guide.model, guide), x, y, 50, callback=lambda step, loss: step == 6).losses) == 7
