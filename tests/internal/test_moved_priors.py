"""Priors of hyperparameters go where their module goes."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroSample

from pyro_dgp import ELBO, RBF, DeepGP, InducingPoints, MonteCarlo, Variational, fit, predict, with_priors
from pyro_dgp.internal.moved_priors import moved
from tests.virtual_device import virtual_device

PRIORS = {
    "normal": lambda: dist.Normal(torch.zeros(2), 1.0).to_event(1),
    "log normal": lambda: dist.LogNormal(torch.tensor(0.5), 2.0),
    "transformed": lambda: dist.TransformedDistribution(
        dist.Normal(torch.zeros(2), 1.0), [torch.distributions.AffineTransform(torch.tensor([1.0, 2.0]), 3.0)]
    ),
    "inverted": lambda: dist.TransformedDistribution(
        dist.Uniform(torch.tensor(0.5), torch.tensor(1.0)),
        [torch.distributions.CumulativeDistributionTransform(dist.Normal(torch.zeros(2), torch.ones(2))).inv],
    ),
    "full": lambda: dist.MultivariateNormal(torch.zeros(2), torch.tensor([[2.0, 0.5], [0.5, 1.0]])),
    "mixture": lambda: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.Normal(torch.zeros(2), torch.ones(2))
    ),
    "masked": lambda: dist.Normal(torch.zeros(2), 1.0).mask(torch.tensor([True, False])),
}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_a_moved_prior_is_the_same_distribution(prior, monkeypatch):
    prior = prior()
    value = prior.sample()
    expected = prior.log_prob(value)
    single = moved(prior, lambda each: each.float() if each.is_floating_point() else each)
    assert single.sample().dtype == torch.float32 and prior.sample().dtype == torch.float64
    torch.testing.assert_close(single.log_prob(value.float()), expected.float())
    with virtual_device(monkeypatch) as device:
        there = moved(prior, lambda each: each.to(device))
        assert there.sample().device == device
        torch.testing.assert_close(there.log_prob(value.to(device)).cpu(), expected)


def test_what_makes_a_prior_stays():
    def make(module):
        return dist.LogNormal(0.0, 1.0)

    assert moved(make, torch.Tensor.float) is make


def prepared(before, device):
    """A model with priors, moved after or before it gets them."""
    model = DeepGP(torch.randn(6, 2), layers=2, width=1)
    model = model if before else model.to(device)
    with_priors(model)
    model.top.kernel.variance = PyroSample(dist.LogNormal(0.0, 1.0))
    return model.to(device) if before else model


@pytest.mark.parametrize("before", [True, False])
def test_priors_are_on_the_device_of_their_model(before, monkeypatch):
    with virtual_device(monkeypatch) as device:
        model = prepared(before, device)
        x, y = torch.randn(6, 2).to(device), torch.randn(6).to(device)
        sampled = pyro.poutine.trace(model).get_trace(x, y).nodes
        assert {sampled[name]["value"].device for name in ("top.kernel.variance", "top.kernel.lengthscale")} == {device}
        guide = Variational(model, InducingPoints(3), MonteCarlo(2))
        guide.initialize(x, y)
        fit(ELBO(6)(model, guide), x, y, steps=2)
        assert predict(guide, x, 3).mean.device == device


def test_priors_have_the_type_of_their_model():
    kernel = RBF(ard=2)
    kernel.lengthscale = PyroSample(dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    assert kernel.lengthscale.dtype == torch.float64
    assert kernel.float().lengthscale.dtype == torch.float32
    assert kernel.double().lengthscale.dtype == torch.float64
