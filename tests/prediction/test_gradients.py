"""Gradients of predictions in the inputs, against finite differences."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    RBF,
    AmortizedInducingPoints,
    DeepGP,
    Gaussian,
    GaussianProcess,
    InducingDraws,
    InducingPoints,
    MonteCarlo,
    PosteriorDraws,
    SigmaPoints,
    StudentT,
    Variational,
    WithMean,
    predict,
)
from pyro_dgp.internal.views import Integrated
from pyro_dgp.prediction.distribution_functions import DistributionFunction
from tests.examples import Encoder, LatentInputs, OneLayer, TwoLayers, TwoSites, regression

STEP = 1e-5
FIGURES = {
    "mean": lambda p: p.mean,
    "variance": lambda p: p.variance,
    "log_prob": lambda p: p.log_prob(torch.full((4,), 0.3)),
    "cdf": lambda p: p.cdf(torch.full((4,), 0.3)),
    "quantile": lambda p: p.quantile([0.1, 0.6]),
}


def guide_of(model, x, y, processes=None, propagation=None):
    guide = Variational(model, processes or InducingPoints(6), propagation or MonteCarlo(7))
    guide.initialize(x, y)
    for parameter in guide.processes.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return guide


def hyperparameters(model):
    model.likelihood.variance = PyroSample(dist.LogNormal(-2.0, 0.5))
    return model


FITS = {
    "svgp": lambda x, y: guide_of(OneLayer(), x, y),
    "dsvi": lambda x, y: guide_of(TwoLayers(x), x, y),
    "points": lambda x, y: guide_of(TwoLayers(x), x, y, propagation=SigmaPoints("qr3", 5)),
    "amortized": lambda x, y: guide_of(TwoLayers(x), x, y, AmortizedInducingPoints(4), WithMean(MonteCarlo(5))),
    "prior on noise": lambda x, y: guide_of(hyperparameters(OneLayer()), x, y),
    "two sites": lambda x, y: guide_of(TwoSites(), x, y),
    "exact": lambda x, y: PosteriorDraws(OneLayer(), {}, (x, y)),
    "draws": lambda x, y: PosteriorDraws(TwoLayers(x), {"h": torch.randn(5, len(x), 2)}, (x, y)),
    "inducing draws": lambda x, y: InducingDraws(
        guide_of(OneLayer(), x, y, InducingPoints(6, "delta")),
        {"processes.y/f.q.mean_unconstrained": torch.randn(5, 1, 6)},
    ),
}


def seeded(fitted, x, **more):
    torch.manual_seed(3)
    return predict(fitted, x, 6, **more)


def by_differences(figure, fitted, x, **more):
    """Derivatives of the sum of squares of a figure in each input."""
    result = torch.zeros_like(x)
    for place in range(x.numel()):
        ends = []
        for sign in (1, -1):
            moved = x.clone().detach()
            moved.view(-1)[place] += sign * STEP
            ends.append(float(figure(seeded(fitted, moved, **more)).square().sum()))
        result.view(-1)[place] = (ends[0] - ends[1]) / (2 * STEP)
    return result


LONG = ("prior on noise", "draws", "inducing draws")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in FITS])
def test_figures_have_the_gradients_of_finite_differences(local, name):
    x, y = regression(10)
    fitted = FITS[name](x, y)
    new = torch.tensor([[-1.0], [0.1], [0.4], [2.5]])
    options = {"batch_size": 3} | ({"num_hyperparameter_draws": 5} if name == "prior on noise" else {})
    for figure in FIGURES.values():
        at = new.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(figure(seeded(fitted, at, **options)).square().sum(), at)
        torch.testing.assert_close(gradient, by_differences(figure, fitted, new, **options), rtol=1e-4, atol=1e-6)
        assert gradient.abs().max() > 1e-3


def second_derivative(figure, at):
    (slope,) = torch.autograd.grad(figure(at).sum(), at, create_graph=True)
    return torch.autograd.grad(slope.sum(), at)[0]


def test_second_derivatives_of_quantiles_are_those_of_the_closed_form(local):
    x, y = regression(10)
    fitted = FITS["exact"](x, y)
    at = torch.tensor([[-1.0], [0.1], [1.3]], requires_grad=True)
    for level in (0.1, 0.9):
        z = dist.Normal(0.0, 1.0).icdf(torch.tensor(level))
        by_quantile = second_derivative(lambda at, level=level: predict(fitted, at).quantile(level), at)
        by_moments = second_derivative(
            lambda at, z=z: predict(fitted, at).mean + z * predict(fitted, at).variance.sqrt(), at
        )
        torch.testing.assert_close(by_quantile, by_moments)


@pytest.mark.parametrize("kind", ["normal", "exponential", "nodes"])
def test_quantiles_of_mixtures_have_two_derivatives(kind):
    def components(t):
        values = torch.stack([t.sin(), 1 + t.square()])
        if kind == "exponential":
            return dist.Exponential(1 + values.exp())
        if kind == "normal":
            return dist.Normal(values, t.exp())
        return Integrated(dist.Normal(torch.stack([values, values + t]), 0.5 * t.exp()), torch.tensor([0.4, 0.6]).log())

    def quantiles(t):
        log_weights = torch.log_softmax(torch.stack([t[0], -t[1]]), 0)
        return DistributionFunction(components(t), log_weights).quantile(torch.tensor([0.2, 0.7]))

    t = torch.tensor([0.3, 0.8], requires_grad=True)
    assert torch.autograd.gradcheck(quantiles, t) and torch.autograd.gradgradcheck(quantiles, t)


def test_quantiles_refuse_second_derivatives_where_the_cdf_has_no_slope():
    class Detached(dist.Normal):
        def cdf(self, value):
            return super().cdf(value.detach())

    t = torch.tensor([0.3, 0.8], requires_grad=True)

    def quantiles(t):
        components = Detached(torch.stack([t.sin(), t.square()]), 1.0)
        return DistributionFunction(components, torch.zeros(2)).quantile(torch.tensor([0.2, 0.7]))

    assert torch.autograd.gradcheck(quantiles, t)
    with pytest.raises(NotImplementedError, match="no second derivatives where the cdf of Detached has no slope in y"):
        second_derivative(quantiles, t)


@pytest.mark.parametrize("name", ["dsvi", "points", "draws"])
def test_draws_of_one_seed_are_smooth_in_the_inputs(local, name):
    def drawn(p):
        torch.manual_seed(5)
        return p.rsample((3,))

    x, y = regression(10)
    fitted, new = FITS[name](x, y), torch.tensor([[-1.0], [0.1], [0.4], [2.5]])
    at = new.clone().requires_grad_()
    p = seeded(fitted, at)
    (gradient,) = torch.autograd.grad(drawn(p).square().sum(), at)
    torch.testing.assert_close(gradient, by_differences(drawn, fitted, new), rtol=1e-4, atol=1e-6)
    torch.manual_seed(5)
    assert torch.equal(p.sample((3,)), drawn(p)) and not p.sample().requires_grad and p.has_rsample


def test_each_figure_has_a_graph_of_its_own_and_parameters_have_no_gradient(local):
    x, y = regression(10)
    guide = FITS["dsvi"](x, y)
    at = x[:4].clone().requires_grad_()
    p = seeded(guide, at)
    p.mean.sum().backward()
    p.variance.sum().backward()
    p.mean.sum().backward()
    assert at.grad is not None and p._kept == {}
    assert all(q.grad is None and q.requires_grad for m in (guide, guide.model) for q in m.parameters())
    with torch.no_grad():
        kept = p.mean
    assert not kept.requires_grad and len(p._kept) == 1
    assert p.mean.requires_grad  # what was kept without a graph is not used where one is wanted
    plain = seeded(guide, at.detach())
    assert torch.equal(plain.mean, kept) and not plain.mean.requires_grad and not plain.quantile(0.2).requires_grad


def test_parameters_of_a_function_in_the_global_store_have_no_gradient():
    x, y = regression(8)
    gp = GaussianProcess(RBF())

    def model(x, y=None):
        noise = pyro.param("noise", torch.tensor(0.3), constraint=dist.constraints.positive)
        return pyro.sample("y", Gaussian().requires_grad_(False)(gp(x * noise)), obs=y)

    pyro.poutine.trace(model).get_trace(x, y)
    at = x[:3].clone().requires_grad_()
    predict(PosteriorDraws(model, {}, (x, y)), at).mean.sum().backward()
    stored = pyro.get_param_store()._params["noise"]
    assert at.grad is not None and stored.grad is None and stored.requires_grad


def test_a_function_and_a_computed_value_are_differentiable(local):
    class WithRate(TwoSites):
        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            pyro.deterministic("rate", f[..., 0].exp())
            return pyro.sample("y", self.likelihood.given(f), obs=y)

    x, y = regression(10)
    guide, new = guide_of(WithRate(), x, y), torch.tensor([[-1.0], [0.4]])
    for site, figure in (("f", lambda p: p.variance), ("rate", lambda p: p.mean), ("rate", lambda p: p.quantile(0.4))):
        at = new.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(figure(seeded(guide, at, site=site)).square().sum(), at)
        expected = by_differences(figure, guide, new, site=site)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_a_row_argument_may_be_the_one_that_wants_gradients(local):
    class Scaled(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp = GaussianProcess(RBF())

        def forward(self, x, y=None, *, scale):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.Normal(scale * (1 + f[..., 0]), 0.1).to_event(1), obs=y)

    x, y = regression(6)
    model = PosteriorDraws(Scaled(), {"f": torch.zeros(2, 6, 1)}, (x, y), kwargs={"scale": torch.ones(6)})
    scale = torch.ones(6, requires_grad=True)
    predict(model, x, scale=scale).mean.sum().backward()
    torch.testing.assert_close(scale.grad, torch.ones(6), atol=1e-3, rtol=0)


def test_a_path_that_gradients_cannot_take_is_refused(local):
    class Switched(LatentInputs):
        def forward(self, x, y=None):
            with pyro.plate("rows", len(x)):
                w = pyro.sample("w", dist.Bernoulli(torch.sigmoid(x[:, 0])))
            return pyro.sample("y", self.likelihood(self.gp(torch.stack([w, x[:, 0]], -1))), obs=y)

    x, y = regression(8)
    draws = PosteriorDraws(Switched(), {"w": torch.zeros(2, 8)}, (x, y))
    with pytest.raises(ValueError, match="latent site 'w' has no reparameterised draws"):
        predict(draws, x.clone().requires_grad_())
    assert predict(draws, x).mean.shape == (8,)
    guide = Variational(LatentInputs(), InducingPoints(5), MonteCarlo(2), networks={"w": Encoder()})
    guide.initialize(x, y)
    assert predict(guide, x.clone().requires_grad_()).mean.requires_grad

    class Global(OneLayer):
        def forward(self, x, y=None):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            return pyro.sample("y", self.likelihood(self.gp(x + z)), obs=y)

    class Look(torch.nn.Module):
        def forward(self, x, y=None):
            return dist.Normal(x.mean(), 1.0)

    looking = Variational(Global(), InducingPoints(5), MonteCarlo(2), networks={"z": Look()})
    looking.initialize(x, y)
    with pytest.raises(ValueError, match="the network of 'z' looks at all test rows"):
        predict(looking, x.clone().requires_grad_())
    with pytest.raises(NotImplementedError, match="Poisson has no reparameterised draws"):
        counts(x).rsample()


@pytest.mark.parametrize("batch_size", [3, 8])
def test_a_mean_over_nodes_is_named_where_it_has_no_draws_with_gradients(local, batch_size):
    x, y = regression(8)
    heavy = predict(guide_of(OneLayer(likelihood=StudentT()), x, y), x, batch_size=batch_size)
    with pytest.raises(NotImplementedError, match="^HeavyTailed, a mean of Normal over nodes, has no reparameterised"):
        heavy.rsample()


def counts(x):
    from pyro_dgp import Mixture, Prediction

    return Prediction(lambda rows: Mixture(dist.Poisson(torch.ones(1, 3)), torch.zeros(1)), 3)


def test_deep_models_in_single_precision_have_gradients_too(local):
    torch.set_default_dtype(torch.float32)
    x, y = regression(10)
    guide = guide_of(DeepGP(x, layers=2, width=1), x, y)
    at = x[:3].clone().requires_grad_()
    predict(guide, at).quantile([0.2, 0.8]).sum().backward()
    assert at.grad.dtype == torch.float32 and torch.isfinite(at.grad).all()
