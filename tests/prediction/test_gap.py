import json
import math

import pytest
import torch
from pyro import distributions as dist

from pyro_dgp import (
    Gaussian,
    InducingPoints,
    Mixture,
    MonteCarlo,
    PosteriorDraws,
    Prediction,
    Variational,
    draw_gap,
    fit,
    inference_gap,
    predict,
)
from pyro_dgp.comparison.gap_study import GapStudy
from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.losses import ELBO
from pyro_dgp.processes import FunctionMarginal
from pyro_dgp.zoo.methods import METHODS
from tests.examples import OneLayer, regression


def prediction(means, sds, weights=None, noise=0.1, batch_size=1000):
    """f is a mixture of normals at each input; means and sds ``(S, N)``."""
    means, sds = torch.as_tensor(means), torch.as_tensor(sds)
    weights = torch.ones(len(means)) / len(means) if weights is None else torch.as_tensor(weights)

    def evaluate(rows):
        mean, sd = means[:, rows, None], sds[:, rows, None]
        conditional = Gaussian(variance=noise).conditional()
        marginal = FunctionMarginal(mean, sd.square(), torch.zeros(()), lambda: mean)
        observation = CollapsedObservation(conditional, {"f": marginal}, mean.shape[1:2])
        return Mixture(conditional.components(Moments(mean, sd.square())), weights.log(), [observation])

    with torch.no_grad():
        return Prediction(evaluate, means.shape[1], batch_size=batch_size)


def test_distances_of_normals_have_their_closed_forms():
    """Equal sd: Wasserstein is the shift. Equal mean: it is |s - t| E|z|. KL of normals."""
    reference = prediction([[0.0, 1.0, 0.0]], [[2.0, 0.5, 1.0]])
    gap = inference_gap(prediction([[3.0, 1.0, 0.0]], [[2.0, 1.5, 1.0]], batch_size=2), reference)
    torch.testing.assert_close(gap.mean, torch.tensor([1.5, 0.0, 0.0]), atol=1e-12, rtol=0)
    torch.testing.assert_close(gap.sd, torch.tensor([0.0, math.log(3), 0.0]), atol=1e-12, rtol=0)
    expected = torch.tensor([1.5, 2.0 * math.sqrt(2 / math.pi), 0.0])
    torch.testing.assert_close(gap.wasserstein, expected, atol=2e-3, rtol=0)
    p = dist.Normal(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([4.1, 0.35, 1.1]).sqrt())
    q = dist.Normal(torch.tensor([3.0, 1.0, 0.0]), torch.tensor([4.1, 2.35, 1.1]).sqrt())
    torch.testing.assert_close(gap.kl, torch.distributions.kl_divergence(p, q), atol=1e-3, rtol=0)
    assert gap.figures()["gap_mean"] == pytest.approx(0.5)


def test_a_narrow_reference_is_integrated_where_it_is():
    """A hundredth of the other's standard deviation, and off the middle."""
    gap = inference_gap(prediction([[0.0]], [[1.0]], noise=1.1e-4), prediction([[0.0037]], [[0.01]], noise=1.1e-4))
    p, q = (dist.Normal(mean, math.sqrt(sd**2 + 1.1e-4)) for mean, sd in ((0.0037, 0.01), (0.0, 1.0)))
    assert float(gap.kl) == pytest.approx(float(torch.distributions.kl_divergence(p, q)), abs=0.02)


def test_mixtures_are_compared_as_they_are_not_by_their_moments():
    two = prediction([[-1.0], [1.0]], [[0.1], [0.1]], weights=[0.5, 0.5])
    one = prediction([[0.0]], [[math.sqrt(1.01)]])
    gap = inference_gap(one, two)
    assert float(gap.mean) < 1e-12 and abs(float(gap.sd)) < 1e-12
    draws = two.functions().sample(200_000)[:, 0, 0].sort().values
    normal = one.functions().sample(200_000)[:, 0, 0].sort().values
    assert float(gap.wasserstein) == pytest.approx(float((draws - normal).abs().mean()) / math.sqrt(1.01), rel=0.03)
    uneven = prediction([[-1.0], [1.0]], [[0.1], [0.1]], weights=[0.9, 0.1])
    assert float(inference_gap(uneven, two).wasserstein) == pytest.approx(0.8 / math.sqrt(1.01), rel=1e-2)


def test_a_bernoulli_s_divergence_is_a_sum():
    def of(probability):
        components = dist.Bernoulli(torch.tensor([[probability]]))
        marginal = FunctionMarginal(torch.zeros(1, 1, 1), torch.ones(1, 1, 1), torch.zeros(()), lambda: None)
        observation = CollapsedObservation(Gaussian().conditional(), {"f": marginal}, torch.Size([1]))
        return Prediction(lambda rows: Mixture(components, torch.zeros(1), [observation]), 1)

    expected = 0.3 * math.log(0.3 / 0.6) + 0.7 * math.log(0.7 / 0.4)
    with torch.no_grad():
        assert float(inference_gap(of(0.6), of(0.3)).kl) == pytest.approx(expected)


@pytest.mark.slow
def test_training_closes_the_gap_to_the_exact_posterior(local, tmp_path):
    """One layer, hyperparameters fixed, inducing points at the data: nothing is left when the guide is trained."""
    x, y = regression(12)
    model = OneLayer(likelihood=Gaussian(variance=0.1)).requires_grad_(False)
    new = torch.linspace(-2, 2, 9)[:, None]
    exact = predict(PosteriorDraws(model, {}, (x, y)), new)
    guide = Variational(model, InducingPoints(12), MonteCarlo(1))
    guide.initialize(x, y)
    before = inference_gap(predict(guide, new), exact)
    fit(ELBO(12)(model, guide), x, y, steps=600, batch_size=12, learning_rate=0.05)
    after = inference_gap(predict(guide, new), exact)
    assert after.figures()["gap_wasserstein"] < 0.05 < 0.5 < before.figures()["gap_wasserstein"]
    assert after.figures()["gap_kl"] < 2e-3 < 0.1 < before.figures()["gap_kl"]
    draw_gap({"svgp": after, "untrained": before}, new, tmp_path / "gap.png", reference="the exact posterior")
    assert (tmp_path / "gap.png").stat().st_size > 10_000


def test_what_cannot_be_compared_is_one_sentence():
    one = prediction([[0.0, 1.0]], [[1.0, 1.0]])
    with pytest.raises(ValueError, match="at 1 and 2 inputs"):
        inference_gap(prediction([[0.0]], [[1.0]]), one)
    components = dist.Normal(torch.zeros(1, 2, 3), 1.0)
    several = Prediction(lambda rows: Mixture(components, torch.zeros(1)), 2, torch.Size([3]))
    with pytest.raises(ValueError, match="predictions of one output"):
        inference_gap(several, one)


def test_a_study_is_finished_when_its_own_rows_are_there(tmp_path):
    assert not GapStudy([METHODS["dsvi"]], METHODS["ess"]).finished(tmp_path, 8)
    figures = dict.fromkeys(("gap_mean", "gap_sd", "gap_wasserstein", "gap_kl"), 0.1)
    row = {"reference": "ess", "mcmc_samples": 8, "hyperparameters": "fixed", "approximates_posterior": True} | figures
    rows = [row | {"method": name} for name in ("ess again", "dsvi", "dspp")]
    (tmp_path / "gap.json").write_text(json.dumps(rows))
    for methods, reference, expected in (
        (["dsvi"], "ess", True),
        (["ess", "dspp"], "ess", True),
        (["dsvi", "sghmc"], "ess", False),
        (["dsvi"], "nuts", False),
    ):
        study = GapStudy([METHODS[name] for name in methods], METHODS[reference])
        assert study.finished(tmp_path, 8) == expected
        assert not study.finished(tmp_path, 9)
