import copy
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule
from torch import nn

from pyro_dgp import (
    ELBO,
    Bernoulli,
    DeepGP,
    DeepKernel,
    Fallback,
    Gaussian,
    InducingPoints,
    MissingOutputs,
    Mixture,
    MonteCarlo,
    NaturalGradients,
    Prediction,
    PredictiveLogLikelihood,
    SigmaPoints,
    Validation,
    Variational,
    adam,
    fit,
    predict,
    remarks,
    scores,
)
from pyro_dgp.diagnosis.symptoms import Finding
from pyro_dgp.internal.spreads import spread_along
from pyro_dgp.training.held_out import CALIBRATED, Curve, RowScores, Targets, simplest_of_the_best, takes_few_values
from pyro_dgp.training.loop import fit as plain_fit
from pyro_dgp.training.outcome import _on_fallback
from pyro_dgp.training.remarks import Trained
from pyro_dgp.training.trials import Candidate, Training, Trial, Verdict
from pyro_dgp.training.validated_fit import fit_validated
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings
from tests.examples import OneLayer, TwoLayers, regression

pytestmark = pytest.mark.usefixtures("local")


OneFold = partial(Validation, folds=1)


def predictive(beta, rows):
    return PredictiveLogLikelihood(rows, beta)


def guided(x, y, points=10):
    torch.manual_seed(0)
    guide = Variational(OneLayer(), InducingPoints(points, covariance="diagonal"), MonteCarlo(1))
    guide.initialize(x, y)
    return guide


def state(guide):
    return copy.deepcopy({**guide.state_dict(prefix="guide."), **guide.model.state_dict(prefix="model.")})


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a if isinstance(a[name], torch.Tensor))


def test_validation_rows_are_a_ninth_drawn_with_the_number_of_the_split():
    mask = Validation().held_out(90, 3)
    assert int(mask.sum()) == 10
    assert set(torch.nonzero(mask).squeeze(1).tolist()) == set(np.random.RandomState(3).permutation(90)[:10].tolist())
    assert not torch.equal(mask, Validation().held_out(90, 4))
    with pytest.raises(ValueError, match="leave none"):
        Validation().held_out(1, 0)


def test_held_out_rows_are_not_trained_on_nor_seen_at_the_start():
    x, y = regression(45)
    mask = Validation().held_out(45, 2)
    spoiled_x, spoiled = x.clone(), y.clone()
    spoiled[mask], spoiled_x[mask] = 1e3, 1e3
    other = guided(x[~mask], y[~mask])
    torch.manual_seed(0)
    guide = Variational(OneLayer(), InducingPoints(10, covariance="diagonal"), MonteCarlo(1))
    validation = OneFold(checks=1)
    fit_validated(
        guide, predictive, spoiled_x, spoiled, steps=40, batch_size=10, validation=validation, split=2, beta=0.3
    )
    plain_fit(PredictiveLogLikelihood(40, 0.3)(other.model, other), x[~mask], y[~mask], steps=40, batch_size=10)
    assert same(state(guide), state(other))


def test_the_best_checkpoint_is_kept_and_training_stops():
    x, y = regression(45)
    guide = guided(x, y)
    seen = []

    def report(step, total, figures):
        assert ("validation NLL" in figures) == (step > 10)  # the callback comes before the check of its step
        seen.append((step, total, figures.get("validation NLL", math.inf)))

    result = fit_validated(
        guide,
        predictive,
        x,
        y,
        steps=400,
        batch_size=45,
        learning_rate=0.3,
        validation=OneFold(checks=40, patience=3),
        beta=0.0,
        report=report,
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
    validation = OneFold(betas=(1e-4, 10.0), search=0.5, patience=100)
    result = fit_validated(guide, predictive, x, y, steps=300, batch_size=72, learning_rate=0.05, validation=validation)
    assert result.beta == 10.0 and set(result.searched) == {1e-4, 10.0}
    assert result.searched[1e-4] > result.searched[10.0]
    alone = fit_validated(
        other, predictive, x, y, steps=300, batch_size=72, learning_rate=0.05, validation=validation, beta=10.0
    )
    assert same(state(guide), state(other))
    assert (alone.search_steps, alone.searched) == (0, {})
    assert alone.best_step == result.best_step
    assert result.search_steps == 300 and 0 < result.extra_seconds < result.seconds


def test_a_shorter_run_stands_beside_the_full_one_and_is_not_made_twice():
    x, y = regression(45)
    mask = Validation().held_out(45, 0)

    def run(learning_rate=0.3, **choices):
        guide, totals = guided(x, y), []
        result = fit_validated(
            guide,
            predictive,
            x,
            y,
            steps=80,
            batch_size=45,
            learning_rate=learning_rate,
            report=lambda step, total, _: totals.append((step, total)),
            **choices,
        )
        nll = -float(predict(guide, x[mask]).log_prob(y[mask]).mean())
        assert nll == pytest.approx(result.validation_nll, abs=1e-12) and totals[-1] == (result.steps, totals[0][1])
        return result, state(guide), totals[0][1]

    never = {"checks": 4, "patience": 100}
    (short, short_state, _), (long, long_state, _) = (
        run(validation=OneFold(runs=(share,), **never), beta=0.0) for share in (0.25, 1.0)
    )
    both, both_state, total = run(validation=OneFold(runs=(0.25, 1.0), **never), beta=0.0)
    assert (short.steps, long.steps, both.steps, total) == (20, 80, 100, 100)
    better, better_state = min(((short, short_state), (long, long_state)), key=lambda pair: pair[0].validation_nll)
    assert (both.validation_nll, both.run_steps) == (better.validation_nll, better.run_steps)
    assert short.validation_nll != long.validation_nll and same(both_state, better_state)
    searched, *_ = run(learning_rate=0.01, validation=OneFold(betas=(0.0, 0.1), search=0.25, runs=(0.25, 1.0), **never))
    assert (searched.search_steps, searched.steps) == (40, 120)


def test_it_overfits_less_than_training_on_everything():
    torch.manual_seed(5)
    x, x_test = torch.rand(135, 3) * 2 - 1, torch.rand(300, 3) * 2 - 1
    y, y_test = (0.5 * v[:, 0] + 0.5 * torch.randn(len(v)) for v in (x, x_test))
    guide, other = guided(x, y, 60), guided(x, y, 60)
    validation = OneFold(betas=(0.01, 1.0), checks=10)
    fit_validated(guide, predictive, x, y, steps=300, batch_size=135, learning_rate=0.05, validation=validation)
    plain_fit(
        PredictiveLogLikelihood(135, 0.01)(other.model, other), x, y, steps=300, batch_size=135, learning_rate=0.05
    )
    ours, theirs = (-float(predict(g, x_test).log_prob(y_test).mean()) for g in (guide, other))
    truth = 0.5 * math.log(2 * math.pi * 0.25) + 0.5
    assert truth < ours < truth + 0.5
    assert theirs > ours + 1.5


def test_any_loss_can_be_validated():
    x, y = regression(30)
    guide = guided(x, y)
    result = fit_validated(guide, lambda beta, rows: ELBO(rows), x, y, steps=50, batch_size=30, beta=1.0)
    assert math.isfinite(result.validation_nll)


def test_bad_arguments_are_one_sentence():
    for arguments, word in (
        ({"share": 1.0}, "share"),
        ({"betas": ()}, "beta"),
        ({"search": 0.0}, "search"),
        ({"runs": (0.0,)}, "runs lists"),
    ):
        with pytest.raises(ValueError, match=word):
            Validation(**arguments)
    for betas in (0.1, "0.1"):
        validation = Validation()
        object.__setattr__(validation, "betas", betas)  # the type checker of the tests would raise before
        with pytest.raises(TypeError, match=r"betas is a tuple of numbers, got .*0.1.*: for a single one write betas"):
            validation.__post_init__()
    validation = Validation()
    object.__setattr__(validation, "runs", 0.5)
    with pytest.raises(TypeError, match=r"runs is a tuple of shares, got 0.5"):
        validation.__post_init__()
    for beta in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"a beta is a finite number, 0 or more, got {beta}"):
            Validation(betas=(0.05, beta))
    assert Validation(betas=(0.0,)).betas == (0.0,)


def test_training_ends_when_it_is_told_to_and_not_by_what_a_progress_bar_returns():
    x, y = regression(30)
    guide = guided(x, y)
    objective = ELBO(30)(guide.model, guide)
    assert len(fit(objective, x, y, steps=50, stop=lambda steps: steps == 7).losses) == 7
    assert len(fit(objective, x, y, steps=5, callback=lambda step, loss: True).losses) == 5
    fitted = METHODS["svgp"].inference.run(
        OneLayer(), x, y, settings=Settings(epochs=4, inducing=5), progress=lambda *_: True
    )
    assert fitted.steps == 4


def test_a_beta_that_breaks_down_loses_the_search_and_no_state_is_left_broken():
    x, y = regression(45)
    guide = guided(x, y)
    before = state(guide)

    def loss(beta, rows):
        return PredictiveLogLikelihood(rows, math.inf if beta == 0.01 else beta)

    result = fit_validated(guide, loss, x, y, steps=40, validation=OneFold(betas=(0.01, 0.05), search=0.5))
    assert result.beta == 0.05 and result.searched[0.01] == math.inf
    other = guided(x, y)
    with pytest.raises(ValueError, match="the loss is"):
        fit_validated(other, loss, x, y, steps=40, beta=0.01, validation=OneFold())
    assert same(state(other), before)


def test_a_long_run_that_breaks_down_after_the_search_is_said():
    x, y = regression(45)
    made = []

    def loss(beta, rows):
        made.append(beta)
        return PredictiveLogLikelihood(rows, beta if len(made) < 3 else math.inf)

    validation = OneFold(betas=(0.01, 0.05), search=0.5)
    result = fit_validated(guided(x, y), loss, x, y, steps=40, validation=validation, learning_rate=0.002)
    assert len(made) == 3 and result.run_steps == 20 and "the loss is" in result.failure
    assert fit_validated(guided(x, y), predictive, x, y, steps=4, beta=0.1).failure is None


def test_the_checks_do_not_touch_the_noise_of_training_and_the_same_seed_gives_the_same_run():
    x, y = regression(45)
    states = []
    for checks in (1, 8):
        torch.manual_seed(0)
        guide = Variational(TwoLayers(x), InducingPoints(6), MonteCarlo(3))
        torch.manual_seed(checks)  # whatever the state of the generator
        guide.initialize(x, y)
        with torch.no_grad():
            for parameter in guide.parameters():
                parameter.copy_(torch.linspace(0.1, 1.0, parameter.numel()).reshape(parameter.shape))
        generator = torch.get_rng_state()
        validation = OneFold(checks=checks, patience=100)
        result = fit_validated(guide, predictive, x, y, steps=16, validation=validation, beta=0.05, seed=4)
        assert torch.equal(generator, torch.get_rng_state())
        states.append((result, state(guide)))
    if states[1][0].best_step == 16:
        assert same(states[0][1], states[1][1])
    assert states[1][0].validation_nll <= states[0][0].validation_nll


class Dropout(PyroModule):
    """A model on features of a network with dropout and batch normalisation."""

    def __init__(self, x):
        super().__init__()
        network = nn.Sequential(nn.Linear(x.shape[-1], 20), nn.BatchNorm1d(20), nn.Dropout(0.5), nn.Linear(20, 2))
        self.inner = DeepKernel(network, OneLayer())

    def forward(self, x, y=None):
        return self.inner(x, y)


def test_predictions_are_made_in_evaluation_mode():
    x, y = regression(45, inputs=3)
    model = Dropout(x)
    guide = Variational(model, InducingPoints(6), MonteCarlo(1))
    result = fit_validated(guide, predictive, x, y, steps=20, batch_size=45, beta=0.05, validation=OneFold())
    prediction = predict(guide, x)
    torch.testing.assert_close(prediction.mean, predict(guide, x, batch_size=7).mean)
    torch.testing.assert_close(prediction.mean[:1], predict(guide, x[:1]).mean)
    mask = Validation().held_out(45, 0)
    assert -float(predict(guide, x[mask]).log_prob(y[mask]).mean()) == pytest.approx(result.validation_nll)
    assert all(module.training for module in model.modules())


def curve(beta, nll, crps=None):
    """A candidate with one check at step 10."""
    return Curve(beta, 10, {10: RowScores(torch.tensor(nll), None if crps is None else torch.tensor(crps))})


def test_the_largest_beta_within_one_standard_error_of_the_differences_is_taken():
    best, near, far = [1.0, 2.0, 3.0, 4.0], [1.2, 1.9, 3.2, 3.9], [1.2, 2.2, 3.2, 4.2]
    assert simplest_of_the_best([curve(0.01, best), curve(0.1, near), curve(1.0, far)]).beta == 0.1
    between = [1.5, 1.9, 3.5, 3.9]  # worse by 0.2, which is 1.33 standard errors of 0.15
    assert simplest_of_the_best([curve(0.01, best), curve(0.1, between)]).beta == 0.01
    # as mean and spread over rows, far would be within one standard error: it is the differences that tell
    assert math.sqrt(5 / 4) / 2 > 0.2
    broken = Curve(1.0, 10, {})
    ended = Curve(None, 10, {5: RowScores(torch.tensor(best), None), 10: RowScores(torch.tensor(far), None)}).at_end()
    assert ended.best_step == 10 and ended.nll == pytest.approx(2.7)
    assert Curve(None, 10, {5: RowScores(torch.tensor(best), None)}).at_end().best is None
    assert simplest_of_the_best([curve(0.01, best), broken]).beta == 0.01 and broken.merit == math.inf


def test_a_beta_must_be_better_than_the_fallback_by_three_standard_errors_in_nll_and_not_worse_in_crps():
    best, far, between = [1.0, 2.0, 3.0, 4.0], [1.2, 2.2, 3.2, 4.2], [1.5, 1.9, 3.5, 3.9]
    assert simplest_of_the_best([curve(0.01, best), curve(None, far)]).beta == 0.01
    assert simplest_of_the_best([curve(0.01, best), curve(None, between)]).beta is None  # 1.33 standard errors
    assert simplest_of_the_best([curve(0.01, best), curve(None, between), curve(0.1, far)]).beta is None
    # the CRPS pays for nothing that the NLL does not show, and may be worse by one standard error of 0.05
    sharp, same, blunt = [0.1, 0.1, 0.1, 0.1], [0.9, 1.1, 1.0, 1.0], [1.0, 1.2, 1.1, 1.1]
    fallback = curve(None, between, crps=[1.0, 1.0, 1.0, 1.0])
    assert simplest_of_the_best([curve(0.01, best, crps=sharp), fallback]).beta is None
    fallback = curve(None, far, crps=[1.0, 1.0, 1.0, 1.0])
    assert simplest_of_the_best([curve(0.01, best, crps=same), fallback]).beta == 0.01
    assert simplest_of_the_best([curve(0.01, best, crps=blunt), fallback]).beta is None
    # one of them breaks down
    assert simplest_of_the_best([curve(0.01, best), Curve(None, 10, {})]).beta == 0.01
    assert simplest_of_the_best([Curve(0.01, 10, {}), fallback]).beta is None


def test_a_check_that_is_too_sure_is_not_the_best_where_targets_take_few_values():
    """On wine_red the lowest CRPS of a run was that of a check whose NLL, 1.31, was higher by 0.08 than that of an earlier one."""
    normal = torch.distributions.Normal(torch.zeros(20_000), 0.7)
    y = normal.sample()
    crps = 0.7 * (y / 0.7 * (2 * normal.cdf(y) - 1) + 2 * (normal.log_prob(y) + math.log(0.7)).exp() - math.pi**-0.5)
    calibrated = RowScores(-normal.log_prob(y), crps)
    assert float(calibrated.nll.mean()) == pytest.approx(math.log(float(crps.mean())) + CALIBRATED, abs=0.02)
    early, late = (
        RowScores(torch.full((4,), nll), torch.full((4,), crps), by_crps=True)
        for nll, crps in ((1.224, 0.4578), (1.308, 0.4482))
    )
    spikes = replace(late, nll=torch.full((4,), -9.0))
    assert early.merit < late.merit and spikes.merit < early.merit
    assert spikes.merit == replace(late, nll=torch.full((4,), 0.0)).merit  # how sharp they are counts for nothing
    assert replace(late, is_single=False).merit == spikes.merit  # the NLL of several outputs is a sum, in their units


def test_the_crps_alone_decides_where_targets_take_few_values():
    """Spikes on the values of the targets have any density; on wine_red they cost 42 nats a row at other rows."""

    def of_few(beta, nll, crps):
        return Curve(beta, 10, {10: RowScores(torch.tensor(nll), torch.tensor(crps), by_crps=True)})

    spikes, sound, level = [-9.0, -8.0, -9.0, -8.0], [1.0, 1.1, 1.0, 1.1], [1.0, 1.0, 1.0, 1.0]
    fallback = of_few(None, sound, level)
    narrow, wide = of_few(0.01, spikes, [0.8, 0.7, 0.8, 0.7]), of_few(1.0, spikes, [1.0, 0.7, 1.2, 1.0])
    assert simplest_of_the_best([narrow, fallback]).beta == 0.01
    assert simplest_of_the_best([wide, fallback]).beta is None  # lower by 0.3 standard errors
    assert wide.best.is_ahead_of(fallback.best) and not of_few(0.1, spikes, [1.1] * 4).best.is_ahead_of(fallback.best)
    assert narrow.merit == pytest.approx(2 * math.log(0.75) + CALIBRATED)
    assert of_few(0.1, [math.nan] * 4, level).merit == math.inf
    assert RowScores.joined([narrow.best, fallback.best]).by_crps


def test_targets_that_take_few_values():
    quality = torch.arange(600) % 6 / 5.0
    assert takes_few_values(quality) and not takes_few_values(quality[:200])
    assert takes_few_values(torch.cat([quality, torch.full((50,), math.nan)])) and not takes_few_values(
        torch.randn(600)
    )


def scores_in(units, errors):
    """Scores of a calibrated prediction of two outputs, whose errors have these standard deviations, in some units."""
    generator = torch.Generator().manual_seed(0)
    units = torch.tensor(units)
    z = torch.randn(200, 2, generator=generator)
    scale = units * torch.tensor(errors)
    mean = units * z + scale * torch.randn(200, 2, generator=generator)

    def mixture(rows):
        return Mixture(dist.Normal(mean[None, rows], scale.expand(1, 200, 2)[:, rows]), torch.zeros(1))

    prediction = Prediction(mixture, rows=200, event_shape=torch.Size([2]))
    return RowScores.of(prediction, units * z, (prediction, units * z), targets=Targets(units * z))


@pytest.mark.parametrize("units", [(8.0, 8.0), (1.0, 1e4), (1e4, 1.0)])
def test_no_choice_depends_on_the_unit_of_an_output(units):
    first, second = ([0.2, 0.6], [0.7, 0.2])
    own = [scores_in((1.0, 1.0), errors) for errors in (first, second)]
    scaled = [scores_in(units, errors) for errors in (first, second)]
    assert scaled[0].merit - scaled[1].merit == pytest.approx(own[0].merit - own[1].merit, abs=1e-9)
    assert scaled[0].is_clearly_better_than(scaled[1]) == own[0].is_clearly_better_than(own[1])
    torch.testing.assert_close(scaled[0].crps, own[0].crps)


def test_scales_are_those_of_each_output_of_each_group():
    y = torch.randn(3, 50, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1e4])
    y[1] *= 7
    y[2, :, 1] = 4.0  # all the same
    whole = Targets(y).scales(1)
    torch.testing.assert_close(whole[:2], y[:2].std(1, correction=0, keepdim=True))
    assert whole.shape == (3, 1, 2) and whole[2, 0, 1] == 1.0
    gaps = torch.where(torch.arange(50)[:, None] < 20, y, math.nan)
    torch.testing.assert_close(Targets(gaps).scales(1)[:2], y[:2, :20].std(1, correction=0, keepdim=True))
    assert Targets(1e4 * y[0, :, 0]).scales(0).tolist() == [1.0]
    assert Targets(y[0] > 0).scales(1).tolist() == [[1.0, 1.0]] and Targets(y[0, :, 0] > 0).scales(0).tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 3.7, 1000.1])
def test_numbers_that_are_the_same_do_not_vary_by_rounding(value, dtype):
    same = torch.full((100,), value, dtype=dtype)
    y = torch.stack([torch.randn(100, dtype=dtype), same, torch.where(torch.arange(100) < 7, math.nan, same)], -1)
    assert spread_along(y, 0)[0, 1:].tolist() == [0.0, 0.0]
    assert Targets(y).scales(1)[0, 1:].tolist() == [1.0, 1.0]
    assert spread_along(torch.full((3, 1), math.nan), 0).tolist() == [[0.0]]
    torch.testing.assert_close(spread_along(y[:, :1], 0)[0], y[:, :1].std(0, correction=0))


@pytest.mark.usefixtures("local")
def test_a_validation_takes_boolean_targets():
    x, y = regression(40)
    guide = Variational(OneLayer(likelihood=Bernoulli()), InducingPoints(6), MonteCarlo(1))
    fitted = fit_validated(
        guide, lambda beta, rows: ELBO(rows), x, y > 0, steps=2, validation=Validation(betas=(1.0,), checks=1)
    )
    assert fitted.validation_rows > 0


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("values", [2, 300])
def test_a_validation_knows_whether_its_targets_take_few_values(values, monkeypatch):
    x, y = torch.randn(300, 2), (torch.arange(300) % values).to(torch.get_default_dtype()) / values
    seen, of = set(), RowScores.of

    def watched(*args, targets):
        scores = of(*args, targets=targets)
        seen.add((targets.take_few_values, scores.by_crps))
        return scores

    monkeypatch.setattr(RowScores, "of", watched)
    fit_validated(guided(x, y), predictive, x, y, steps=2, validation=Validation(betas=(1.0,), checks=1))
    assert seen == {(values == 2, values == 2)}


def test_the_remark_on_a_fallback_says_what_decided():
    scores = [RowScores(torch.zeros(4), torch.tensor([value] * 4), by_crps=True) for value in (1.1, 1.0)]
    tried = []
    for beta, own in zip((0.05, None), scores, strict=True):
        candidate = Candidate(beta, 10)
        trial = Trial(lambda: None, steps=10, checks=1, patience=None, state=None, say=lambda _: None)
        trial.scores = {10: own}
        candidate.trials.append(trial)
        tried.append(candidate)
    (said,) = _on_fallback(tried[1], tried)
    assert "the targets take few values" in said and said.endswith("beta 0.05 is 1.100 times the fallback's")


def test_the_mean_is_not_paid_for_the_density():
    sharp = curve(0.01, [0.9, 1.0], crps=[0.3, 0.3])
    sound = curve(0.1, [1.0, 1.1], crps=[0.2, 0.2])
    assert simplest_of_the_best([sharp, sound]).beta == 0.1
    assert sharp.merit - sound.merit == pytest.approx(-0.1 + math.log(1.5))
    assert simplest_of_the_best([curve(0.01, [0.9, 1.0]), curve(0.1, [1.0, 1.1])]).beta == 0.01
    scaled = RowScores(sound.best.nll + math.log(3), 3 * sound.best.crps)  # y in other units
    assert scaled.merit - sound.merit == pytest.approx(2 * math.log(3))


def test_folds_hold_out_each_row_once_at_most_and_as_many_as_are_needed():
    validation = Validation()
    counts = {20: 3, 300: 3, 455: 3, 899: 2, 900: 2, 1790: 2, 1800: 1, 10**6: 1}
    assert {rows: validation.num_folds(rows) for rows in counts} == counts
    masks = torch.stack([validation.held_out(455, 3, fold) for fold in range(3)])
    assert masks.sum(1).tolist() == [51] * 3 and masks.sum(0).max() == 1
    assert Validation(share=0.5).num_folds(20) == 2 and Validation(folds=3).num_folds(10**6) == 3
    with pytest.raises(ValueError, match="1 to 4 in number, got 5"):
        Validation(share=0.25, folds=5)


@pytest.mark.parametrize(("share", "folds"), [(0.5, 2), (1 / 3, 3), (0.25, 4), (1 / 9, 9)])
def test_as_many_folds_as_are_asked_for_are_held_out_where_the_share_rounds_up(share, folds):
    validation = Validation(share=share, folds=folds)
    for rows in range(folds, 200):
        masks = torch.stack([validation.held_out(rows, 0, fold) for fold in range(validation.num_folds(rows))])
        assert len(masks) == folds and masks.sum(0).max() == 1 and masks.sum(1).min() >= 1
        assert abs(int(masks[0].sum()) - share * rows) <= 1


def test_several_folds_choose_the_step_and_all_rows_are_trained_to_it():
    x, y = regression(45)
    validation = Validation(folds=3, checks=8, betas=(1e-3, 0.5), search=0.5)
    guide, other = guided(x, y), guided(x, y)
    result = fit_validated(guide, predictive, x, y, steps=80, batch_size=45, learning_rate=0.3, validation=validation)
    assert (result.rows, result.validation_rows, result.folds) == (45, 15, 3)
    plain_fit(
        predictive(result.beta, 45)(other.model, other),
        x,
        y,
        steps=result.run_steps,
        batch_size=45,
        learning_rate=0.3,
        stop=lambda step: step >= result.best_step,
    )
    assert same(state(guide), state(other))
    pooled = []
    for fold in range(3):
        mask = validation.held_out(45, 0, fold)
        part = guided(x, y)
        plain_fit(
            predictive(result.beta, 40)(part.model, part),
            x[~mask],
            y[~mask],
            steps=result.run_steps,
            batch_size=45,
            learning_rate=0.3,
            stop=lambda step: step >= result.best_step,
        )
        found = predict(part, x[mask])
        pooled.append((-found.log_prob(y[mask]), found.crps(y[mask])))
    nll, crps = (torch.cat(parts) for parts in zip(*pooled, strict=True))
    assert result.validation_nll == pytest.approx(float(nll.mean()), abs=1e-10)
    assert result.validation_crps == pytest.approx(float(crps.mean()), abs=1e-10)
    assert result.validation_error == pytest.approx(float(nll.std(correction=0)) / 15**0.5, abs=1e-10)


def test_the_fallback_is_taken_where_no_beta_is_better():
    torch.manual_seed(3)
    x = torch.rand(72, 3) * 4 - 2
    y = 0.3 * torch.randn(72)  # noise alone
    validation = Validation(betas=(1e-4,), search=0.5, folds=2)
    guide = guided(x, y, 60)
    result = fit_validated(
        guide,
        predictive,
        x,
        y,
        steps=200,
        learning_rate=0.05,
        validation=validation,
        fallback=Fallback(ELBO),
        batch_size=72,
    )
    assert result.beta is None and set(result.searched) == {None, 1e-4}
    assert result.searched[None] < result.searched[1e-4]
    given = fit_validated(
        guided(x, y, 60),
        predictive,
        x,
        y,
        steps=20,
        validation=validation,
        fallback=Fallback(ELBO),
        beta=0.1,
        batch_size=72,
    )
    assert given.beta == 0.1 and given.searched == {}


@pytest.mark.parametrize(("folds", "own"), [(1, None), (2, None), (2, NaturalGradients())])
def test_a_fallback_may_have_a_guide_and_an_optimiser_of_its_own_and_is_trained_on_all_rows_for_all_steps(folds, own):
    torch.manual_seed(3)
    x = torch.rand(72, 3) * 4 - 2
    y = 0.3 * torch.randn(72)
    guide = guided(x, y, 60)
    full = Variational(guide.model, InducingPoints(7), MonteCarlo(1))
    torch.manual_seed(0)
    full.initialize(x, y)
    before = state(guide)
    result = fit_validated(
        guide,
        predictive,
        x,
        y,
        steps=200,
        learning_rate=0.05,
        validation=Validation(betas=(1e-4,), search=0.5, folds=folds),
        fallback=Fallback(ELBO, full, optimizer=own),
        batch_size=72,
    )
    assert result.beta is None and result.guide is full
    assert (result.rows, result.best_step, result.run_steps) == (72, 200, 200)
    assert result.steps == result.search_steps + 200
    alone = Variational(OneLayer(), InducingPoints(7), MonteCarlo(1))
    torch.manual_seed(0)
    alone.initialize(x, y)
    optimizer = own or adam
    plain_fit(ELBO(72)(alone.model, alone), x, y, steps=200, batch_size=72, learning_rate=0.05, optimizer=optimizer)
    assert same(state(full), state(alone))
    assert all(
        torch.equal(value, before["guide." + name])
        for name, value in guide.processes.state_dict(prefix="processes.").items()
    )


@pytest.mark.parametrize("folds", [1, 2])
def test_a_fallback_that_overfits_is_kept_at_its_best_check(folds):
    torch.manual_seed(3)
    x, y = torch.rand(72, 3) * 4 - 2, 0.3 * torch.randn(72)

    def overfitting(rows):
        return PredictiveLogLikelihood(rows, 1e-4)

    def alone():
        torch.manual_seed(0)
        guide = Variational(OneLayer(), InducingPoints(60, covariance="diagonal"), MonteCarlo(1))
        guide.initialize(x, y)
        return guide

    validation = Validation(betas=(2e-4,), search=0.5, folds=folds)
    options = {"steps": 200, "learning_rate": 0.05, "validation": validation, "batch_size": 72}
    to_the_end = fit_validated(alone(), predictive, x, y, fallback=Fallback(overfitting), **options)
    result = fit_validated(alone(), predictive, x, y, fallback=Fallback(overfitting, stops=True), **options)
    assert result.beta is None and result.best_step < 60 < 100 <= result.run_steps
    assert to_the_end.best_step == 200 and to_the_end.validation_nll > result.validation_nll + 1
    mask, other = validation.held_out(72, 0), alone()
    kept = ~mask if folds == 1 else torch.ones_like(mask)
    assert result.rows == int(kept.sum())
    options = {"steps": result.run_steps, "batch_size": 72, "learning_rate": 0.05}
    stop = lambda step: step >= result.best_step
    plain_fit(overfitting(result.rows)(other.model, other), x[kept], y[kept], stop=stop, **options)
    assert same(state(result.guide), state(other))


def test_rows_without_any_output_do_not_count_in_the_scores_of_a_validation():
    x, y = regression(36)
    y[torch.arange(36) % 3 > 0] = math.nan
    torch.manual_seed(0)
    model = OneLayer(likelihood=MissingOutputs(Gaussian()))
    guide = Variational(model, InducingPoints(10, covariance="diagonal"), MonteCarlo(1))
    guide.initialize(x, y)
    validation = OneFold(betas=(1.0,), share=1 / 3)
    result = fit_validated(guide, predictive, x, y, steps=20, batch_size=36, validation=validation)
    mask = validation.held_out(36, 0)
    assert y[mask].isnan().any() and not y[mask].isnan().all()
    expected = scores(predict(guide, x[mask]), y[mask])
    assert (result.validation_nll, result.validation_crps) == pytest.approx((expected["nll"], expected["crps"]))


SURE = ("collapsed noise", "overfitted")


def finding(symptom):
    return Finding(symptom=symptom, seen=symptom, remedy="", page="")


def contest(monkeypatch, kept, others, gap, **options):
    """A fit whose fallback starts far off and loses: what is found of both, and the gap of the fit, are planted."""
    torch.manual_seed(0)
    x, y = regression(72)
    guide = guided(x, y)
    full = Variational(guide.model, InducingPoints(7), MonteCarlo(1))
    full.initialize(x, y)
    with torch.no_grad():
        for value in full.parameters():
            value.add_(3.0)
    start, seen, progress = {guide: state(guide), full: state(full)}, [], []

    def of_fallback(self, *_, **__):
        assert self.guide is full
        seen.append(same(state(full), start[full]))
        return [finding(each) for each in others[(len(seen) - 1) % len(others)]]

    def of_fit(self, curve, last):
        of = self.recipes.guide_of(curve.beta)
        assert not same(state(of), start[of]) and last.step > 0  # it is judged as it was kept
        found = [finding(each) for each in (kept if curve.beta else ("flat hidden layer",))]
        return Verdict(found, gap if curve.beta else 0.0)

    monkeypatch.setattr(Trained, "findings", of_fallback)
    monkeypatch.setattr(Training, "verdict", of_fit)
    arguments = {"steps": 20, "batch_size": 72, "learning_rate": 0.05, "fallback": Fallback(ELBO, full)} | options
    result = fit_validated(guide, predictive, x, y, report=lambda *args: progress.append(args), **arguments)
    assert not any(seen)  # the fallback is looked at as it was trained
    assert all(done <= total for done, total, _ in progress) and progress[-1][0] == result.steps
    said = [each for each in result.remarks if "had next to no noise and overfitted" in each]
    assert (len(said) == 1) is (result.guide is full) is (result.beta is None)
    return result


NOISE, NONE = ((),), (("collapsed noise",),)


@pytest.mark.parametrize("folds", [1, 2])
@pytest.mark.parametrize(
    ("kept", "others", "gap", "is_dropped"),
    [
        (SURE, NOISE, 9.0, True),
        (SURE, NONE, 9.0, False),  # the fallback has no noise either
        (SURE[:1], NOISE, 9.0, False),
        (SURE[1:], NOISE, 9.0, False),
        (SURE, NOISE, 0.1, False),  # it is ahead by far more than it overfits
    ],
)
def test_a_fit_that_takes_noise_for_its_function_is_dropped_for_a_fallback_that_has_noise(
    folds, kept, others, gap, is_dropped, monkeypatch
):
    result = contest(monkeypatch, kept, others, gap, validation=Validation(checks=2, folds=folds))
    assert (result.beta is None) is is_dropped
    if is_dropped:
        assert (result.rows, result.best_step, result.run_steps, result.folds) == (72, 20, 20, 1)
        assert result.validation_nll == pytest.approx(1.9, abs=0.4) and result.remarks[1:] == ["flat hidden layer"]
    else:
        assert result.remarks == list(kept)


def test_a_fallback_without_noise_on_one_of_its_folds_has_no_more_than_the_fit(monkeypatch):
    monkeypatch.setattr("pyro_dgp.training.plan.SPARED_ERRORS", math.inf)  # all folds
    options = {"validation": Validation(checks=2, folds=2)}
    assert contest(monkeypatch, SURE, ((), ()), 9.0, **options).beta is None
    assert contest(monkeypatch, SURE, ((), ("collapsed noise",)), 9.0, **options).beta is not None


def test_a_fallback_that_a_search_of_all_steps_has_left_out_is_held_against_the_fit(monkeypatch):
    options = {"validation": Validation(checks=2, folds=2, search=1.0)}
    assert contest(monkeypatch, SURE, NOISE, 9.0, **options).beta is None
    assert contest(monkeypatch, SURE, NONE, 9.0, **options).beta is not None


def test_a_fit_stays_where_the_fallback_cannot_be_trained_in_its_place(monkeypatch):
    kept = Training.keep

    def broken(self, best):
        if best.beta is None:
            self.restore()
            raise ValueError("it broke")
        return kept(self, best)

    sound = contest(monkeypatch, (), NOISE, 9.0, validation=Validation(checks=2, folds=1))
    monkeypatch.setattr(Training, "keep", broken)
    result = contest(monkeypatch, SURE, NOISE, 9.0, validation=Validation(checks=2, folds=1))
    assert result.failure == "it broke" and result.beta is not None
    assert same(state(result.guide), state(sound.guide))


def test_a_fit_that_is_too_sure_is_remarked_where_its_loss_can_make_it_so():
    x, y = regression(72)
    for loss, is_said in ((ELBO(72), False), (PredictiveLogLikelihood(72), True)):
        guide = guided(x, y, 30)
        result = plain_fit(loss(guide.model, guide), x, y, steps=150, batch_size=72, learning_rate=0.05)
        with torch.no_grad():
            guide.model.likelihood.variance_unconstrained.fill_(-30.0)
            getattr(guide.processes, "y/f").q.scale_unconstrained.fill_(-30.0)
        assert any("at its floor" in each for each in result.remarks)
        assert any("too sure" in each for each in result.remarks) is is_said
        assert any("too sure" in each for each in remarks(guide, x, y))  # whatever it was trained by


def test_a_fallback_that_was_scored_after_a_part_of_the_steps_has_not_overfitted():
    torch.manual_seed(0)
    x = torch.rand(90, 1) * 6 - 3
    y = torch.sin(2 * x[:, 0]) + 0.05 * torch.randn(90)
    y = y / y.std()
    model = DeepGP(x, layers=1)
    guide = Variational(model, InducingPoints(20, "diagonal", hidden_scale=1.0), SigmaPoints("qr3", 10))
    full = Variational(model, InducingPoints(20), MonteCarlo(1))
    result = fit_validated(guide, predictive, x, y, steps=200, batch_size=256, fallback=Fallback(ELBO, full))
    assert result.beta is None and result.validation_nll == result.searched[None]
    assert result.validation_nll > 0.3 - float(predict(full, x).log_prob(y).mean())
    assert not any("overfitted" in each for each in result.remarks)


def test_the_lead_of_a_beta_over_a_fallback_that_is_kept_is_said():
    def planted(beta, nll, steps=10):
        trial = Trial(lambda: None, steps=steps, checks=1, patience=None, state=None, say=lambda scores: None)
        trial.scores = {steps: RowScores(torch.tensor(nll), None)}
        return Candidate(beta, steps, [trial])

    fallback = planted(None, [1.0, 1.0, 1.0, 1.0])
    betas = [planted(0.05, [0.9, 0.5, 1.0, 1.2]), planted(1.0, [1.0, 1.0, 1.0, 1.1])]
    (sentence,) = _on_fallback(fallback, [*betas, fallback])
    assert sentence.startswith(
        "the fallback is kept: beta 0.05 is ahead of it by 0.10 nats a row (+- 0.13) at 4 held-out rows; it must be ahead"
    )
    assert _on_fallback(fallback, [betas[1], fallback]) == []
    longer = planted(0.05, [0.0] * 4, steps=40)
    assert _on_fallback(fallback, [longer, betas[1]]) == []  # of another length


def test_held_out_rows_say_whether_a_fit_is_too_sure(monkeypatch):
    torch.manual_seed(3)
    noise = torch.rand(72, 3) * 4 - 2, 0.3 * torch.randn(72)
    monkeypatch.setattr(Trained, "findings", lambda self, *_, **__: [finding("exploding predictive loss")])
    for (x, y), points, is_overfitted in ((regression(72), 4, False), (noise, 60, True)):
        guide, validation = guided(x, y, points), Validation(betas=(1e-4,), checks=1)
        result = fit_validated(
            guide, predictive, x, y, steps=200, batch_size=72, learning_rate=0.05, validation=validation
        )
        found = [any(words in each for each in result.remarks) for words in ("exploding", "has overfitted")]
        assert found == [is_overfitted, is_overfitted], result.remarks


@pytest.mark.parametrize("folds", [1, 2])
def test_a_beta_must_beat_the_fallback_once_more_when_that_has_had_all_its_steps(folds):
    """A fallback that starts far off loses a short search; a beta of 50 learns little in long runs."""
    x, y = regression(45)
    guide = guided(x, y)
    slow = Variational(guide.model, InducingPoints(10), MonteCarlo(1))
    slow.initialize(x, y)
    with torch.no_grad():
        for name, value in slow.named_parameters():
            value.add_(3.0 if "q.mean" in name else 0.0)
    validation = Validation(betas=(50.0,), search=0.01, checks=1, folds=folds, share=0.3)
    fallback = Fallback(ELBO, slow)
    arguments = dict(steps=200, batch_size=45, learning_rate=0.05, validation=validation, fallback=fallback)
    result = fit_validated(guide, predictive, x, y, **arguments)
    assert result.searched[50.0] < result.searched[None] - 1
    assert result.beta is None and result.guide is slow and result.validation_nll < result.searched[50.0]
    # two of two steps in the search; a long run of each on the first fold, where the beta is not ahead; and the fallback on all rows
    assert result.search_steps == 4 * folds and result.steps == 4 * folds + 400 + 200


def test_longer_runs_are_made_where_the_search_still_improves():
    x, y = regression(45)
    validation = OneFold(betas=(0.1, 0.2), search=0.25, checks=4, patience=100)
    slow = fit_validated(guided(x, y), predictive, x, y, steps=80, learning_rate=0.01, validation=validation)
    assert slow.steps == 2 * 20 + 80 and slow.search_steps == 40
    noise = torch.randn(45, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
    overfitted = fit_validated(
        guided(x, noise, 40),
        predictive,
        x,
        noise,
        steps=800,
        learning_rate=0.1,
        validation=replace(validation, checks=20),
    )
    assert overfitted.best_step <= 150 and overfitted.steps == overfitted.search_steps == 400


def test_the_standard_error_and_the_run_of_the_best_checkpoint_are_said():
    """Where the search has gone from good to bad, no longer run is made."""
    torch.manual_seed(3)
    x = torch.rand(72, 3) * 4 - 2
    y = 0.3 * torch.randn(72)
    guide = guided(x, y, 60)
    validation = OneFold(betas=(0.001, 0.01), search=0.1, checks=2, patience=100)
    result = fit_validated(guide, predictive, x, y, steps=400, batch_size=72, learning_rate=0.1, validation=validation)
    assert result.run_steps == 40 >= result.best_step and result.steps == 80
    assert result.validation_nll == result.searched[result.beta]
    mask = validation.held_out(72, 0)
    nll = -predict(guide, x[mask]).log_prob(y[mask])
    assert float(nll.mean()) == pytest.approx(result.validation_nll, abs=1e-12)
    assert float(nll.std(correction=0)) / len(nll) ** 0.5 == pytest.approx(result.validation_error, abs=1e-12)


def test_data_are_looked_at_before_training():
    x, y = regression(18)
    held_out = int(torch.nonzero(Validation().held_out(18, 0))[0])
    y[held_out] = torch.nan
    guide = Variational(OneLayer(), InducingPoints(3), MonteCarlo(1))
    with pytest.raises(ValueError, match="y holds NaN or infinity"):
        fit_validated(guide, predictive, x, y, steps=2)
    with pytest.raises(ValueError, match="x has 18 rows and y has 17"):
        fit_validated(guide, predictive, x, y[:-1].nan_to_num(), steps=2)


def test_row_arguments_are_held_out_with_their_rows(local):
    class Shifted(OneLayer):
        def forward(self, x, y=None, *, offset, table):
            assert torch.equal(offset, 2 * x[:, 0]) and len(table) == 3
            return super().forward(x, y)

    x, y = regression(24)
    guide = Variational(Shifted(), InducingPoints(5), MonteCarlo(1))
    validation = OneFold(betas=(1.0,), share=0.25, checks=2)
    arguments = {"offset": 2 * x[:, 0], "table": torch.zeros(3)}
    fitted = fit_validated(
        guide, lambda beta, rows: ELBO(rows), x, y, steps=4, batch_size=10, validation=validation, **arguments
    )
    assert (fitted.rows, fitted.validation_rows) == (18, 6)
    with pytest.raises(ValueError, match="offset holds NaN or infinity: drop or fill such rows before training"):
        fit_validated(
            guide, lambda beta, rows: ELBO(rows), x, y, steps=4, **arguments | {"offset": torch.full((24,), torch.nan)}
        )


class Moving(OneLayer):
    """A model with numbers that every training step moves, and that its ``state_dict`` leaves out."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.zeros(1), persistent=False)
        self.passes = 0

    def forward(self, x, y=None):
        if self.training and torch.is_grad_enabled():
            self.shift += 0.3
            self.passes += 1
        return super().forward(x - self.shift, y)


def test_the_kept_checkpoint_has_the_numbers_that_the_state_of_a_module_leaves_out():
    x, y = regression(24)
    torch.manual_seed(0)
    guide = Variational(Moving(), InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    begun = guide.model.passes
    fitted = fit_validated(
        guide,
        lambda beta, rows: ELBO(rows),
        x,
        y,
        steps=12,
        validation=OneFold(betas=(1.0,), share=0.25, checks=4),
    )
    assert 0 < fitted.best_step < 12
    assert guide.model.passes == begun + fitted.best_step
    assert float(guide.model.shift) == pytest.approx(0.3 * guide.model.passes)


def scored(*merits):
    """Scores of 50 rows with these means, each with noise of its own, as a trial asks for them."""
    noise = torch.randn(len(merits), 50, generator=torch.Generator().manual_seed(0))
    noise -= noise.mean(1, keepdim=True)
    values = iter([RowScores(own + merit, None) for own, merit in zip(noise, merits, strict=True)])
    return lambda: next(values)


@pytest.mark.parametrize(("later", "stops"), [(0.05, False), (0.5, True)])
def test_a_run_that_rests_goes_on_and_one_that_becomes_worse_is_stopped(later, stops):
    said = []
    trial = Trial(
        scored(1.0, *[1.0 + later] * 5),
        steps=6,
        checks=6,
        patience=3,
        state=None,
        say=lambda scores: said.append(len(scores)),
    )
    answers = [trial(step) for step in range(1, 7)]
    assert answers == [False, False, False, stops, stops, stops] and said == [1, 2, 3, 4, 5, 6]
    again = Trial(scored(1.0 + later), steps=7, checks=7, patience=3, state=None, say=lambda scores: None)
    again.load_state_dict(trial.state_dict())
    assert again(7) == stops
