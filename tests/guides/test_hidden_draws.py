"""Models that draw beyond their sites, or set the seed of what they draw: all samples of a prediction would be one."""

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    PosteriorDraws,
    Variational,
    fit,
    predict,
)

pytestmark = pytest.mark.usefixtures("local")
X = torch.linspace(-1, 1, 8, dtype=torch.float64)[:, None]
Y = torch.sin(3 * X[:, 0])


class Plain(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian()
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


class Hidden(Plain):
    def forward(self, x, y=None):
        with poutine.block():
            shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        return super().forward(x + shift, y)


class Coin(Plain):
    """A draw of two values, which are often the same twice."""

    def forward(self, x, y=None):
        return super().forward(x + (torch.rand(()) < 0.5), y)


class Noisy(Plain):
    def forward(self, x, y=None):
        return super().forward(x + torch.randn_like(x), y)


class Seeded(Plain):
    def forward(self, x, y=None):
        torch.manual_seed(3)
        return super().forward(x, y)


class OfNumPy(Plain):
    def forward(self, x, y=None):
        return super().forward(x + float(np.random.standard_normal()), y)


class Annealed(Plain):
    """Another model in each run, without a draw."""

    calls = 0

    def forward(self, x, y=None):
        self.calls += 1
        return super().forward(x + 0.01 * self.calls, y)


class Dropped(Plain):
    """Random in training alone, which is no matter."""

    def forward(self, x, y=None):
        return super().forward(self.dropout(x), y)


def fitted_by(model):
    """The ways to numbers, as functions that have not been called."""
    yield lambda: Variational(model, InducingPoints(3), MonteCarlo(2)).initialize(X, Y)
    yield lambda: predict(PosteriorDraws(model, {}, (X, Y)), X)
    yield lambda: MarginalLikelihood(model)(X, Y)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Hidden, "draws at random beyond its sites"),
        (Coin, "draws at random beyond its sites"),
        (Noisy, "draws at random beyond its sites"),
        (OfNumPy, "draws at random beyond its sites"),
        (Seeded, "sets the seed of its random numbers"),
    ],
)
def test_models_whose_samples_would_be_one_are_refused(kind, sentence):
    """Of four predictions by 1,000 samples the means were 1.9, 0.4, 1.0 and 0.7, each with a third of the standard deviation."""
    for run in fitted_by(kind()):
        with pytest.raises(ValueError, match=f"the model {sentence}"):
            run()


def test_a_model_under_a_seed_is_refused():
    guide = Variational(poutine.seed(Plain(), rng_seed=3), InducingPoints(3), MonteCarlo(2))
    with pytest.raises(ValueError, match="the model sets the seed of its random numbers, as pyro.poutine.seed"):
        guide.initialize(X, Y)


@pytest.mark.parametrize("kind", [Plain, Dropped, Annealed])
def test_draws_at_sites_and_in_training_are_fine_and_leave_the_random_state_alone(kind):
    state = torch.get_rng_state()
    for run in fitted_by(kind().eval()):
        run()
    torch.set_rng_state(state)
    first = torch.rand(3)
    torch.set_rng_state(state)
    MarginalLikelihood(Plain())(X, Y)
    assert torch.equal(torch.rand(3), first)


class NoisyLayer(PyroModule):
    """A latent value of each row whose prior depends on function values, as of counts that vary more than their rate."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("rows", x.shape[-2]):
            e = pyro.sample("e", dist.Normal(f, 0.5))
            return pyro.sample("y", dist.Poisson(e.exp()), obs=y)


@pytest.mark.parametrize("samples", [1, 4])
def test_latent_values_of_rows_may_depend_on_function_values(samples):
    """The axis of the samples was taken for other rows."""
    guide = Variational(NoisyLayer(), InducingPoints(3), MonteCarlo(samples))
    y = torch.tensor([0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 9.0])
    guide.initialize(X, y)
    losses = fit(ELBO(8)(guide.model, guide), X, y, steps=150, learning_rate=0.05).losses
    assert sum(losses[-20:]) < sum(losses[:20])
    mean = predict(guide, X, 400).mean
    assert mean[-1] > 3 > 2.5 > mean[0]
