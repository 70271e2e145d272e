"""Parameters of a model that no optimiser of this library would find."""

import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam
from pyro.nn import PyroModule
from pyro.nn.module import PyroParam

from pyro_dgp import (
    ELBO,
    RBF,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    Variational,
    fit,
    module_local_parameters,
    predict,
)

REMEDY = (
    r"keeps its value in Pyro's global store, where fit and predict do not look: make it an attribute of a PyroModule"
)


def data():
    x = torch.linspace(-1, 1, 20)[:, None]
    return x, torch.sin(3 * x[:, 0])


def initialized(model):
    guide = Variational(model, InducingPoints(5), MonteCarlo(2))
    guide.initialize(*data())
    return guide


@pytest.mark.parametrize("local", [False, True])
def test_a_statement_in_a_function_is_refused(local):
    """The fit left it where it started, and a prediction took its start after stock SVI had trained it."""
    gp = GaussianProcess(RBF())

    def model(x, y=None):
        f, scale = pyro.sample("f", gp(x)), pyro.param("scale", torch.tensor(1.0), constraint=dist.constraints.positive)
        return pyro.sample("y", dist.Normal(f[..., 0], scale).to_event(1), obs=y)

    pyro.settings.set(module_local_params=local)
    with pytest.raises(ValueError, match=rf"the model calls pyro\.param\('scale', \.\.\.\), which {REMEDY}"):
        initialized(model)


class Stated(PyroModule):
    """A statement in the place of an attribute."""

    def __init__(self, *, is_statement):
        super().__init__()
        self.gp, self.likelihood, self.is_statement = GaussianProcess(RBF()), Gaussian(), is_statement
        self.factor = PyroParam(torch.tensor(1.0), constraint=dist.constraints.positive)

    def forward(self, x, y=None):
        factor = pyro.param("other", torch.tensor(1.0)) if self.is_statement else self.factor
        return pyro.sample("y", self.likelihood(self.gp(factor * x)), obs=y)


@pytest.mark.usefixtures("local")
def test_a_statement_in_a_module_is_refused_and_an_attribute_is_trained():
    said = rf"the model, or a network of the guide, calls pyro\.param\('other', \.\.\.\), which {REMEDY}"
    with pytest.raises(ValueError, match=said):
        initialized(Stated(is_statement=True))
    guide = initialized(Stated(is_statement=False))
    fit(ELBO(20)(guide.model, guide), *data(), steps=5)
    assert float(guide.model.factor.detach()) != 1.0


class Shifted(PyroModule):
    """A latent shift of a function."""

    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian()

    def forward(self, x, y=None):
        shift, f = pyro.sample("shift", dist.Normal(0.0, 1.0)), pyro.sample("f", self.gp(x))
        return pyro.sample("y", self.likelihood.given(f + shift[..., None, None]), obs=y)


@pytest.mark.usefixtures("local")
def test_a_model_runs_again_after_a_refused_reparameterization():
    """The number that it learns stayed in the model, which was refused ever after, under any handler."""
    model = Shifted()
    said = rf"pyro\.param\('shift_centered', \.\.\.\), which {REMEDY}.*takes a number, LocScaleReparam\(centered=0.0\)"
    with pytest.raises(ValueError, match=said):
        initialized(poutine.reparam(model, {"shift": LocScaleReparam()}))
    for again in (poutine.reparam(model, {"shift": LocScaleReparam(centered=0.0)}), model):
        guide = initialized(again)
        assert fit(ELBO(20)(guide.model, guide), *data(), steps=3).losses


@pytest.mark.usefixtures("local")
def test_the_marginal_likelihood_refuses_a_statement():
    gp, likelihood = GaussianProcess(RBF()), Gaussian()

    def model(x, y=None):
        return pyro.sample("y", likelihood(gp(pyro.param("factor", torch.tensor(1.0)) * x)), obs=y)

    with pytest.raises(ValueError, match=rf"the model calls pyro\.param\('factor', \.\.\.\), which {REMEDY}"):
        fit(MarginalLikelihood(model), *data(), steps=1)


@pytest.mark.usefixtures("local")
def test_modules_that_are_named_by_a_statement_are_trained():
    gp, net, likelihood = GaussianProcess(RBF()), torch.nn.Linear(1, 1), Gaussian()

    def model(x, y=None):
        pyro.module("net", net)
        return pyro.sample("y", likelihood(gp(net(x))), obs=y)

    before = net.weight.detach().clone()
    fit(MarginalLikelihood(model), *data(), steps=3)
    assert not torch.equal(net.weight, before)
    guide = initialized(model)
    before = net.weight.detach().clone()
    fit(ELBO(20)(model, guide), *data(), steps=3)
    assert not torch.equal(net.weight, before)


def test_names_that_another_model_left_in_the_store_are_no_statements():
    """A plain call, and stock SVI, leave parameters in Pyro's store."""
    Stated(is_statement=False)(data()[0])
    assert "gp.kernel.variance" in pyro.get_param_store()
    initialized(Stated(is_statement=False))
    fit(MarginalLikelihood(Stated(is_statement=False)), *data(), steps=1)


def test_a_refused_statement_leaves_its_name_to_the_remedy():
    gp = GaussianProcess(RBF())

    def model(x, y=None):
        f, factor = pyro.sample("f", gp(x)), pyro.param("factor", torch.tensor(1.0))
        return pyro.sample("y", dist.Normal(factor * f[..., 0], 0.1).to_event(1), obs=y)

    with pytest.raises(ValueError, match=REMEDY):
        initialized(model)
    assert "factor" not in pyro.get_param_store()
    initialized(Stated(is_statement=False))


class Inline(PyroModule):
    """A likelihood that is made in each call."""

    def __init__(self, *, is_frozen):
        super().__init__()
        self.gp, self.is_frozen = GaussianProcess(RBF()), is_frozen

    def forward(self, x, y=None):
        likelihood = Gaussian(variance=0.2).requires_grad_(not self.is_frozen)
        return pyro.sample("y", likelihood(self.gp(x)), obs=y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("start", [initialized, lambda model: fit(MarginalLikelihood(model), *data(), steps=3)])
def test_a_module_that_is_made_in_each_call_is_named(start):
    with pytest.warns(
        UserWarning, match=r"makes a module in each call, .* trains its parameters variance: make the module once"
    ) as found:
        start(Inline(is_frozen=False))
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(Inline(is_frozen=True))


def test_a_frozen_module_that_was_called_before_is_fine():
    model = Inline(is_frozen=True)
    model(data()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert initialized(model).is_initialized


@pytest.mark.usefixtures("local")
def test_a_parameter_that_another_one_makes_is_found():
    class Doubled(Stated):
        def __init__(self):
            super().__init__(is_statement=False)
            self.raw = torch.nn.Parameter(torch.tensor(-2.0))
            self.other = [Gaussian()]  # in a list, where torch does not look

        def forward(self, x, y=None):
            noise = {"variance_unconstrained": 2 * self.raw}
            observation = torch.func.functional_call(self.other[0], noise, (self.gp(x),))
            return pyro.sample("y", observation, obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert initialized(Doubled()).is_initialized


def test_a_scope_takes_a_model_in_a_handler():
    model = Stated(is_statement=False)
    with module_local_parameters(poutine.condition(model, data={})):
        assert model(data()[0]).shape == (20,)


@pytest.mark.usefixtures("local")
def test_training_without_gradients_is_refused():
    guide = initialized(Stated(is_statement=False))
    for off in (torch.no_grad(), torch.inference_mode()):
        with off, pytest.raises(ValueError, match=r"training needs gradients, which are off here: call fit outside"):
            fit(ELBO(20)(guide.model, guide), *data(), steps=1)
    assert predict(guide, data()[0]).mean.shape == (20,)
