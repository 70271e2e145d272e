"""Scores, coverage and reliability: arguments of any kind, and predictions in the target's own units."""

from functools import partial

import numpy as np
import pytest
import torch
from pyro import distributions as dist

from pyro_dgp import Mixture, Prediction, RescaledPrediction, calibration_band, coverage, pit, reliability, scores


def of_two_components(dtype=torch.float64):
    def evaluate(rows):
        mean = torch.tensor([[0.0], [1.0]], dtype=dtype).expand(2, rows.stop - rows.start)
        return Mixture(dist.Normal(mean, torch.ones_like(mean)), torch.full((2,), 0.5, dtype=dtype).log())

    return Prediction(evaluate, 4)


def of_classes():
    return Prediction(lambda rows: Mixture(dist.Bernoulli(probs=torch.full((1, 4), 0.75)), torch.zeros(1)), rows=4)


@pytest.mark.parametrize("scale", [2.5, 0.5])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8])
def test_scores_of_whole_numbers_are_those_of_the_same_real_numbers(kind, scale):
    y = torch.tensor([0, 1, 1, 2], dtype=kind)
    assert scores(of_two_components(), y, scale) == pytest.approx(scores(of_two_components(), y.double(), scale))


@pytest.mark.parametrize("levels", [[50.0, 90.0], 1.5, -0.5, [0.5, float("nan")]])
def test_levels_of_intervals_are_probabilities(levels):
    y = torch.zeros(4, dtype=torch.float64)
    with pytest.raises(ValueError, match="between 0 and 1, got .*: use 0.9, not 90"):
        coverage(of_two_components(), y, levels)
    if isinstance(levels, float):
        with pytest.raises(ValueError, match="use 0.9, not 90"):
            calibration_band(of_classes(), torch.ones(4), levels)


def test_a_reliability_diagram_without_bins_is_refused():
    with pytest.raises(ValueError, match="bins is a whole number, 1 or more, got 0"):
        reliability(of_classes(), torch.ones(4), bins=0)


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_prediction_in_units_has_the_scores_of_the_standardised_one(kind, dtype):
    standardised, z = of_two_components(dtype), torch.tensor([-1.0, 0.0, 0.5, 3.0], dtype=dtype)
    in_units = RescaledPrediction(standardised, shift=100.0, scale=20.0, like=z)
    y = kind([80.0, 100.0, 110.0, 160.0])
    expected = scores(standardised, z, 20.0)
    assert scores(in_units, y) == pytest.approx(expected, rel=1e-5)
    spread = in_units.log_prob(y)
    assert scores(in_units, y)["nll_original"] == pytest.approx(-float(spread.mean()), rel=1e-5)
    torch.testing.assert_close(pit(in_units, y), pit(standardised, z))
    torch.testing.assert_close(coverage(in_units, y, [0.5, 0.9]), coverage(standardised, z, [0.5, 0.9]))


def test_classes_in_units_have_a_diagram():
    y = torch.tensor([1.0, 1.0, 0.0, 1.0])
    in_units = RescaledPrediction(of_classes(), shift=0.0, scale=1.0, like=y)
    assert scores(in_units, y) == scores(of_classes(), y)
    assert reliability(in_units, y).error == reliability(of_classes(), y).error
    assert calibration_band(in_units, y) == calibration_band(of_classes(), y)


@pytest.mark.parametrize("wrong", [-1.0, 2.0, 0.5])
def test_labels_that_are_no_classes_are_refused(wrong):
    for judge in (reliability, calibration_band):
        with pytest.raises(ValueError, match=f"a target is {wrong:g}, and .* takes whole numbers from 0 to 1: recode"):
            judge(of_classes(), torch.tensor([0.0, 1.0, wrong, 1.0]))


@pytest.mark.parametrize(
    ("components", "wrong", "said"),
    [
        (dist.Bernoulli(probs=torch.full((1, 2), 0.3)), -1.0, "Bernoulli takes whole numbers from 0 to 1"),
        (dist.Binomial(5, probs=torch.full((1, 2), 0.3)), 6.0, "Binomial takes whole numbers from 0 to 5"),
        (dist.Poisson(torch.full((1, 2), 3.0)), 0.5, "Poisson takes whole numbers from 0 on"),
    ],
)
def test_targets_that_a_plain_distribution_does_not_have_are_refused(components, wrong, said):
    prediction = Prediction(lambda rows: Mixture(components, torch.zeros(1)), rows=2)
    y = torch.tensor([1.0, wrong])
    for judge in (pit, partial(coverage, levels=0.9), Prediction.crps, Prediction.log_prob, scores):
        with pytest.raises(ValueError, match=f"a target is {wrong:g}, and {said}: recode the targets"):
            judge(prediction, y)


def test_booleans_are_classes():
    y = torch.tensor([True, False, True, True])
    assert reliability(of_classes(), y).error == reliability(of_classes(), y.double()).error
    for prediction in (of_classes(), of_two_components()):
        assert scores(prediction, y) == pytest.approx(scores(prediction, y.double()))


@pytest.mark.parametrize("of", [of_classes, of_two_components])
@pytest.mark.parametrize("y", [torch.full((4,), torch.nan), torch.zeros(0)])
def test_targets_without_an_observed_value_have_no_scores(of, y):
    with pytest.raises(ValueError, match="y holds no observed value"):
        scores(of(), y)


def test_no_observed_row_has_no_calibration_error():
    missing = torch.full((4,), float("nan"))
    assert np.isnan(reliability(of_classes(), missing).error)
    assert np.isnan(calibration_band(of_classes(), missing)).all()


@pytest.mark.parametrize("draws", [0, -1])
def test_a_band_takes_a_whole_number_of_draws(draws):
    with pytest.raises(ValueError, match="draws is a whole number, 1 or more"):
        calibration_band(of_classes(), torch.ones(4), draws=draws)
