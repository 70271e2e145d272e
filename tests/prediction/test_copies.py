"""Copies of predictions and of joint distributions: their own fit travels with them, into processes too."""

import copy
import pickle

import pytest
import torch

from pyro_dgp import (
    ELBO,
    DeepGP,
    InducingPoints,
    MonteCarlo,
    PosteriorDraws,
    Standardizer,
    Variational,
    draw_functions,
    fit,
    predict,
    vecchia,
)

pytestmark = pytest.mark.usefixtures("local")


def through_pickle(value):
    """What another process gets."""
    return pickle.loads(pickle.dumps(value))


COPIES = pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])


def data():
    """A wave in units of its own."""
    x = torch.linspace(-1, 1, 20)[:, None]
    return x, 30 + 4 * torch.sin(4 * x[:, 0])


def trained(layers=2):
    """A guide after a few steps, and the objective that goes on with it."""
    x, y = data()
    model = DeepGP(x, layers, width=1, standardizer=Standardizer.fit(x, y))
    guide = Variational(model, InducingPoints(8), MonteCarlo(2))
    guide.initialize(x, y)
    objective = ELBO(20)(model, guide)
    fit(objective, x, y, steps=20)
    return guide, objective


@COPIES
@pytest.mark.parametrize("layers", [1, 2])
def test_a_copy_of_a_prediction_that_was_not_read_keeps_its_fit(copied, layers):
    x, y = data()
    torch.manual_seed(0)
    guide, objective = trained(layers)
    torch.manual_seed(1)
    prediction = predict(guide, x, num_samples=5)
    apart, with_guide = copied(prediction), copied((guide, prediction))
    expected = (prediction.mean.clone(), prediction.log_prob(y).clone())
    fit(objective, x, y, steps=50, learning_rate=0.1)
    for each in (apart, with_guide[1]):
        assert torch.equal(each.mean, expected[0]) and torch.equal(each.log_prob(y), expected[1])
    assert not torch.allclose(predict(guide, x, num_samples=5).mean, expected[0])


@pytest.mark.parametrize("approximation", [lambda model: model, vecchia])
def test_what_was_read_travels_too(approximation):
    x, y = data()
    model = approximation(DeepGP(x, 1, standardizer=Standardizer.fit(x, y)))
    prediction = predict(PosteriorDraws(model, {}, (x, y)), x[::3])
    expected = prediction.variance
    for value in (through_pickle(prediction), copy.deepcopy(prediction)):
        assert torch.equal(value.variance, expected)
    assert torch.equal(through_pickle(prediction.mixture()).variance, expected)


@COPIES
def test_a_joint_distribution_travels(copied):
    x, y = data()
    guide, _ = trained()
    exact = PosteriorDraws(DeepGP(x, 1, standardizer=Standardizer.fit(x, y)), {}, (x, y))
    for source in (guide, exact):
        joint = draw_functions(source, 3).joint(x[::4])
        again = copied(joint)
        assert torch.equal(again.covariance, joint.covariance) and torch.equal(
            again.log_prob(y[::4]), joint.log_prob(y[::4])
        )


def test_the_covariance_of_a_marginal_travels():
    x, y = data()
    guide, _ = trained(1)
    marginal = next(iter(guide.processes.children()))(guide.model.top(guide.model.standardizer.inputs(x)))
    assert torch.equal(through_pickle(marginal).covariance_matrix, marginal.covariance_matrix)
