"""Reliability diagrams and the calibration error, by rows whose probabilities are known."""

import pyro.distributions as dist
import pytest
import torch

from pyro_dgp import Mixture, Prediction, calibration_band, reliability, scores


def predicted(made, rows):
    return Prediction(lambda part: Mixture(made(part), torch.zeros(1)), rows=rows)


def of_classes(probs):
    return predicted(lambda part: dist.Categorical(probs[None, part]), len(probs))


def test_the_error_is_the_weighted_distance_of_accuracy_and_confidence():
    probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.3, 0.7]])
    y = torch.tensor([0, 0, 1, 1])
    diagram = reliability(of_classes(probs), y)
    torch.testing.assert_close(diagram.confidence, torch.tensor([0.7, 0.9]))
    torch.testing.assert_close(diagram.accuracy, torch.tensor([1.0, 2 / 3]))
    assert diagram.count.tolist() == [1, 3]
    assert diagram.error == pytest.approx((0.3 + 3 * (0.9 - 2 / 3)) / 4)
    assert scores(of_classes(probs), y)["ece"] == pytest.approx(diagram.error)


def test_two_classes_are_the_same_as_one_probability():
    p, y = torch.tensor([0.2, 0.6, 0.9]), torch.tensor([0.0, 1.0, 0.0])
    of_one = predicted(lambda part: dist.Bernoulli(probs=p[None, part]), 3)
    of_two = of_classes(torch.stack([1 - p, p], -1))
    first, second = scores(of_one, y), scores(of_two, y.long())
    assert first.keys() == second.keys() == {"nll", "accuracy", "brier", "ece"}
    assert first == pytest.approx(second)
    assert first["brier"] == pytest.approx(2 * (p - y).square().mean())


@pytest.mark.parametrize("classes", [2, 5])
def test_a_calibrated_model_is_inside_its_band_and_an_overconfident_one_outside(classes):
    logits = 1.5 * torch.randn(2000, classes)
    y = torch.distributions.Categorical(logits=logits).sample()
    right, sure = of_classes(logits.softmax(-1)), of_classes((2 * logits).softmax(-1))
    low, high = calibration_band(right, y, draws=300)
    assert low <= reliability(right, y).error <= high
    assert reliability(sure, y).error > 1.5 * calibration_band(sure, y, draws=300)[1]


def test_numbers_have_no_reliability():
    normal = predicted(lambda part: dist.Normal(torch.zeros(1, 3), torch.ones(1, 3)), 3)
    with pytest.raises(ValueError, match="the target is no class but has the distribution Normal"):
        reliability(normal, torch.zeros(3))
