"""Targets and distributions of plain Pyro sites that the loss could not compute with: refused by ``initialize`` in one sentence."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_dgp import ELBO, RBF, Gaussian, GaussianProcess, InducingPoints, MonteCarlo, Variational, fit

X = torch.linspace(-1, 1, 12, dtype=torch.float64)[:, None]


def observed_through(distribution):
    gp = GaussianProcess(RBF(), num_outputs=2)

    def model(x, y=None):
        return pyro.sample("y", distribution(pyro.sample("f", gp(x))), obs=y)

    return Variational(model, InducingPoints(5), MonteCarlo(2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_a_plain_bernoulli_takes_no_whole_numbers(dtype):
    guide = observed_through(lambda f: dist.Bernoulli(logits=f[..., 0]).to_event(1))
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(TypeError, match=rf"target of the site 'y' is {kind}, which Bernoulli .* pass y.to\(x.dtype\)"):
        guide.initialize(X, (X[:, 0] > 0).to(dtype))


def test_whole_numbers_that_a_distribution_computes_with_are_taken():
    guide, y = observed_through(lambda f: dist.Categorical(logits=f).to_event(1)), (X[:, 0] > 0).long()
    guide.initialize(X, y)
    assert len(fit(ELBO(12)(guide.model, guide), X, y, steps=2).losses) == 2


def test_a_distribution_of_pytorch_is_refused_by_name():
    def bernoulli(f):
        return torch.distributions.Independent(torch.distributions.Bernoulli(logits=f[..., 0]), 1)

    with pytest.raises(TypeError, match="site 'y' has a Independent of torch.distributions.*pyro.distributions"):
        observed_through(bernoulli).initialize(X, (X[:, 0] > 0).to(X))


def test_booleans_under_a_normal_noise_are_refused_by_the_loss():
    gp, likelihood = GaussianProcess(RBF()), Gaussian()

    def model(x, y=None):
        return pyro.sample("y", likelihood(gp(x)), obs=y)

    guide, y = Variational(model, InducingPoints(5)), X[:, 0] > 0
    guide.initialize(X, y)
    with pytest.raises(TypeError, match="y is bool on cpu and the inputs are float64 on cpu: convert one"):
        fit(ELBO(12)(guide.model, guide), X, y, steps=2)


def test_whole_numbers_far_from_zero_are_warned_of():
    gp = GaussianProcess(RBF())

    def model(x, y=None):
        return pyro.sample("y", dist.Normal(pyro.sample("f", gp(x))[..., 0], 1.0).to_event(1), obs=y)

    with pytest.warns(UserWarning, match="the target of the site 'y' has mean 500 .*: standardise targets"):
        Variational(model, InducingPoints(5)).initialize(X, torch.full((12,), 500))
