"""Gaussian processes whose inputs at a row are computed from other rows."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from torch import nn

from pyro_dgp import RBF, DeepGP, Gaussian, GaussianProcess, InducingPoints, PosteriorDraws, Variational, predict
from pyro_dgp.guides.other_rows import sees_other_rows


class OnFeatures(PyroModule):
    """Two layers on features of the inputs."""

    def __init__(self, features, width=2):
        super().__init__()
        self.features = features
        self.hidden = GaussianProcess(RBF(), num_outputs=width)
        self.top = GaussianProcess(RBF())
        self.likelihood = Gaussian()

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(self.features(x)))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


def data(rows=12):
    x = torch.randn(rows, 2, dtype=torch.float64)
    return x, torch.sin(x[:, 0])


def attention(x):
    return torch.softmax(x @ x.mT, -1) @ x


LOOKING = {
    "mean": lambda x: x - x.mean(0),
    "scale": lambda x: x / x.std(0),
    "attention": attention,
    "order": lambda x: x.argsort(0).to(x),
    "all before": lambda x: torch.cat([x[-1:], x[:-1]]),
}


@pytest.mark.parametrize("name", LOOKING)
def test_features_of_several_rows_are_warned_of(name):
    x, y = data()
    guide = Variational(OnFeatures(LOOKING[name]), InducingPoints(4))
    with pytest.warns(
        UserWarning, match="the inputs of the Gaussian process 'h' at a row depend on the other rows of the call"
    ):
        guide.initialize(x, y)


@pytest.mark.parametrize("name", ["mean", "attention"])
def test_draws_of_a_model_that_looks_at_other_rows_are_warned_of(name):
    class One(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian()

        def forward(self, x, y=None):
            return pyro.sample("y", self.likelihood(self.gp(LOOKING[name](x))), obs=y)

    x, y = data()
    with pytest.warns(UserWarning, match="'y/f' at a row depend on the other rows"):
        predict(PosteriorDraws(One(), {}, (x, y)), x)


class WithLatentRows(OnFeatures):
    def forward(self, x, y=None):
        with pyro.plate("rows", x.shape[-2]):
            own = pyro.sample("own", dist.Normal(x.new_zeros(()), 1.0))
        h = pyro.sample("h", self.hidden(torch.cat([x, own[..., None]], -1)))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


class Warped(OnFeatures):
    def __init__(self):
        super().__init__(lambda x: x)
        self.power = PyroSample(dist.LogNormal(torch.tensor(0.0, dtype=torch.float64), 1.0))

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x.abs() ** self.power))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


class Noisy(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


ALONE = {
    "a network": lambda: OnFeatures(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()),
    "batch statistics": lambda: OnFeatures(nn.BatchNorm1d(2).double()),
    "dropout": lambda: OnFeatures(nn.Dropout(0.5)),
    "noise": lambda: OnFeatures(Noisy()),
    "latent rows": lambda: WithLatentRows(lambda x: x),
    "a latent warp": Warped,
    "the library's model": lambda: DeepGP(data()[0], layers=3, width=2),
    "single precision": lambda: OnFeatures(nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))).float(),
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("rows", [2, 13, 200])
def test_rows_that_are_looked_at_alone_are_no_others(name, rows):
    model = ALONE[name]()
    x, y = data(rows)
    if name == "single precision":
        x, y = x.float(), y.float()
    modes = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    assert sees_other_rows(model, ((x, y), {}), [model]) is None
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_model_that_looks_at_other_rows_by_a_layer_above():
    class Above(OnFeatures):
        def forward(self, x, y=None):
            h = pyro.sample("h", self.hidden(x))
            return pyro.sample("y", self.likelihood(self.top(h + x - x.mean(0))), obs=y)

    x, y = data()
    assert sees_other_rows(Above(lambda x: x), ((x, y), {}), []) == "y/f"
