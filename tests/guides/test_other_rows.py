"""Models whose numbers at a row are computed from other rows."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from torch import nn

from pyro_dgp import (
    RBF,
    DeepGP,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    LinearCoregionalization,
    Poisson,
    PosteriorDraws,
    Variational,
    predict,
    vecchia,
)
from pyro_dgp.guides.other_rows import sees_other_rows
from pyro_dgp.internal.parameters import modules_of
from tests.contract.table import CASES


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
    seen = "y/f" if name == "all before" else "h"  # function values at the same inputs, of other rows
    with pytest.warns(
        UserWarning, match=f"the inputs of the Gaussian process '{seen}' at a row depend on the other rows of the call"
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
    assert sees_other_rows(Above(lambda x: x), ((x, y), {}), []) == ("inputs", "y/f")


class Sites(PyroModule):
    """A Gaussian process and a site that a function of its values and of the arguments makes."""

    def __init__(self, forward, mean=None, likelihood=None, **gp):
        super().__init__()
        self.gp, self.likelihood, self.body = GaussianProcess(RBF(), mean, **gp), likelihood or Gaussian(), forward

    def forward(self, x, y=None, **values):
        return self.body(self, x, y, **values)


def around(self, x, y, **values):
    return pyro.sample("y", self.likelihood(self.gp(x), **values), obs=y)


def given(parameters):
    """Return a model of the sites f and y, of which y is normal with some parameters."""

    def body(self, x, y):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", dist.Normal(*parameters(f[..., 0], x)).to_event(1), obs=y)

    return body


def sorts(self, x, y):
    order = x[..., 0].argsort(-1)
    return pyro.sample("y", self.likelihood(self.gp(x[order])), obs=None if y is None else y[order])


def sorts_sites(self, x, y):
    order = x[..., 0].argsort(-1)
    f = pyro.sample("f", self.gp(x[order]))
    return pyro.sample("y", dist.Normal(f[..., 0], 0.3).to_event(1), obs=None if y is None else y[order])


def reads_sorted(self, x, y):
    f = pyro.sample("f", self.gp(x))
    return pyro.sample("y", dist.Normal(f[..., x[..., 0].argsort(-1), 0], 0.3).to_event(1), obs=y)


def normalises(self, x, y, exposure):
    return around(self, x, y, exposure=exposure / exposure.mean())


def scaled_by_rows(self, x, y):
    return pyro.sample("y", dist.Gamma(*gamma_of(pyro.sample("f", self.gp(x)), x)).to_event(1), obs=y)


def gamma_of(f, x):
    return 2.0, f[..., 0].exp() / x[:, 0].abs().sum()


def inflated(self, x, y):
    f = pyro.sample("f", self.gp(x))[..., 0]
    return pyro.sample(
        "y", dist.ZeroInflatedPoisson((f + x[:, 0] - x[:, 0].mean()).exp(), gate=x.new_tensor(0.2)).to_event(1), obs=y
    )


def local(self, x, y):
    with pyro.plate("rows", len(x)):
        own = pyro.sample("own", dist.Normal(x[:, 0] - x[:, 0].mean(), 0.1))
    return pyro.sample("y", self.likelihood(self.gp(torch.cat([x, own[..., None]], -1))), obs=y)


def with_slopes(numbers):
    """Return a model with a latent coefficient, of prior mean zero, for each of some numbers of the rows."""

    def body(self, x, y):
        f, number = pyro.sample("f", self.gp(x)), numbers(x)
        slopes = pyro.sample("slopes", dist.Normal(torch.zeros(number.shape[-1]).to(x), 2.0).to_event(1))
        loc = f[..., 0] + (number * slopes.unsqueeze(-2)).sum(-1)
        return pyro.sample("y", dist.Normal(loc, 0.3).to_event(1), obs=y)

    return body


def behind_a_link(self, x, y):
    offset = pyro.sample("offset", dist.Normal(torch.zeros((), dtype=x.dtype), 100.0))
    f, share = pyro.sample("f", self.gp(x))[..., 0], x[:, 0].abs() / x[:, 0].abs().mean()
    return pyro.sample("y", dist.Bernoulli((f + offset.unsqueeze(-1) + share).sigmoid()).to_event(1), obs=y)


def hidden_in_order(self, x, y):
    return pyro.sample("f", self.gp(x.flip(-2)), obs=None if y is None else y.flip(-1)[:, None])


#: Makers of models, what is seen, and other arguments.
SEEN = {
    "mean function": (lambda: Sites(around, lambda x: 2 * (x - x.mean(-2, keepdim=True))[..., :1]), ("mean", "y/f")),
    "mean of a site": (
        lambda: Sites(given(lambda f, x: (f, 0.3)), lambda x: x[..., :1] / x.std(-2, keepdim=True)[..., :1]),
        ("mean", "f"),
    ),
    "parameter": (lambda: Sites(given(lambda f, x: (f + 2 * (x - x.mean(0))[..., 0], 0.3))), ("parameters", "y")),
    "noise": (lambda: Sites(given(lambda f, x: (f, 0.2 * x[:, 0].std()))), ("parameters", "y")),
    "number of rows": (lambda: Sites(given(lambda f, x: (f, (0.05 * len(x) / 30) ** 0.5))), ("parameters", "y")),
    "sorted inside a likelihood": (lambda: Sites(sorts), ("inputs", "y/f")),
    "sorted sites": (lambda: Sites(sorts_sites), ("parameters", "y")),
    "values in another order": (lambda: Sites(reads_sorted), ("parameters", "y")),
    "values of the row before": (
        lambda: Sites(given(lambda f, x: (torch.cat([f[..., :1], f[..., :-1]], -1), 0.3))),
        ("parameters", "y"),
    ),
    "rate of a Gamma": (lambda: Sites(scaled_by_rows), ("parameters", "y")),
    "rate of a mixture": (lambda: Sites(inflated), ("parameters", "y")),
    "prior of a latent value": (lambda: Sites(local), ("parameters", "own")),
    "share beside a wide offset": (lambda: Sites(behind_a_link), ("parameters", "y")),
    "number behind a latent slope": (
        lambda: Sites(with_slopes(lambda x: torch.arange(len(x)).to(x)[:, None])),
        ("parameters", "y"),
    ),
    "numbers behind latent slopes": (lambda: Sites(with_slopes(lambda x: x - x.mean(0))), ("parameters", "y")),
    "observed function in another order": (lambda: Sites(hidden_in_order), ("inputs", "f")),
}


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("rows", [5, 200])
@pytest.mark.parametrize("name", SEEN)
def test_numbers_of_several_rows_are_seen(name, rows, is_sorted):
    x, y = data(rows)
    if is_sorted:
        order = x[:, 0].argsort()
        x, y = x[order], y[order]
    make, seen = SEEN[name]
    model = make().double()
    assert sees_other_rows(model, ((x, y), {}), [model]) == seen
    assert sees_other_rows(model, ((), {"x": x, "y": y}), [model]) == seen
    model, x, y = model.float(), x.float(), y.float()
    assert sees_other_rows(model, ((x, y), {}), [model]) == seen


def test_an_argument_of_a_likelihood_that_is_normalised_is_warned_of():
    x, y = data()
    model = Sites(normalises, likelihood=Poisson())
    guide = Variational(model, InducingPoints(4))
    sentence = (
        "the parameters of the site 'y' at a row depend on the other rows of the call.*once from the training rows"
    )
    with pytest.warns(UserWarning, match=sentence):
        guide.initialize(x, y.exp().round(), exposure=y.exp())


@pytest.mark.parametrize("name", ["mean function", "sorted inside a likelihood"])
def test_draws_of_a_model_of_several_rows_are_warned_of(name):
    make, (part, _) = SEEN[name]
    x, y = data()
    with pytest.warns(
        UserWarning, match=f"the {part} of the Gaussian process 'y/f' at a row depend.* on the other rows"
    ):
        predict(PosteriorDraws(make(), {}, (x, y)), x)


def finds_repeated(self, x, y):
    places, row = torch.unique(x, dim=0, return_inverse=True)
    f = pyro.sample("f", self.gp(places))
    return pyro.sample("y", dist.Normal(f[..., row, 0], 0.3).to_event(1), obs=y)


def sorts_and_sorts_back(self, x, y):
    order = x[..., 0].argsort(-1)
    f = pyro.sample("f", self.gp(x[order]))
    return pyro.sample("y", dist.Normal(f[..., order.argsort(), 0], 0.3).to_event(1), obs=y)


def drops(self, x, y):
    f = torch.nn.functional.dropout(pyro.sample("f", self.gp(x)), 0.1, training=True)
    return pyro.sample("y", dist.Normal(f[..., 0], 0.3).to_event(1), obs=y)


def hides_some(self, x, y):
    f = pyro.sample("f", self.gp(x))[..., 0]
    return pyro.sample("y", dist.Normal(f, 0.3).mask(x[:, 0] > 0).to_event(1), obs=y)


def refuses_other_rows(self, x, y):
    if len(x) != 200 or x[0, 0] != x[:, 0].min():
        raise RuntimeError("other rows")
    return around(self, x, y)


def has_latents(self, x, y):
    scale = pyro.sample("scale", dist.HalfCauchy(torch.ones((), dtype=x.dtype)))
    kind = pyro.sample("kind", dist.Categorical(x.new_ones(3)))
    with pyro.plate("rows", len(x)):
        own = pyro.sample("own", dist.Normal(x[:, 0], scale))
    f = pyro.sample("f", self.gp(x))[..., 0]
    return pyro.sample("y", dist.StudentT(4.0, f + own + kind.unsqueeze(-1), scale.unsqueeze(-1)).to_event(1), obs=y)


def steep_mixture(self, x, y):
    f = pyro.sample("f", self.gp(x))[..., 0]
    parts = dist.Normal(torch.stack([f, -f], -1), 1e-4)
    return pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(logits=parts.loc), parts).to_event(1), obs=y)


def joins(self, x, y):
    f = pyro.sample("f", self.gp(x))[..., 0]
    return pyro.sample("y", dist.Normal(f.cumsum(-1), 0.3).to_event(1), obs=y)


SOUND = {
    "repeated rows": lambda: Sites(finds_repeated),
    "sorted and sorted back": lambda: Sites(sorts_and_sorts_back),
    "sorted and sorted back, with a mean": lambda: Sites(sorts_and_sorts_back, lambda x: x[..., :1].square()),
    "dropout of function values": lambda: Sites(drops),
    "masked": lambda: Sites(hides_some),
    "refuses other rows": lambda: Sites(refuses_other_rows),
    "latent values": lambda: Sites(has_latents),
    "steep mixture": lambda: Sites(steep_mixture),
    "sums of function values": lambda: Sites(joins),  # drawn jointly, of which other parts of the library know
    "coregionalised": lambda: Sites(around, likelihood=LinearCoregionalization(2, 2), num_outputs=2),
}


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize("rows", [2, 5, 200])
@pytest.mark.parametrize("name", SOUND)
def test_sound_models_look_at_no_other_rows(name, rows, kind):
    x, y = (values.to(kind) for values in data(rows))
    model = SOUND[name]().to(kind)
    assert sees_other_rows(model, ((x, y), {}), modules_of(model)) is None
    assert sees_other_rows(model, ((x,), {}), modules_of(model)) is None


@pytest.mark.parametrize("chance", [0.005, 0.001])
def test_rare_random_events_are_no_other_rows(chance):
    """An event in one run alone: four more runs without it say nothing of another set of rows."""

    def rarely_far(self, x, y):
        f = pyro.sample("f", self.gp(x))[..., 0]
        far = torch.bernoulli(torch.full_like(x[:, 0], chance))
        return pyro.sample("y", dist.Normal(f + 5 * far, 0.3).to_event(1), obs=y)

    x, y = data(60)
    model = Sites(rarely_far).double()
    for seed in range(40):
        torch.manual_seed(seed)
        assert sees_other_rows(model, ((x, y), {}), [model]) is None


def test_a_vecchia_approximation_looks_at_no_other_rows():
    """Neighbours are other rows, and part of the prior, not of its inputs."""
    x, y = data(50)
    model = Sites(given(lambda f, x: (f, 0.3))).double()
    assert sees_other_rows(vecchia(model, num_neighbors=3), ((x, y), {}), [model]) is None


@pytest.mark.parametrize("name", CASES, ids=lambda name: name.replace(" ", "_"))
def test_models_of_the_contract_look_at_no_other_rows(name):
    case = CASES[name]
    model = case.model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sees_other_rows(model, (case.args, dict(case.kwargs)), modules_of(model)) is None
