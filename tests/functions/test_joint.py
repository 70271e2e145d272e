"""Joint distributions of rows: closed forms on one layer, brute force on two."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from pyro_dgp import (
    RBF,
    Bernoulli,
    DeepGP,
    InducingPoints,
    LinearCoregionalization,
    MarginalLikelihood,
    Matern52,
    PosteriorDraws,
    SigmaPoints,
    draw_functions,
    predict,
    with_priors,
)
from pyro_dgp.functions.joint import MOST_ROWS
from tests.examples import OneLayer, TwoLayers, TwoSites, regression
from tests.functions.test_functions import GRID, guide_for

pytestmark = pytest.mark.usefixtures("local")


@torch.no_grad()
def test_exact_regression_is_the_quotient_of_two_marginal_likelihoods():
    x, y = regression(12)
    model = OneLayer(RBF(lengthscale=0.7))
    joint = draw_functions(PosteriorDraws(model, {}, (x[:8], y[:8])), 3).joint(x[8:])
    assert joint.num_components == 1
    log_p = lambda rows: -MarginalLikelihood(model)(x[:rows], y[:rows])
    torch.testing.assert_close(joint.log_prob(y[8:]), log_p(12) - log_p(8))
    noisy = MultivariateNormal(joint.mean, joint.target_covariance)
    torch.testing.assert_close(joint.log_prob(y[8:]), noisy.log_prob(y[8:]))
    torch.testing.assert_close(joint.target_covariance - joint.covariance, model.likelihood.variance * torch.eye(4))


@torch.no_grad()
def test_one_layer_is_the_marginal_of_the_process():
    x, y = regression(12)
    guide = guide_for(OneLayer(Matern52(outputs=2), outputs=2), x, torch.stack([y, -y], -1))
    joint = draw_functions(guide, 3).joint(GRID)
    q = getattr(guide.processes, "y/f")(guide.model.gp(GRID))
    torch.testing.assert_close(joint.mean, q.mean)
    torch.testing.assert_close(joint.covariance, q.covariance_matrix)
    target = torch.randn(5, 2)
    noise = guide.model.likelihood.variance
    expected = sum(
        MultivariateNormal(q.mean[:, d], q.covariance_matrix[d] + noise[d] * torch.eye(5)).log_prob(target[:, d])
        for d in range(2)
    )
    torch.testing.assert_close(joint.log_prob(target), expected)


@torch.no_grad()
def test_two_layers_are_a_mixture_over_draws_of_the_hidden_layer():
    x, y = regression(12)
    guide = guide_for(TwoLayers(x), x, y)
    functions = draw_functions(guide, 6, seed=0)
    joint, target = functions.joint(GRID), torch.randn(5)
    assert joint.num_components == 6
    hidden = draw_functions(guide, 6, seed=0, site="h")(GRID)
    q = getattr(guide.processes, "y/f")(guide.model.top(hidden))
    means, covariances = q.mean[..., 0], q.covariance_matrix[:, 0]
    torch.testing.assert_close(joint.mean, means.mean(0))
    torch.testing.assert_close(joint.covariance, covariances.mean(0) + torch.cov(means.mT, correction=0))
    noisy = covariances + guide.model.likelihood.variance * torch.eye(5)
    densities = MultivariateNormal(means, noisy).log_prob(target)
    torch.testing.assert_close(joint.log_prob(target), torch.logsumexp(densities, 0) - math.log(6))
    of_hidden = draw_functions(guide, 6, seed=0, site="h").joint(GRID)
    assert of_hidden.num_components == 1 and of_hidden.covariance.shape == (2, 5, 5)


@torch.no_grad()
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_each_draw_of_the_hyperparameters_has_its_noise(order):
    """A mixture of two exact regressions, which does not depend on their order, nor on how many functions are drawn from each."""
    x, y = regression(12)
    new, target = x[8:] + 0.05, torch.randn(4)
    values = {
        "top.kernel.lengthscale": torch.tensor([[0.3], [1.0]]),
        "top.kernel.variance": torch.tensor([1.0, 4.0]),
        "likelihood.variance": torch.tensor([0.01, 0.5]),
    }
    model = with_priors(DeepGP(x, layers=1, kernel="rbf"))
    draws = PosteriorDraws(model, {name: each[order] for name, each in values.items()}, (x[:8], y[:8]))
    joints = []
    for lengthscale, variance, noise in zip(*(each.flatten().tolist() for each in values.values()), strict=True):
        alone = OneLayer(RBF(lengthscale=lengthscale, variance=variance))
        alone.likelihood.variance = noise
        joints.append(draw_functions(PosteriorDraws(alone, {}, (x[:8], y[:8])), 1).joint(new))
    means = torch.stack([each.mean for each in joints])
    covariance = sum(each.target_covariance for each in joints) / 2 + torch.cov(means.mT, correction=0)
    density = torch.logsumexp(torch.stack([each.log_prob(target) for each in joints]), 0) - math.log(2)
    for number in (2, 3):
        joint = draw_functions(draws, number, seed=0).joint(new)
        torch.testing.assert_close(joint.log_prob(target), density)
        torch.testing.assert_close(joint.mean, means.mean(0))
        torch.testing.assert_close(joint.target_covariance, covariance)
    torch.testing.assert_close(predict(draws, new).variance, covariance.diagonal())


@torch.no_grad()
def test_draws_of_mcmc_are_components():
    x, y = regression(12)
    draws = {"h_whitened": torch.randn(3, 12, 2)}
    joint = draw_functions(PosteriorDraws(TwoLayers(x), draws, (x, y)), 6).joint(GRID)
    assert joint.num_components == 6 and joint.mean.shape == (5,)


def test_what_has_no_joint_distribution_is_refused():
    x, y = regression(12)
    guide = guide_for(OneLayer(), x, y)
    functions = draw_functions(guide, 3)
    for rows in (torch.zeros(MOST_ROWS + 1, 1), torch.zeros(3, 4, 1)):
        with pytest.raises(ValueError, match="at most 2000 rows"):
            functions.joint(rows)
    with pytest.raises(ValueError, match="shape"):
        functions.joint(GRID).log_prob(torch.zeros(5, 1))
    classes = draw_functions(guide_for(OneLayer(likelihood=Bernoulli()), x, (y > 0).double()), 3).joint(GRID)
    mixed = OneLayer(Matern52(), LinearCoregionalization(3, 2), outputs=2)
    several = draw_functions(guide_for(mixed, x, torch.stack([y, y, y], -1)), 3).joint(GRID)
    two_sites = draw_functions(guide_for(TwoSites(), x, y), 3).joint(GRID)
    for joint in (classes, several, two_sites):
        with pytest.raises(ValueError, match="no Gaussian noise around one Gaussian process, or may"):
            joint.log_prob(torch.zeros(5))
        assert torch.isfinite(joint.covariance).all()
    points = guide_for(TwoLayers(x), x, y, InducingPoints(6, "diagonal"), SigmaPoints("qr3", 4))
    with pytest.raises(ValueError, match="the values of 'h' are carried by SigmaPoints"):
        draw_functions(points, 3, site="h").joint(GRID)
    assert draw_functions(points, 3).joint(GRID).num_components == 3
    joint = functions.joint(GRID)
    with torch.no_grad():
        next(guide.parameters()).add_(0.1)
    with pytest.raises(ValueError, match="have changed since"):
        joint.log_prob(torch.zeros(5))


def test_inputs_that_change_after_the_call_change_nothing():
    x, y = regression(8)
    inputs = x.clone()
    functions = draw_functions(PosteriorDraws(OneLayer(), {}, (x, y)), 2)
    joint = functions.joint(inputs)
    inputs.add_(1.0)
    torch.testing.assert_close(joint.mean, functions.joint(x).mean, rtol=0, atol=0)
