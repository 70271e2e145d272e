"""The means of the layers of DeepGP."""

import pyro
import pytest
import torch
from pyro.infer import SVI
from pyro.optim import Adam

from pyro_dgp import (
    ELBO,
    ConstantMean,
    DeepGP,
    InducingPoints,
    LinearMean,
    MonteCarlo,
    Poisson,
    Projection,
    Variational,
    fit,
    with_priors,
)
from pyro_dgp.kernels.named import KERNELS
from pyro_dgp.means import Zero
from tests.examples import TwoLayers


def inputs(rows=30, columns=6):
    return torch.randn(rows, columns) @ torch.randn(columns, columns)


@pytest.mark.parametrize("width", [3, 6, 8])
def test_a_learned_mean_starts_at_the_fixed_one_in_every_layer(width):
    torch.manual_seed(0)
    x = inputs()
    fixed = DeepGP(x, layers=3, width=width)
    learned = DeepGP(x, layers=3, width=width, mean=LinearMean.fit)
    for one, other in zip(fixed.hidden, learned.hidden, strict=True):
        assert isinstance(one.mean, Projection) and isinstance(other.mean, LinearMean)
        torch.testing.assert_close(other.mean.weight, one.mean.weight)
    assert not pyro.get_param_store().keys()
    assert {"hidden.0.mean.weight_unconstrained", "hidden.1.mean.bias_unconstrained"} <= set(learned.state_dict())


def test_it_is_trained_and_a_fixed_one_is_not():
    torch.manual_seed(0)
    x = inputs()
    y = x[:, 5] / x[:, 5].std()
    model = DeepGP(x, width=2, mean=LinearMean.fit, per_output=True)
    guide = Variational(model, InducingPoints(10, per_output=True), MonteCarlo(3))
    guide.initialize(x, y)
    before = model.hidden[0].mean.weight.detach().clone()
    fit(ELBO(30)(model, guide), x, y, steps=30)
    assert (model.hidden[0].mean.weight - before).abs().max() > 0.01
    assert guide.processes.h1.basis.inducing_points.shape == (2, 10, 6)
    pyro.clear_param_store()
    SVI(model, guide, Adam({"lr": 0.01}), ELBO(30)).step(x, y)


def test_a_zero_mean_carries_zeros():
    x = inputs()
    model = DeepGP(x, layers=3, width=2, mean=lambda x, width: Zero())
    assert model(x).shape == (30,)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_by_name(name):
    x = inputs(columns=4)
    model = DeepGP(x, layers=2, width=3, kernel=name, per_output=True)
    assert model(x).shape == (30,)
    lengthscale = getattr(model.hidden[0].kernel, "lengthscale", None)
    if lengthscale is not None:
        assert lengthscale.shape == ((3,) if name.endswith("isotropic") else (3, 4))
        torch.testing.assert_close(lengthscale, torch.full_like(lengthscale, 2.0))


def test_a_kernel_that_there_is_not_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="there is no kernel 'matern': choose from rbf, matern12"):
        DeepGP(torch.randn(5, 2), kernel="matern")


def test_priors_are_given_to_any_module_with_a_likelihood():
    x = inputs()
    model = with_priors(TwoLayers(x))
    sites = pyro.poutine.trace(model).get_trace(x).stochastic_nodes
    assert {"hidden.kernel.lengthscale", "top.kernel.variance", "likelihood.variance"} <= set(sites)


@pytest.mark.parametrize("columns", [0, 2])
@pytest.mark.parametrize("kernel", ["rbf", "rbf-isotropic"])
def test_inputs_of_other_columns_are_refused(kernel, columns):
    """A kernel with one lengthscale would take them all, and a model of one layer has nothing else that knows."""
    model = DeepGP(torch.randn(6, 1), layers=1, kernel=kernel)
    with pytest.raises(ValueError, match=rf"made for inputs \(N, 1\) got \(6, {columns}\)"):
        model(torch.randn(6, columns))


def test_the_mean_of_the_top_layer_is_that_which_is_given():
    x = torch.linspace(-1, 1, 5)[:, None]
    model = DeepGP(x, 2, 1, likelihood=Poisson(), top_mean=ConstantMean(value=3.0))
    prior = pyro.poutine.trace(model).get_trace(x).nodes["y"]["fn"].priors["f"]
    assert prior.mean.tolist() == [[3.0]] * 5
