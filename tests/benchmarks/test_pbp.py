"""Probabilistic back-propagation: its moments against simulation, its updates against closed forms, and a line that it learns."""

import numpy as np
import pytest
import torch

from benchmarks.common.pbp import (
    Network,
    ProbabilisticBackpropagation,
    gamma_update,
    linear_moments,
    normal_log_z,
    rectified_moments,
)
from pyro_dgp import Settings
from pyro_dgp.comparison.sweep import Run
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.tasks import Task
from pyro_dgp.zoo.method import SHALLOW, Method

METHOD = Method("pbp", "", "", SHALLOW, ProbabilisticBackpropagation(hidden=10, passes=8))


def test_moments_of_a_rectifier_are_those_of_quadrature():
    mean, variance = torch.tensor([-2.0, -0.3, 0.0, 1.5]), torch.tensor([0.5, 2.0, 1.0, 0.1])
    grid = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    density = torch.distributions.Normal(mean[:, None], variance[:, None].sqrt()).log_prob(grid).exp()
    first, second = (torch.trapezoid(grid.clamp_min(0) ** power * density, grid) for power in (1, 2))
    found = [torch.as_tensor(part) for part in rectified_moments(mean.numpy(), variance.numpy())]
    torch.testing.assert_close(found[0], first, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found[1], second - first.square(), rtol=1e-6, atol=1e-8)


def test_moments_of_a_layer_are_those_of_draws():
    torch.manual_seed(0)
    mean, variance = torch.randn(4), torch.rand(4)
    weights, spread = torch.randn(3, 4), torch.rand(3, 4)
    draws = 400_000
    z = mean + variance.sqrt() * torch.randn(draws, 1, 4)
    w = weights + spread.sqrt() * torch.randn(draws, 3, 4)
    values = (w * z).sum(-1) / 2
    found = [
        torch.as_tensor(part) for part in linear_moments(*(part.numpy() for part in (mean, variance, weights, spread)))
    ]
    torch.testing.assert_close(found[0], values.mean(0), atol=0.02, rtol=0)
    torch.testing.assert_close(found[1], values.var(0), atol=0.03, rtol=0.01)


def test_a_gamma_is_updated_exactly_where_the_factor_is_conjugate():
    shape, rate, y = 6.0, 2.0, 0.7

    def log_z(a):  # the mean of the exponential density with a gamma rate
        return np.log(a) + a * np.log(rate) - (a + 1) * np.log(rate + y)

    assert gamma_update(log_z, shape, rate) == pytest.approx((shape + 1, rate + y))


def test_a_large_residual_lowers_the_precision_and_a_small_one_raises_it():
    means = []
    for residual in (0.0, 3.0):
        shape, rate = gamma_update(normal_log_z(residual, 0.1, 6.0), 6.0, 6.0)
        means.append(shape / rate)
    assert means[1] < 1 < means[0]


def test_a_row_updates_the_weights_as_a_linear_regression_does():
    torch.manual_seed(1)
    network = Network(2, 3)
    layer = network.layers[1]
    network.layers = [layer]  # three inputs and a bias to one output: the posterior is known
    x, noise = torch.randn(3), network.noise_variance
    features = np.append(x.numpy(), 1.0) / 2
    prior = layer.mean.ravel(), layer.variance.ravel()
    gain = prior[1] * features / (features @ (prior[1] * features) + noise)
    residual = 0.8 - features @ prior[0]
    network.take_in(x.numpy(), 0.8)
    np.testing.assert_allclose(network.layers[0].mean.ravel(), prior[0] + gain * residual)
    np.testing.assert_allclose(network.layers[0].variance.ravel(), prior[1] - gain * features * prior[1])


def test_slopes_are_those_of_automatic_differentiation():
    torch.manual_seed(3)
    network, x, y = Network(2, 4), torch.randn(2).double(), 0.7
    for row in torch.randn(6, 2).double().numpy():  # weights of no special values
        network.take_in(row, 0.3)
    free = [torch.tensor(part, requires_grad=True) for layer in network.layers for part in (layer.mean, layer.variance)]
    one, nothing = torch.ones(1).double(), torch.zeros(3).double()
    z = torch.cat([x, one])
    mean, sd = free[0] @ z / 3**0.5, ((free[1] @ z.square()) / 3).sqrt()
    above = torch.distributions.Normal(nothing[0], one)
    first = mean * above.cdf(mean / sd) + sd * above.log_prob(mean / sd).exp()
    second = (mean.square() + sd.square()) * above.cdf(mean / sd) + mean * sd * above.log_prob(mean / sd).exp()
    z, spread = torch.cat([first, one]), torch.cat([second - first.square(), nothing[:1]])
    output = free[2] @ z / 5**0.5
    variance = (spread @ (free[2].square() + free[3]).mT + free[3] @ z.square()) / 5
    log_z = torch.distributions.Normal(output, (variance + network.noise_variance).sqrt()).log_prob(torch.tensor(y))
    expected = torch.autograd.grad(log_z.sum(), free)
    found, residual, of_function = network.slopes(x.numpy(), y)
    for ours, theirs in zip([part for layer in found for part in layer], expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(ours), theirs)
    assert (residual, of_function) == pytest.approx((y - float(output.detach()), float(variance.detach())))


def test_factors_of_the_prior_times_the_rest_are_the_posterior():
    torch.manual_seed(2)
    network = Network(2, 3)
    for row in torch.randn(5, 2).numpy():  # until then the rest is flat, and there is nothing to refine
        network.take_in(row, 1.0)
    before = [(layer.mean, layer.variance) for layer in network.layers]
    network.refine_priors()
    for layer, (mean, variance) in zip(network.layers, before, strict=True):
        factors = np.reshape(layer.of_prior, (*layer.mean.shape, 4))
        start = 1 / variance - 5 / 6, mean / variance
        np.testing.assert_allclose(1 / layer.variance - factors[..., 0], start[0])
        np.testing.assert_allclose(layer.mean / layer.variance - factors[..., 1], start[1])
        assert not np.array_equal(layer.mean, mean)
    added = torch.tensor([factor for layer in network.layers for factor in layer.of_prior]).sum(0)
    assert network.precision == pytest.approx((6 + float(added[2]), 6 + float(added[3])))


def dataset(rows=120, task=None):
    random = np.random.RandomState(0)
    x = random.randn(rows, 2)
    y = np.abs(x[:, 0]) + 0.1 * random.randn(rows)
    return Dataset("bent", x, y) if task is None else Dataset("classes", x, (y > 0.5).astype(float), task=task)


def test_it_learns_a_bent_line():
    found = Run(dataset(), METHOD, Settings()).figures()
    assert found["rmse_original"] < 0.2 and found["nll_original"] < 0.0
    assert found["steps"] == 8 * found["n_train"]


def test_classes_are_refused():
    with pytest.raises(ValueError, match="of one real number a row"):
        Run(dataset(task=Task("binary", 2)), METHOD, Settings(task="binary")).figures()
