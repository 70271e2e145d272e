"""A prediction of a site that the model makes from another observation, which is unknown at new rows."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    ELBO,
    RBF,
    Bernoulli,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    Poisson,
    PosteriorDraws,
    SigmaPoints,
    StochasticGradientHMC,
    Variational,
    fit,
    predict,
)
from pyro_dgp.prediction import from_guide

X_NEW = torch.tensor([[-0.5], [0.1], [0.8]], dtype=torch.float64)


class Chain(PyroModule):
    """Two measurements, the second made from the first."""

    def __init__(self, likelihood=None, prior=None, deep=False):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(lengthscale=0.5)), likelihood or Gaussian(variance=0.1)
        self.hidden = GaussianProcess(RBF()) if deep else None
        if prior is not None:
            self.likelihood.variance = PyroSample(prior)

    def forward(self, x, first=None, second=None, third=None):
        if self.hidden is not None:
            x = pyro.sample("h", self.hidden(x))
        first = pyro.sample("first", self.likelihood(self.gp(x)), obs=first)
        double = pyro.deterministic("double", 2 * first)
        second = pyro.sample("second", dist.Normal(double, 0.1).to_event(1), obs=second)
        return pyro.sample("third", dist.Normal(0 * x[..., 0], 1.0).to_event(1), obs=third)


def data():
    x = torch.linspace(-1, 1, 12)[:, None]
    first = torch.sin(3 * x[:, 0]) + 0.3 * torch.randn(12)
    return x, first, 2 * first + 0.1 * torch.randn(12), torch.randn(12)


def guided(model, propagation, x, *targets):
    guide = Variational(model, InducingPoints(12), propagation)
    guide.initialize(x, *targets)
    fit(ELBO(12)(model, guide), x, targets[0], steps=30, learning_rate=0.05, second=targets[1], third=targets[2])
    return guide


FITS = {
    "exact regression": lambda *data: PosteriorDraws(Chain(), {}, data),
    "a guide": lambda *data: guided(Chain(), MonteCarlo(3), *data),
    "a guide of two layers": lambda *data: guided(Chain(deep=True), MonteCarlo(3), *data),
    "sigma points": lambda *data: guided(Chain(deep=True), SigmaPoints("qr3", 4), *data),
    "a hyperprior": lambda *data: guided(Chain(prior=dist.LogNormal(-2.3, 0.1)), MonteCarlo(3), *data),
}


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("name", FITS)
def test_each_component_has_a_draw_of_its_own(name):
    known = FITS[name](*data())
    first = predict(known, X_NEW, 2000, site="first")
    second = predict(known, X_NEW, 400, site="second")
    error = (4 * first.variance / 400).sqrt()
    assert bool(((second.mean - 2 * first.mean).abs() < 5 * error).all())
    torch.testing.assert_close(second.variance, 4 * first.variance + 0.01, rtol=0.35, atol=0)
    double = predict(known, X_NEW, 400, site="double")
    torch.testing.assert_close(double.variance, 4 * first.variance, rtol=0.35, atol=0)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Poisson()])
def test_classes_and_counts_are_drawn_for_each_component_too(likelihood):
    class Model(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp, self.likelihood = GaussianProcess(RBF()), likelihood

        def forward(self, x, first=None, second=None):
            first = pyro.sample("first", self.likelihood(self.gp(x)), obs=first)
            return pyro.sample("second", dist.Normal((first > 0).to(x), 0.1).to_event(1), obs=second)

    x = torch.linspace(-1, 1, 12)[:, None]
    first = (torch.rand(12) < 0.5).to(x)
    guide = Variational(Model(), InducingPoints(6), MonteCarlo(3))
    guide.initialize(x, first, first)
    above = (predict(guide, X_NEW, 2000, site="first").sample((4000,)) > 0).double().mean(0)
    second = predict(guide, X_NEW, 400, site="second")
    torch.testing.assert_close(second.mean, above, rtol=0, atol=0.15)
    torch.testing.assert_close(second.variance, above * (1 - above) + 0.01, rtol=0.3, atol=0)


@pytest.mark.usefixtures("local")
def test_what_is_given_or_is_not_read_costs_no_further_pass(monkeypatch):
    x, first, second, third = data()
    guide = guided(Chain(), MonteCarlo(3), x, first, second, third)
    passes = []
    of_pass = from_guide._pass

    def counted(*args, **named):
        passes.append(0)
        return of_pass(*args, **named)

    monkeypatch.setattr(from_guide, "_pass", counted)
    given = predict(guide, X_NEW, 100, site="second", first=torch.tensor([1.0, -1.0, 0.0]))
    torch.testing.assert_close(given.mean, torch.tensor([2.0, -2.0, 0.0]))
    torch.testing.assert_close(given.variance, torch.full((3,), 0.01))
    assert len(passes) < 10
    passes.clear()
    torch.testing.assert_close(predict(guide, X_NEW, 100, site="third").mean, torch.zeros(3))
    assert len(passes) < 10
    passes.clear()
    assert predict(guide, X_NEW, 100, site="second").variance.shape == (3,)
    assert len(passes) > 100


def test_a_hidden_layer_that_training_observed_is_drawn_for_each_component():
    class Observed(PyroModule):
        def __init__(self):
            super().__init__()
            self.hidden, self.top = GaussianProcess(RBF(lengthscale=0.3)), GaussianProcess(RBF())
            self.likelihood = Gaussian(variance=0.01)

        def forward(self, x, h=None, y=None):
            h = pyro.sample("h", self.hidden(x), obs=h)
            return pyro.sample("y", self.likelihood(self.top(h)), obs=y)

    x = torch.linspace(-1, 1, 10)[:, None]
    h = 2 * torch.sin(3 * x)
    model, new = Observed(), torch.tensor([[2.5]])
    known = PosteriorDraws(model, {}, (x, h, torch.sin(2 * h[:, 0])))
    there = predict(known, new, 2000, site="h")  # far from the data: the prior
    values = there.sample((2000,)).reshape(-1, 1)
    inner = PosteriorDraws(OneLayer(), {}, (h, torch.sin(2 * h[:, 0])))
    expected = predict(inner, values, 1)
    found = predict(known, new, 400)
    second_moment = float((expected.variance + expected.mean.square()).mean())
    assert float(found.mean) == pytest.approx(float(expected.mean.mean()), abs=0.2)
    assert float(found.variance + found.mean.square()) == pytest.approx(second_moment, rel=0.2)


class OneLayer(PyroModule):
    """The top layer of that model alone."""

    def __init__(self):
        super().__init__()
        self.top, self.likelihood = GaussianProcess(RBF()), Gaussian(variance=0.01)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.top(x)), obs=y)


class Shifted(Chain):
    """A second measurement that hardly depends on the first, with a hyperparameter of its own."""

    def __init__(self):
        super().__init__()
        self.shift = PyroSample(dist.Normal(0.0, 1.0))

    def forward(self, x, first=None, second=None):
        shift = self.shift
        first = pyro.sample("first", self.likelihood(self.gp(x)), obs=first)
        return pyro.sample("second", dist.Normal(shift + 0.001 * first, 0.1).to_event(1), obs=second)


@pytest.mark.parametrize("components", [60, 100, 119])
def test_each_posterior_draw_has_the_same_share(components):
    x, first, second, _ = data()
    known = PosteriorDraws(Shifted(), {"shift": torch.arange(60.0)}, (x, first, second))
    mean = predict(known, torch.tensor([[5.0]]), components, site="second").mean
    assert float(mean) == pytest.approx(29.5, abs=0.01)


class Rare(Chain):
    """A second measurement that depends on the first where this is high, which is rare."""

    def forward(self, x, first=None, second=None):
        first = pyro.sample("first", self.likelihood(self.gp(x)), obs=first)
        return pyro.sample("second", dist.Normal(10.0 * (first > 2), 0.1).to_event(1), obs=second)


@pytest.mark.usefixtures("local")
def test_rare_dependence_is_found_at_a_single_row():
    x, first, second, _ = data()
    far = torch.tensor([[9.0]])  # y1 is N(0, 1.1) there
    expected = 10 * float(1 - dist.Normal(0.0, 1.1**0.5).cdf(torch.tensor(2.0)))
    guide = Variational(Rare(), InducingPoints(12), MonteCarlo(1))
    guide.initialize(x, first, second)
    for known in (PosteriorDraws(Rare(), {}, (x, first, second)), guide):
        assert float(predict(known, far, 2000, site="second").mean) == pytest.approx(expected, abs=0.25)


class OwnOffsets(PyroModule):
    """A latent offset for each row, and function values that are sampled."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("rows", x.shape[-2]):
            offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
            return pyro.sample("y", dist.Normal(f + offset, 0.1), obs=y)


@pytest.mark.parametrize("count", [1, 3])
def test_few_posterior_draws_draw_the_latent_values_of_new_rows_often(count):
    x, *_ = data()
    draws = {"f": 0.1 * torch.randn(count, 12, 1), "offset": torch.randn(count, 12)}
    known = PosteriorDraws(OwnOffsets(), draws, (x, torch.randn(12)))
    variance = predict(known, x, 1000, site="y").variance
    torch.testing.assert_close(variance, torch.full((12,), 1.01), rtol=0.25, atol=0)


@pytest.mark.usefixtures("local")
def test_few_states_of_stochastic_gradient_hmc_draw_observations_often():
    x, first, second, third = data()
    model = Chain().requires_grad_(False)
    guide = Variational(model, InducingPoints(12, covariance="delta"), MonteCarlo(1))
    guide.initialize(x, first, second, third)
    sampler = StochasticGradientHMC(burn_in=5, thin=1, learning_rate=0.0)
    known = sampler.run(guide, x, first, num_samples=3, batch_size=12, second=second, third=third)
    found = predict(known, X_NEW, 900, site="first")
    expected = 4 * found.variance + 0.01
    torch.testing.assert_close(predict(known, X_NEW, 900, site="second").variance, expected, rtol=0.3, atol=0)
