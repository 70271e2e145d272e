"""The start from one layer: which parameters it sets, to what, and where it leaves a model as it is."""

import copy
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    RBF,
    DeepGP,
    Gaussian,
    GaussianProcess,
    LinearMean,
    MissingOutputs,
    Standardizer,
    StudentT,
    concatenate_inputs,
    start_from_one_layer,
)
from pyro_dgp.training import one_layer_start

pytestmark = pytest.mark.usefixtures("local")


def data(rows=200, inputs=6, seed=0):
    """Inputs of which the first and the third matter."""
    torch.manual_seed(seed)
    x = torch.randn(rows, inputs)
    return x, torch.sin(2 * x[:, 0]) + x[:, 2] + 0.05 * torch.randn(rows)


def state(model):
    return copy.deepcopy(model.state_dict())


@pytest.fixture
def lengthscales(monkeypatch):
    """Known lengthscales in the place of those that are learned."""
    known = torch.tensor([0.5, 20.0, 1.0, 10.0, 40.0, 5.0])
    monkeypatch.setattr(one_layer_start, "_relevant", lambda *args, **options: (known, torch.tensor(0.3)))
    return known


def changed(model, before):
    return {
        name.removesuffix("_unconstrained")
        for name, value in state(model).items()
        if not torch.equal(value, before[name])
    }


def test_the_mean_of_the_first_hidden_layer_is_set_and_nothing_else(lengthscales):
    x, y = data()
    model = DeepGP(x, 3, 2, mean=LinearMean.fit, per_output=True)
    before = state(model)
    assert start_from_one_layer(model, x, y).sites == ["h1"]
    assert changed(model, before) == {"hidden.0.mean.weight"}
    scaled = (x - x.mean(0)) / lengthscales
    total = scaled.var(0, correction=0).sum()
    _, _, directions = torch.linalg.svd(scaled, full_matrices=False)
    h = (x - x.mean(0)) @ model.hidden[0].mean.weight
    expected = scaled @ directions[:2].mT * (2 / total).sqrt()
    torch.testing.assert_close(h.abs(), expected.abs())
    assert float(h.detach().var(0, correction=0).mean()) == pytest.approx(1.0, abs=0.05)


def test_the_lengthscales_are_set_where_no_mean_is_learned(lengthscales):
    x, y = data()
    model = DeepGP(x, 3, 2, kernel="rbf+matern52", per_output=True)
    before = state(model)
    assert start_from_one_layer(model, x, y).sites == ["h1"]
    assert changed(model, before) == {f"hidden.0.kernel.parts.{part}.lengthscale" for part in (0, 1)}
    total = (x.var(0, correction=0) / lengthscales.square()).sum()
    found = model.hidden[0].kernel.parts[1].lengthscale.detach()
    torch.testing.assert_close(found, (lengthscales * total.sqrt()).expand(2, 6))
    assert float(((x - x.mean(0)) / found[0]).var(0, correction=0).sum()) == pytest.approx(1.0)


def test_a_layer_as_wide_as_the_inputs_begins_at_the_scaled_inputs(lengthscales):
    x, y = data()
    model = DeepGP(x, 2, 8, mean=LinearMean.fit)
    start_from_one_layer(model, x, y)
    total = (x.var(0, correction=0) / lengthscales.square()).sum()
    expected = torch.zeros(6, 8)
    expected[:, :6] = torch.diag((6 / total).sqrt() / lengthscales)
    torch.testing.assert_close(model.hidden[0].mean.weight.detach(), expected)


def test_the_inputs_that_matter_are_found_in_any_units():
    x, y = data()
    scales = torch.tensor([1e-3, 1.0, 1e3, 1.0, 10.0, 0.1])
    weights = []
    for inputs, targets in ((x, y), (x * scales + 5, 100 * y - 7)):
        model = DeepGP(inputs, 2, 2, mean=LinearMean.fit)
        assert start_from_one_layer(model, inputs, targets, steps=300, num_inducing=50).sites == ["h1"]
        weights.append(model.hidden[0].mean.weight.detach())
    torch.testing.assert_close(weights[0], weights[1] * scales[:, None], rtol=1e-4, atol=1e-4)
    importance = weights[0].norm(dim=1)
    assert set(importance.argsort(descending=True)[:2].tolist()) == {0, 2}
    assert importance.sort(descending=True).values[2] < 0.5 * importance.sort(descending=True).values[1]


def test_a_standardizer_in_the_model_is_seen():
    x, y = data()
    x, y = 30 + 8 * x, 1000 * y
    model = DeepGP(x, 2, 2, mean=LinearMean.fit, standardizer=Standardizer.fit(x, y))
    assert start_from_one_layer(model, x, y, steps=300, num_inducing=50).sites == ["h1"]
    importance = model.hidden[0].mean.weight.detach().norm(dim=1)
    assert set(importance.argsort(descending=True)[:2].tolist()) == {0, 2}


def test_frozen_fixed_and_sampled_parameters_stay(lengthscales):
    x, y = data()
    frozen = DeepGP(x, 2, 2, mean=LinearMean.fit)
    frozen.requires_grad_(False)
    fixed = DeepGP(x, 2, 2, kernel="matern52-isotropic")
    sampled = DeepGP(x, 2, 2)
    sampled.hidden[0].kernel.lengthscale = PyroSample(dist.LogNormal(torch.zeros(6), 1.0).to_event(1))
    for model in (frozen, fixed, sampled, DeepGP(x, 1)):
        before = state(model)
        assert start_from_one_layer(model, x, y).sites == []
        assert all(torch.equal(value, before[name]) for name, value in state(model).items())


def test_nothing_is_started_from_groups_or_classes():
    x, y = data()
    model = DeepGP(x, 2, 2, mean=LinearMean.fit)
    before = state(model)
    assert start_from_one_layer(model, x, (y > 0).long(), steps=10).sites == []
    assert start_from_one_layer(model, x.expand(3, -1, -1), y.expand(3, -1), steps=10).sites == []
    assert all(torch.equal(value, before[name]) for name, value in state(model).items())


class Skip(PyroModule):
    """A user's model: two hidden GPs of the inputs, one above them, and a second argument."""

    def __init__(self, x):
        super().__init__()
        self.a = GaussianProcess(RBF(x.shape[-1]), LinearMean.fit(x, 2), 2)
        self.b = GaussianProcess(RBF(), LinearMean.fit(x, 1), 1)
        self.c = GaussianProcess(RBF(2), LinearMean.fit(torch.randn(9, 2), 2), 2)
        self.top = GaussianProcess(RBF(3 + x.shape[-1]))
        self.likelihood = Gaussian()

    def forward(self, x, y=None, *, shift):
        a, b = pyro.sample("a", self.a(x)), pyro.sample("b", self.b(x))
        c = pyro.sample("c", self.c(a))
        top = self.top(concatenate_inputs(torch.cat([b, c], -1), x))
        return pyro.sample("y", self.likelihood(top), obs=None if y is None else y - shift)


def test_every_hidden_process_of_a_users_model_that_takes_the_inputs_is_started(lengthscales):
    x, y = data()
    model = Skip(x)
    before = state(model)
    generator = torch.get_rng_state()
    assert start_from_one_layer(model, x, y, shift=0.5).sites == ["a", "b"]
    assert torch.equal(generator, torch.get_rng_state())
    assert changed(model, before) == {"a.mean.weight", "b.mean.weight"}
    assert model.a.mean.weight.shape == (6, 2) and model.b.mean.weight.shape == (6, 1)


class OfLogs(PyroModule):
    """A user's model of the logarithm of its targets."""

    def __init__(self, x):
        super().__init__()
        self.gp, self.likelihood = DeepGP(x, 2, 2, mean=LinearMean.fit), Gaussian()
        self.gp.likelihood = StudentT()

    def forward(self, x, y=None):
        h = pyro.sample("h", self.gp.hidden[0](x))
        return pyro.sample("y", self.likelihood(self.gp.top(h)), obs=None if y is None else y.log())


def test_rows_without_a_target_are_left_out():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 3, generator=generator)
    y = torch.sin(2 * x[:, 1]) + 0.1 * torch.randn(120, generator=generator)
    missing = torch.where(torch.arange(120) % 3 == 0, math.nan, y)

    def made():
        return DeepGP(x, width=2, mean=LinearMean.fit, likelihood=MissingOutputs(Gaussian()))

    model, complete = made(), DeepGP(x, width=2, mean=LinearMean.fit)
    start = start_from_one_layer(model, x, missing, steps=200, num_inducing=20)
    assert start.sites == ["h1"]
    assert model.hidden[0].mean.weight.abs().sum(1).argmax() == 1
    observed = ~missing.isnan()
    expected = start_from_one_layer(complete, x[observed], y[observed], steps=200, num_inducing=20).noise
    torch.testing.assert_close(start.noise, expected, rtol=0.3, atol=0.0)
    with pytest.raises(ValueError, match="y holds NaN or infinity"):
        start_from_one_layer(complete, x, missing)


def test_noise_begins_at_that_of_one_layer_in_any_units(lengthscales):
    x, y = data()
    model = DeepGP(x, 2, 2, mean=LinearMean.fit)
    started = start_from_one_layer(model, x, y)
    before = state(model)
    assert started and started.noise == torch.tensor(0.3) and started.set_noise(model, x, y)
    assert changed(model, before) == {"likelihood.variance"}
    assert float(model.likelihood.variance.detach()) == pytest.approx(0.3)
    y = 10 * y + 3
    in_units = DeepGP(x, 2, 2, mean=LinearMean.fit, standardizer=Standardizer.fit(x, y))
    assert start_from_one_layer(in_units, x, y).set_noise(in_units, x, y)
    expected = float(0.3 / y.var(correction=0))
    assert float(in_units.likelihood.variance.detach()) == pytest.approx(expected, rel=1e-3)


def test_noise_stays_where_one_layer_says_nothing_of_it(lengthscales):
    x, y = data()
    y = y.exp()
    started = start_from_one_layer(DeepGP(x, 2, 2, mean=LinearMean.fit), x, y)
    frozen, sampled, two = (DeepGP(x, 2, 2, mean=LinearMean.fit) for _ in range(3))
    frozen.likelihood.requires_grad_(False)
    sampled.likelihood.variance = PyroSample(dist.LogNormal(0.0, 1.0))
    two.other = Gaussian()
    options = {"mean": LinearMean.fit, "standardizer": Standardizer.fit(x, y)}
    kinds = (StudentT(), MissingOutputs(Gaussian()))
    others = [DeepGP(x, 2, 2, likelihood=likelihood, **options) for likelihood in kinds]
    high = DeepGP(x, 2, 2, mean=LinearMean.fit, likelihood=Gaussian(variance=0.5, floor=0.4))
    for other in (frozen, sampled, two, *others, high, OfLogs(x)):
        before = state(other)
        assert not started.set_noise(other, x, y) and not changed(other, before)


def test_the_noise_that_one_layer_learns_is_in_units_of_the_targets():
    x, y = data()
    for factor in (1.0, 100.0):
        model = DeepGP(x, 2, 2, mean=LinearMean.fit)
        started = start_from_one_layer(model, x, factor * y - 7, steps=400, num_inducing=50)
        assert started.noise is not None and 0.001 < float(started.noise) / factor**2 < 0.05  # the truth is 0.0025
    assert start_from_one_layer(DeepGP(x, 1), x, y).noise is None
    flat = start_from_one_layer(DeepGP(x, 2, 2, mean=LinearMean.fit), x, torch.full_like(y, 3.0), steps=5)
    assert flat.sites == ["h1"] and flat.noise is None


def test_an_input_that_is_the_same_in_all_rows_is_left_as_it_is():
    """Its mean is rounded, and so are differences to it."""
    torch.manual_seed(0)
    x = torch.cat([torch.randn(100, 2), torch.full((100, 1), 0.1)], -1).float()
    y = torch.sin(2 * x[:, 1])
    model = DeepGP(x, width=2).float()
    assert start_from_one_layer(model, x, y, steps=50, num_inducing=10).sites == ["h1"]
    assert bool((model.hidden[0].kernel.lengthscale > 0.05).all())
