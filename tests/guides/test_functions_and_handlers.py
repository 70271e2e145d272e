"""Models that are plain functions, plain torch modules, or handlers around a model."""

import functools

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, TraceMeanField_ELBO
from pyro.nn import PyroModule, PyroSample
from pyro.optim import Adam

from pyro_dgp import (
    ELBO,
    RBF,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MonteCarlo,
    Validation,
    Variational,
    fit,
    fit_validated,
    module_local_parameters,
    predict,
    whitened,
)
from tests.examples import OneLayer, TwoLayers, TwoSites, regression


def parts():
    """A GP and a likelihood that stand by themselves, as beside a function."""
    return GaussianProcess(RBF(lengthscale=0.7)), Gaussian(variance=0.04)


def trained_by_fit(model, x, y):
    torch.manual_seed(0)
    guide = Variational(model, InducingPoints(6), MonteCarlo(1))
    guide.initialize(x, y)
    fit(ELBO(len(x))(model, guide), x, y, steps=40, learning_rate=0.05)
    return guide


def trained_by_svi(model, x, y, loss=None):
    pyro.clear_param_store()
    torch.manual_seed(0)
    guide = Variational(model, InducingPoints(6), MonteCarlo(1))
    guide.initialize(x, y)
    svi = SVI(model, guide, Adam({"lr": 0.05}), loss or ELBO())
    for _ in range(40):
        svi.step(x, y)
    return guide


@pytest.mark.parametrize("train", [trained_by_fit, trained_by_svi])
def test_a_function_trains_and_predicts_as_the_module_does(train):
    x, y = regression(20)
    module = OneLayer()
    expected = train(module, x, y)
    gp, likelihood = parts()

    def model(x, y=None):
        return pyro.sample("y", likelihood(gp(x)), obs=y)

    guide = train(model, x, y)
    assert gp.kernel.lengthscale_unconstrained.item() == pytest.approx(
        module.gp.kernel.lengthscale_unconstrained.item()
    )
    assert gp.kernel.lengthscale_unconstrained.item() != pytest.approx(
        parts()[0].kernel.lengthscale_unconstrained.item()
    )
    torch.testing.assert_close(predict(guide, x).mean, predict(expected, x).mean)
    torch.testing.assert_close(predict(guide, x).variance, predict(expected, x).variance)


def test_a_function_with_pyro_module_trains_too():
    x, y = regression(20)
    gp, likelihood = parts()

    def model(x, y=None):
        pyro.module("gp", gp)
        pyro.module("likelihood", likelihood)
        return pyro.sample("y", likelihood(gp(x)), obs=y)

    guide = trained_by_svi(model, x, y)
    expected = trained_by_svi(OneLayer(), x, y)
    torch.testing.assert_close(predict(guide, x).mean, predict(expected, x).mean)


def test_validated_training_takes_a_function():
    x, y = regression(40)
    gp, likelihood = parts()

    def model(x, y=None):
        return pyro.sample("y", likelihood(gp(x)), obs=y)

    guide = Variational(model, InducingPoints(6))
    guide.initialize(x, y)
    before = gp.kernel.lengthscale_unconstrained.item()
    fit_validated(guide, lambda beta, rows: ELBO(rows), x, y, validation=Validation(betas=(1.0,)), steps=20)
    assert gp.kernel.lengthscale_unconstrained.item() != before


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: poutine.condition(model, {}),
        lambda model: poutine.block(model, hide=["nothing"]),
        lambda model: poutine.scale(model, 1.0),
        lambda model: functools.partial(model),
    ],
    ids=["condition", "block", "scale", "partial"],
)
def test_handlers_around_a_model_are_models(wrap):
    x, y = regression(20)
    model = OneLayer()
    guide = Variational(wrap(model), InducingPoints(6))
    guide.initialize(x, y)
    expected = Variational(model, InducingPoints(6))
    expected.initialize(x, y)
    expected.load_state_dict(guide.state_dict())
    assert ELBO().loss(guide.model, guide, x, y) == pytest.approx(ELBO().loss(model, expected, x, y))
    torch.testing.assert_close(predict(guide, x).mean, predict(expected, x).mean)
    fit(ELBO()(guide.model, guide), x, y, steps=3)


@pytest.mark.usefixtures("local")
def test_a_scaled_model_has_the_scaled_objective_and_a_conditioned_one_its_values():
    x, y = regression(20)
    model = TwoSites()
    scaled = Variational(poutine.scale(model, 3.0), InducingPoints(6), MonteCarlo(1))
    plain = Variational(model, InducingPoints(6), MonteCarlo(1))
    for guide in (scaled, plain):
        guide.initialize(x, y)
    plain.load_state_dict(scaled.state_dict())
    losses = []
    for guide in (scaled, plain):
        torch.manual_seed(1)
        losses.append(ELBO().loss(guide.model, guide, x, y))
    assert losses[0] == pytest.approx(3 * losses[1])

    class Prior(OneLayer):
        def __init__(self):
            super().__init__()
            self.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))

    conditioned = poutine.condition(Prior(), {"gp.kernel.lengthscale": torch.tensor(0.3)})
    guide = Variational(conditioned, InducingPoints(6))
    guide.initialize(x, y)
    value = ELBO().loss(conditioned, guide, x, y)
    fixed = OneLayer(RBF(lengthscale=0.3))
    other = Variational(fixed, InducingPoints(6))
    other.initialize(x, y)
    other.processes.load_state_dict(guide.processes.state_dict())
    prior = float(dist.LogNormal(0.0, 1.0).log_prob(torch.tensor(0.3)))
    assert value == pytest.approx(ELBO().loss(fixed, other, x, y) - prior)


class Plain(torch.nn.Module):
    """Two GPs as attributes of a plain torch module, which Pyro does not name."""

    def __init__(self, x):
        super().__init__()
        inner = TwoLayers(x)
        self.hidden, self.top = GaussianProcess(RBF(), num_outputs=2), GaussianProcess(RBF())
        self.likelihood = inner.likelihood

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


class Listed(PyroModule):
    """The same two in a plain list of modules."""

    def __init__(self, x):
        super().__init__()
        plain = Plain(x)
        self.gps, self.likelihood = torch.nn.ModuleList([plain.hidden, plain.top]), Gaussian()

    def forward(self, x, y=None):
        h = pyro.sample("h", self.gps[0](x))
        return pyro.sample("y", self.likelihood(self.gps[1](h)), obs=y)


SHARED = "two modules of the model have a parameter 'kernel.lengthscale', and Pyro would train one for both"


@pytest.mark.parametrize("make", [Plain, Listed])
def test_two_gps_of_one_name_are_refused_wherever_pyro_trains_by_name(make):
    x, y = regression(20)
    for scope in (False, True):
        pyro.clear_param_store()
        pyro.settings.set(module_local_params=scope)
        model = make(x)
        guide = Variational(model, InducingPoints(6), MonteCarlo(1))
        guide.initialize(x, y)
        for loss in (ELBO(), TraceMeanField_ELBO()):
            with pytest.raises(ValueError, match=SHARED):
                SVI(model, guide, Adam({"lr": 0.05}), loss).step(x, y)
    pyro.settings.set(module_local_params=False)


@pytest.mark.parametrize("make", [Plain, Listed])
def test_two_gps_of_one_name_stay_apart_in_a_sampler(make):
    """A sampler reads parameters where they are: Pyro's store has no part in it, neither what it holds nor what it gets."""
    x, y = regression(20)
    pyro.clear_param_store()
    named, white = TwoLayers(x), {"h_whitened": torch.randn(20, 2)}
    named.hidden, named.top = GaussianProcess(RBF(), num_outputs=2), GaussianProcess(RBF())
    named.likelihood = make(x).likelihood

    def density(model, hidden, top):
        hidden.kernel.lengthscale, top.kernel.lengthscale = 0.3, 1.7
        conditioned = pyro.poutine.condition(whitened(model), white)
        return pyro.poutine.trace(conditioned).get_trace(x, y).log_prob_sum().item()

    model = make(x)
    parts = model.gps if make is Listed else (model.hidden, model.top)
    with module_local_parameters(named):
        expected = density(named, named.hidden, named.top)
    assert density(model, *parts) == pytest.approx(expected)
    MCMC(NUTS(whitened(model)), num_samples=1, warmup_steps=1).run(x, y)
    assert not pyro.get_param_store().keys()


def test_a_module_that_is_not_found_is_refused():
    hidden = iter([GaussianProcess(RBF())])
    with pytest.raises(ValueError, match="a module that was not found in it"):
        poutine.trace(whitened(lambda x: pyro.sample("f", next(hidden)(x)))).get_trace(torch.zeros(3, 1))


@pytest.mark.parametrize("make", [Plain, Listed])
def test_two_gps_of_one_name_train_apart_where_parameters_stay_in_their_modules(make):
    x, y = regression(20)
    model = make(x)
    guide = trained_by_fit(model, x, y)
    hidden, top = model.gps if make is Listed else (model.hidden, model.top)
    values = [gp.kernel.lengthscale_unconstrained.item() for gp in (hidden, top)]
    start = RBF().lengthscale_unconstrained.item()
    assert len({*values, start}) == 3
    with module_local_parameters(model, guide):
        assert torch.isfinite(torch.tensor(ELBO().loss(model, guide, x, y)))


def test_named_lists_of_gps_train_under_stock_svi():
    class Named(Listed):
        def __init__(self, x):
            super().__init__(x)
            self.gps = PyroModule[torch.nn.ModuleList]([GaussianProcess(RBF(), num_outputs=2), GaussianProcess(RBF())])

    x, y = regression(20)
    model = Named(x)
    trained_by_svi(model, x, y)
    values = [gp.kernel.lengthscale_unconstrained.item() for gp in model.gps]
    assert values[0] != values[1]


@pytest.mark.parametrize("train", [trained_by_fit, trained_by_svi])
def test_frozen_networks_stay_frozen(train):
    """Pyro's store sets requires_grad on the weights of a network, and would train them."""
    x, y = regression(20)
    model = OneLayer()
    network = torch.nn.Linear(1, 1).requires_grad_(False)
    before = [value.clone() for value in network.parameters()]
    model.gp.mean = network  # type: ignore[assignment]  # any network is taken as a mean
    train(model, x, y)
    after = [value for name, value in model.named_parameters() if "mean" in name]
    assert len(after) == 2 and all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    model.gp.mean.requires_grad_(True)
    train(model, x, y)
    assert not torch.equal(before[0], next(v for n, v in model.named_parameters() if "mean" in n and "weight" in n))
