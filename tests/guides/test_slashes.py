"""Slashes in the names of sites: observations may have them, as under ``poutine.scope``; sites of Gaussian processes may not."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    PosteriorDraws,
    Variational,
    draw_functions,
    predict,
    run_chains,
)

pytestmark = pytest.mark.usefixtures("local")


class OneLayer(PyroModule):
    """A GP with noise; its observation has the name that is given."""

    def __init__(self, name):
        super().__init__()
        self.gp, self.likelihood, self.name = GaussianProcess(RBF()), Gaussian(variance=0.25), name

    def forward(self, x, y=None):
        return pyro.sample(self.name, self.likelihood(self.gp(x)), obs=y)


class TwoFunctions(PyroModule):
    """A latent function with a name of its own beside an observation ``y``."""

    def __init__(self, name):
        super().__init__()
        self.a, self.b, self.likelihood, self.name = GaussianProcess(RBF()), GaussianProcess(RBF()), Gaussian(), name

    def forward(self, x, y=None, z=None):
        h = pyro.sample(self.name, self.b(x))
        pyro.sample("z", dist.Normal(h[..., 0], 0.3).to_event(1), obs=z)
        return pyro.sample("y", self.likelihood(self.a(x)), obs=y)


def data():
    x = torch.linspace(-1, 1, 6)[:, None]
    return x, torch.sin(3 * x[:, 0])


def exact_mean(x, y, new):
    def covariance(a, b):
        return torch.exp(-0.5 * (a - b.T) ** 2)

    return covariance(new, x) @ torch.linalg.solve(covariance(x, x) + 0.25 * torch.eye(len(x)), y)


def test_a_slash_in_the_name_of_an_observation_changes_no_number():
    x, y = data()
    elbos, means = [], []
    for name in ("y", "scope/y", "a/b/c"):
        torch.manual_seed(0)
        guide = Variational(OneLayer(name), InducingPoints(6), MonteCarlo(2))
        guide.initialize(x, y)
        assert list(guide.processes._modules) == [f"{name}/f"]
        elbos.append(-ELBO(6).loss(guide.model, guide, x, y))
        means.append(predict(guide, x).mean)
    assert elbos[0] == elbos[1] == elbos[2]
    assert torch.equal(means[0], means[1]) and torch.equal(means[0], means[2])


def test_functions_of_an_observation_with_a_slash_are_drawn_under_its_name():
    x, y = data()
    new = torch.tensor([[0.3], [1.7]])
    expected = exact_mean(x, y, new)
    draws = PosteriorDraws(OneLayer("scope/y"), {}, (x, y))
    for site in (None, "scope/y/f"):
        found = draw_functions(draws, 4000, site=site, seed=0)(new).mean(0)[:, 0]
        assert torch.allclose(found, expected, atol=0.06)
    assert torch.allclose(predict(draws, new).mean, expected, atol=1e-6)


@pytest.mark.parametrize("use", ["guide", "chains", "draws"])
def test_a_function_site_with_a_slash_is_refused(use):
    x, y = data()
    model = TwoFunctions("y/f")
    with pytest.raises(ValueError, match="site 'y/f' has a slash in its name.*without one"):
        if use == "guide":
            Variational(model, InducingPoints(6), MonteCarlo(2)).initialize(x, y, y)
        elif use == "chains":
            run_chains(EllipticalSlice(model), (x, y, y), num_samples=2, warmup_steps=2, num_chains=1, processes=1)
        else:
            predict(PosteriorDraws(model, {}, (x, y, y)), x, site="y")
