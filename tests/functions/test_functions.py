"""Functions drawn from fits: their moments are those of the fit, and each draw is one function."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.contrib.gp import kernels as contrib
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    RBF,
    AffineMaps,
    AmortizedInducingPoints,
    Bernoulli,
    ConditionedProcess,
    DeepGP,
    FourierFeatures,
    FromPyroContrib,
    Gaussian,
    GaussianProcess,
    HeteroscedasticGaussian,
    InducingDraws,
    InducingPoints,
    Linear,
    LinearCoregionalization,
    Matern32,
    Matern52,
    MissingOutputs,
    MonteCarlo,
    Orthogonal,
    Periodic,
    Poisson,
    PosteriorDraws,
    Propagation,
    SigmaPoints,
    StudentT,
    Variational,
    White,
    WithMean,
    concatenate_inputs,
    draw_functions,
    inducing_inputs,
    predict,
    whitened,
)
from pyro_dgp.likelihoods.standardized import StandardizedConditional
from pyro_dgp.likelihoods.units import Units
from pyro_dgp.mcmc.remembered import Remembered
from pyro_dgp.processes.pseudo_targets import PseudoTargets
from tests.examples import LatentInputs, OneLayer, TwoLayers, TwoSites, regression
from tests.functions.test_prior_paths import Own

GRID = torch.tensor([[-1.5], [-0.4], [-0.35], [0.8], [2.5]], dtype=torch.float64)
MANY = 10_000


def shaken(guide):
    """The guide with processes away from their start, as training would leave them."""
    torch.manual_seed(5)
    with torch.no_grad():
        for process in guide.processes.children():
            name = "targets" if isinstance(process.q, PseudoTargets) else "mean"
            value = getattr(process.q, name).detach()
            setattr(process.q, name, value + torch.randn_like(value))
            if process.q.num_deviations:
                process.q.latent_weights = torch.randn_like(process.q.latent_weights)
            if process.q.kind == "full" and name == "mean":
                process.q.scale.copy_(0.5 * torch.randn_like(process.q.scale))
            elif process.q.kind == "diagonal":
                process.q.scale = torch.rand_like(process.q.scale) + 0.2
    return guide


def guide_for(model, x, y, family=None, propagation=None, **latents):
    guide = Variational(model, family or InducingPoints(6), propagation or MonteCarlo(5), **latents)
    guide.initialize(x, y)
    return shaken(guide)


def errors(values, mean, covariance):
    """Largest distances of mean and covariance over draws ``(K, N)`` from the true ones, in standard errors."""
    away = values - mean
    products = away.unsqueeze(-1) * away.unsqueeze(-2)
    of_mean = away.mean(0).abs() / (covariance.diagonal() / len(values)).sqrt()
    of_covariance = (products.mean(0) - covariance).abs() / (products.std(0) / len(values) ** 0.5)
    return max(of_mean.max().item(), of_covariance.max().item())


def sampled_errors(values, others):
    """Largest difference of the moments of two sets of draws, in standard errors."""
    centre = others.mean(0)
    worst = 0.0
    for moment in (lambda v: v, lambda v: (v - centre).unsqueeze(-1) * (v - centre).unsqueeze(-2)):
        a, b = moment(values), moment(others)
        spread = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
        worst = max(worst, ((a.mean(0) - b.mean(0)).abs() / spread).max().item())
    return worst


@torch.no_grad()
def test_exact_regression_has_the_moments_of_the_closed_form():
    x, y = regression(12)
    model = OneLayer(RBF(lengthscale=0.7))
    values = draw_functions(PosteriorDraws(model, {}, (x, y)), MANY, seed=0)(GRID)[..., 0]
    kernel = lambda a, b: torch.exp(-0.5 * (a - b.mT).square() / 0.49)
    gain = kernel(GRID, x) @ torch.linalg.inv(kernel(x, x) + model.likelihood.variance * torch.eye(12))
    mean, covariance = gain @ y, kernel(GRID, GRID) - gain @ kernel(x, GRID)
    assert errors(values, mean, covariance) < 4
    assert errors(values, mean, covariance * 1.1) > 4
    assert errors(values, mean + 0.05 * covariance.diagonal().sqrt(), covariance) > 4


@torch.no_grad()
@pytest.mark.parametrize(
    "family",
    [
        InducingPoints(6),
        InducingPoints(6, "diagonal"),
        InducingPoints(6, "delta"),
        InducingPoints(6, "full", per_output=True),
    ],
    ids=["full", "diagonal", "delta", "per output"],
)
@pytest.mark.parametrize("kernel", [lambda: RBF(lengthscale=0.7), lambda: Matern52(outputs=2)], ids=["shared", "own"])
def test_inducing_points_have_the_moments_of_the_closed_form(family, kernel):
    x, y = regression(12)
    model = OneLayer(kernel(), outputs=2)
    if model.gp.kernel.outputs:
        model.gp.kernel.lengthscale = torch.tensor([0.5, 1.5])
    guide = guide_for(model, x, torch.stack([y, -y], -1), family)
    process = getattr(guide.processes, "y/f")
    if family.per_output:
        process.basis.inducing_points = process.basis.inducing_points + torch.tensor([0.0, 0.3])[:, None, None]
    draws = 3000 if model.gp.kernel.outputs or family != InducingPoints(6) else MANY
    values = draw_functions(guide, draws, seed=0)(GRID)
    covariance, z = model.gp.kernel(), process.basis.inducing_points.expand(2, 6, 1)
    k = lambda a, b: covariance.matrix(a.expand(2, -1, -1), b.expand(2, -1, -1))
    factor = torch.linalg.cholesky(k(z, z) + 1e-8 * torch.eye(6))
    scale = {"full": lambda: process.q.scale.tril(), "diagonal": lambda: process.q.scale.diag_embed()}
    root = scale.get(family.covariance, lambda: torch.zeros(2, 6, 6))()
    gain = k(GRID, z) @ torch.linalg.inv(factor).mT
    mean = (gain @ process.q.mean.unsqueeze(-1)).squeeze(-1)
    closed = k(GRID, GRID) - gain @ gain.mT + gain @ root @ root.mT @ gain.mT
    for output in range(2):
        assert errors(values[..., output], mean[output], closed[output]) < 4.2
    crossed = (values[..., 0] - mean[0]).unsqueeze(-1) * (values[..., 1] - mean[1]).unsqueeze(-2)
    assert (crossed.mean(0).abs() / (crossed.std(0) / draws**0.5)).max() < 4.2


@torch.no_grad()
@pytest.mark.parametrize(
    "kernel", [lambda: Matern32(lengthscale=0.7), lambda: Matern52(outputs=2)], ids=["shared", "own"]
)
def test_fourier_features_have_the_moments_of_the_closed_form(kernel):
    """The rest of the prior is drawn jointly, so that values at points that come in two calls belong to one function."""
    x, y = regression(12)
    model = OneLayer(kernel(), outputs=2)
    if model.gp.kernel.outputs:
        model.gp.kernel.lengthscale = torch.tensor([0.5, 1.5])
    guide = guide_for(model, x, torch.stack([y, -y], -1), FourierFeatures(3))
    q = getattr(guide.processes, "y/f")(model.gp(GRID))
    functions = draw_functions(guide, 3000, seed=0)
    values = torch.cat([functions(GRID[:2]), functions(GRID[2:])], 1)
    for output in range(2):
        assert errors(values[..., output], q.mean[:, output], q.covariance_matrix[output]) < 4.2
        assert errors(values[..., output], q.mean[:, output], 1.15 * q.covariance_matrix[output]) > 4.2
    torch.testing.assert_close(functions(GRID), values, rtol=0, atol=1e-3)


@torch.no_grad()
def test_large_jitter_is_part_of_the_fit():
    x, y = regression(12)
    guide = guide_for(OneLayer(RBF(lengthscale=3.0), jitter=0.1), x, y)
    values = draw_functions(guide, 3000, seed=0)(GRID)[..., 0]
    q = getattr(guide.processes, "y/f")(guide.model.gp(GRID))
    assert errors(values, q.mean[:, 0], q.covariance_matrix[0]) < 4


def drawn_jointly(q):
    """One draw of function values over all rows together; q has batches of rows."""
    factor = torch.linalg.cholesky(q.covariance_matrix + 1e-9 * torch.eye(q.event_shape[0]))
    return q.mean + (factor @ torch.randn(*q.mean.mT.shape, 1)).squeeze(-1).mT


@pytest.mark.slow
@torch.no_grad()
def test_two_layers_agree_with_brute_force():
    x, y = regression(12)
    model = TwoLayers(x)
    guide = guide_for(model, x, y)
    values = draw_functions(guide, MANY, seed=0)(GRID)[..., 0]
    hidden, top = guide.processes._modules["h"], guide.processes._modules["y/f"]
    prior = model.hidden(GRID).expand((MANY,))
    q = hidden(prior)
    h = drawn_jointly(q)
    others = drawn_jointly(top(model.top(h)))[..., 0]
    assert sampled_errors(values, others) < 4
    one_by_one = top(model.top(q.rsample())).rsample()[..., 0]  # rows independent: what a prediction is made of
    assert sampled_errors(values, one_by_one) > 10
    assert sampled_errors(values.tanh(), others.tanh()) < 4  # moments of all orders


@torch.no_grad()
def test_near_points_have_near_values():
    x, y = regression(12)
    guide = guide_for(TwoLayers(x), x, y)
    near = torch.tensor([[3.0], [3.0 + 1e-4]])
    values = draw_functions(guide, 500, seed=0)(near)[..., 0]
    assert torch.corrcoef(values.mT)[0, 1] > 1 - 1e-5
    independent = predict(guide, near, 500).sample((500,))
    assert torch.corrcoef(independent.mT)[0, 1] < 0.9


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-2)])
@torch.no_grad()
def test_a_draw_is_one_function(dtype, tolerance):
    torch.set_default_dtype(dtype)
    x, y = (each.to(dtype) for each in regression(12))
    guide = guide_for(TwoLayers(x), x, y)
    functions, grid = draw_functions(guide, 7, seed=3), torch.linspace(-3, 3, 40)[:, None]
    values = functions(grid)
    assert values.shape == (7, 40, 1) and values.dtype == dtype
    close = lambda a, b: torch.testing.assert_close(a, b, atol=tolerance, rtol=0)
    close(functions(grid.flip(0)), values.flip(1))
    close(functions(grid[11:12]), values[:, 11:12])
    close(draw_functions(guide, 7, seed=3)(grid[30:]), values[:, 30:])  # the first call does not matter
    own = torch.stack([grid[i : i + 4] for i in range(7)])
    close(functions(own), torch.stack([values[i, i : i + 4] for i in range(7)]))
    assert (draw_functions(guide, 7, seed=4)(grid) - values).abs().amax((1, 2)).min() > 0.05
    assert (values[1:] - values[:-1]).abs().amax((1, 2)).min() > 0.05
    hidden = draw_functions(guide, 7, seed=3, site="h")(grid)
    top = functions._groups[0].functions["y/f"].__call__(guide.model.top(hidden))
    close(top, values)


def test_blocks_of_rows_change_nothing(monkeypatch):
    x, y = regression(12)
    guide, grid = guide_for(TwoLayers(x), x, y), torch.linspace(-3, 3, 40)[:, None]
    values = draw_functions(guide, 3, seed=0)(grid)
    monkeypatch.setattr("pyro_dgp.functions.draws._BLOCK", 3 * (512 + 18) * 7)
    monkeypatch.setattr("pyro_dgp.functions.waves._BLOCK", 3 * 256 * 2)
    torch.testing.assert_close(draw_functions(guide, 3, seed=0)(grid), values)
    assert not values.requires_grad


def test_functions_are_differentiable_in_their_inputs():
    x, y = regression(12)
    x = torch.cat([x, x.cos()], -1)
    guide = guide_for(TwoLayers(x), x, y)
    functions = draw_functions(guide, 3, seed=0)
    at = torch.randn(4, 2, requires_grad=True)
    assert torch.autograd.gradcheck(functions, (at,), eps=1e-6, atol=1e-5)
    own = torch.randn(3, 4, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(functions(own).sum(), own)
    step = 1e-5 * torch.randn_like(own)
    change = (functions(own + step) - functions(own - step))[..., 0] / 2
    torch.testing.assert_close(change, (slope * step).sum(-1), rtol=1e-4, atol=1e-10)
    functions(own).sum().backward()
    assert all(p.grad is None and p.requires_grad for p in (*guide.parameters(), *guide.model.parameters()))


class Skipping(PyroModule):
    """Layers with skip connections, and a deterministic transform between them."""

    def __init__(self):
        super().__init__()
        self.first = GaussianProcess(RBF(1), num_outputs=2)
        self.second = GaussianProcess(Matern52(3))
        self.third = GaussianProcess(Matern52(2))
        self.likelihood = Gaussian()

    def forward(self, x, y=None):
        a = pyro.sample("a", self.first(x))
        b = pyro.sample("b", self.second(concatenate_inputs(torch.tanh(a), x)))
        b = pyro.deterministic("doubled", 2 * b)
        return pyro.sample("y", self.likelihood(self.third(concatenate_inputs(b, x))), obs=y)


@torch.no_grad()
def test_all_that_the_model_does_between_layers_holds():
    x, y = regression(12)
    guide = guide_for(Skipping(), x, y)
    draw = lambda site=None: draw_functions(guide, 4, seed=0, site=site)
    a, b, f = draw("a")(GRID), draw("b")(GRID), draw()
    values = f(GRID)
    inner = f._groups[0].functions
    joined = concatenate_inputs(torch.tanh(a), GRID)
    torch.testing.assert_close(inner["b"](guide.model.second(joined)), b)
    torch.testing.assert_close(inner["y/f"](guide.model.third(concatenate_inputs(2 * b, GRID))), values)


def with_prior(model):
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.7))
    return model


@pytest.mark.slow
@torch.no_grad()
def test_hyperparameters_have_one_value_for_each_draw():
    x, y = regression(12)
    guide = guide_for(with_prior(OneLayer()), x, y)
    functions = draw_functions(guide, 100, seed=0)
    values = functions(GRID)[..., 0]
    torch.testing.assert_close(functions(GRID[2:]), values[:, 2:, None], atol=1e-9, rtol=0)
    lengthscales = torch.stack([group.setting.latents["gp.kernel.lengthscale"] for group in functions._groups])
    assert len(lengthscales.unique()) == 100
    own = torch.stack([GRID[i % 5 : i % 5 + 1] for i in range(100)])
    torch.testing.assert_close(functions(own)[:, 0, 0], values[torch.arange(100), torch.arange(100) % 5])
    mixture = predict(guide, GRID, 100, num_hyperparameter_draws=100).functions()
    spread = mixture.variance[:, 0].sqrt()
    assert ((values.mean(0) - mixture.mean[:, 0]).abs() / spread).max() < 4 * (2 / 100) ** 0.5


@torch.no_grad()
def test_mixed_outputs_have_their_latent_functions():
    x, y = regression(12)
    targets = torch.stack([y, -y, y.square()], -1)
    model = OneLayer(Matern52(), LinearCoregionalization(3, 2), outputs=2)
    guide = guide_for(model, x, targets)
    for site in (None, "y", "y/f"):
        assert draw_functions(guide, 4, site=site)(GRID).shape == (4, 5, 2)


@torch.no_grad()
def test_two_sites_have_the_function_of_the_first():
    x, y = regression(12)
    guide = guide_for(TwoSites(), x, y)
    values = draw_functions(guide, 4000, seed=0)(GRID)[..., 0]
    q = guide.processes._modules["f"](guide.model.gp(GRID))
    assert errors(values, q.mean[:, 0], q.covariance_matrix[0]) < 4


@torch.no_grad()
@pytest.mark.parametrize("wrap", [lambda p: p, WithMean], ids=["plain", "with mean"])
def test_sigma_points_are_functions_drawn_by_weight(wrap):
    x, y = regression(12)
    guide = guide_for(TwoLayers(x), x, y, InducingPoints(6, "diagonal"), wrap(SigmaPoints("gauss-hermite", 3)))
    functions = draw_functions(guide, 4000, seed=0)
    values, mixture = functions(GRID)[..., 0], predict(guide, GRID).functions()
    mean, variance = mixture.mean[:, 0], mixture.variance[:, 0]
    assert ((values.mean(0) - mean).abs() / (variance / 4000).sqrt()).max() < 4
    squares = (values - mean).square()
    assert ((squares.mean(0) - variance).abs() / (squares.std(0) / 4000**0.5)).max() < 4
    torch.testing.assert_close(functions(GRID[3:]), values[:, 3:, None])
    torch.testing.assert_close(draw_functions(guide, 4000, seed=0)(GRID[3:]), values[:, 3:, None])
    hidden = draw_functions(guide, 4000, seed=0, site="h")(GRID)
    q = guide.processes._modules["h"](guide.model.hidden(GRID))
    assert len((((hidden - q.mean) / q.variance.sqrt()) * 1e6).round().unique()) <= 9


def draws_of_two_layers(x, y, count=3):
    torch.manual_seed(1)
    return {"h_whitened": torch.randn(count, len(x), 2)}


@torch.no_grad()
def test_draws_of_mcmc_condition_each_layer():
    x, y = regression(12)
    model, draws = TwoLayers(x), draws_of_two_layers(x, y)
    functions = draw_functions(PosteriorDraws(model, draws, (x, y)), 6, seed=0, site="h")
    values = functions(x)
    prior = model.hidden(x)
    for number in range(6):
        torch.testing.assert_close(values[number], prior.unwhiten(draws["h_whitened"][number // 2]), atol=1e-3, rtol=0)
    away = functions(x + 5)
    assert (away[0] - away[1]).abs().max() > 0.1  # two functions of one draw of MCMC
    assert draw_functions(PosteriorDraws(model, draws, (x, y)), 2)(GRID).shape == (2, 5, 1)
    near = draw_functions(PosteriorDraws(model, draws, (x, y)), 300)(x)[..., 0]
    assert (near.mean(0) - y).abs().max() < 1.0


@torch.no_grad()
@pytest.mark.usefixtures("local")
def test_draws_of_hyperparameters_are_those_of_the_functions():
    x, y = regression(12)
    lengthscales = torch.tensor([0.4, 2.0])
    posterior = PosteriorDraws(with_prior(OneLayer()), {"gp.kernel.lengthscale": lengthscales}, (x, y))
    values = draw_functions(posterior, 4000, seed=0)(GRID)[..., 0]
    for number, lengthscale in enumerate(lengthscales):
        model = OneLayer(RBF(lengthscale=float(lengthscale)))
        known = model.gp(x)
        q = ConditionedProcess(known, y[:, None], model.likelihood.variance[None])(model.gp(GRID))
        own = values[2000 * number : 2000 * (number + 1)]
        assert errors(own, q.mean[:, 0], q.covariance_matrix[0]) < 4


@torch.no_grad()
def test_sampled_values_under_another_likelihood_are_met():
    x, y = regression(12)
    model, white = OneLayer(likelihood=Bernoulli()), torch.randn(2, 12, 1)
    values = draw_functions(PosteriorDraws(model, {"y_f_whitened": white}, (x, (y > 0).double())), 2)(x)
    expected = torch.stack([model.gp(x).unwhiten(each) for each in white])
    torch.testing.assert_close(values, expected, atol=2e-3, rtol=0)


@torch.no_grad()
def test_equal_draws_of_mcmc_have_functions_of_their_own():
    x, y = regression(12)
    draws = {"h_whitened": torch.randn(1, 12, 2).expand(2, -1, -1)}
    first, second = draw_functions(PosteriorDraws(TwoLayers(x), draws, (x, y)), 2, seed=0, site="h")(x + 5)
    assert (first - second).abs().max() > 0.1


class Measured(PyroModule):
    """A hidden layer that training measures, and an exposure by row."""

    def __init__(self):
        super().__init__()
        self.hidden, self.top = GaussianProcess(RBF()), GaussianProcess(RBF())

    def forward(self, x, y=None, seen=None, exposure=None):
        h = pyro.sample("h", self.hidden(x))
        pyro.sample("seen", dist.Normal(h[..., 0], 0.3).to_event(1), obs=seen)
        f = pyro.sample("f", self.top(h * exposure[:, None]))
        return pyro.sample("y", dist.Poisson(f[..., 0].exp() * exposure).to_event(1), obs=y)


def test_other_observed_sites_and_arguments_by_row_are_no_hindrance():
    x, exposure = torch.linspace(-1, 1, 8)[:, None], torch.rand(8) + 0.5
    guide = Variational(Measured(), InducingPoints(8), MonteCarlo(2))
    guide.initialize(x, torch.ones(8), seen=x[:, 0], exposure=exposure)
    functions = draw_functions(shaken(guide), 4, seed=0)
    values = functions(x, exposure=exposure)
    assert values.shape == (4, 8, 1) and bool(torch.isfinite(values).all())
    torch.testing.assert_close(functions(x[2:4], exposure=exposure[2:4]), values[:, 2:4])
    assert (functions(x, exposure=2 * exposure) - values).abs().max() > 1e-3
    assert functions.joint(x[:3], exposure=exposure[:3]).covariance.shape == (3, 3)


@torch.no_grad()
def test_draws_of_inducing_variables_serve_functions_of_their_own():
    x, y = regression(12)
    guide = guide_for(TwoLayers(x), x, y, InducingPoints(6, "delta"))
    name = "processes.h.q.mean_unconstrained"
    states = 3 * torch.randn(3, *guide.get_parameter(name).shape)
    sampled = InducingDraws(guide, {name: states})
    values = draw_functions(sampled, 6, seed=0, site="h")(GRID)
    before = guide.get_parameter(name).clone()
    process, at = guide.processes._modules["h"], guide.processes._modules["h"].basis.inducing_points
    drawn = draw_functions(sampled, 6, seed=0, site="h")(at)
    for number, state in enumerate(states):
        guide.get_parameter(name).copy_(state)
        known = process(guide.model.hidden(at)).mean
        guide.get_parameter(name).copy_(before)
        torch.testing.assert_close(drawn[2 * number : 2 * number + 2], known.expand(2, -1, -1), atol=1e-3, rtol=0)
    assert (values[0] - values[1]).abs().max() > 1e-3
    assert draw_functions(sampled, 2)(GRID).shape == (2, 5, 1)
    with pytest.raises(TypeError, match="draw_functions takes a trained guide, chains"):
        draw_functions(guide.model, 2)


@torch.no_grad()
def test_kernels_without_frequencies_serve_every_layer():
    x, y = regression(12)
    model = TwoLayers(x, width=1)
    model.hidden.kernel, model.top.kernel = Own(), Matern52() * Linear()
    guide = guide_for(model, x, y)
    functions = draw_functions(guide, 3, seed=0)
    values = functions(GRID)
    torch.testing.assert_close(functions(GRID[[4, 1]]), values[:, [4, 1]], atol=1e-3, rtol=0)
    hidden = draw_functions(guide_for(TwoLayers(x, width=1), x, y), 2000, seed=0, site="h")
    hidden._fit.model.hidden.kernel = Own()
    q = hidden._fit.guide.processes._modules["h"](hidden._fit.model.hidden(GRID))
    hidden._then = Remembered([])
    assert errors(hidden(GRID)[..., 0], q.mean[:, 0], q.covariance_matrix[0]) < 4


@torch.no_grad()
def test_draws_of_inducing_variables_serve_too():
    x, y = regression(12)
    model = TwoLayers(x)
    inputs = inducing_inputs(model, x, y, num_inducing=5)
    sparse = whitened(model, inputs)
    drawn = pyro.poutine.trace(sparse).get_trace(x, y)
    draws = {name: drawn.nodes[name]["value"][None] for name in drawn.stochastic_nodes}
    values = draw_functions(PosteriorDraws(sparse, draws, (x, y)), 4, site="h")(inputs["h"])
    expected = model.hidden(inputs["h"]).unwhiten(draws["h_inducing_whitened"][0])
    torch.testing.assert_close(values, expected.expand_as(values), atol=1e-3, rtol=0)


@torch.no_grad()
def test_periodic_functions_return():
    x, y = regression(12)
    guide = guide_for(OneLayer(Periodic(period=1.5)), x, y)
    functions = draw_functions(guide, 5)
    torch.testing.assert_close(functions(GRID), functions(GRID + 30.0), atol=1e-8, rtol=0)


class Carried(Propagation):
    num_components = 3

    def for_prediction(self, num_samples):
        return self


def test_what_has_no_functions_is_refused():
    x, y = regression(12)
    amortized = Variational(
        TwoLayers(x), {"h": AmortizedInducingPoints(4, AffineMaps()), "y": InducingPoints(6)}, MonteCarlo(2)
    )
    amortized.initialize(x, y)
    with pytest.raises(ValueError, match="the process of 'h' has amortised inducing points"):
        draw_functions(amortized, 3)
    local = guide_for(LatentInputs(), x, y)
    with pytest.raises(ValueError, match="latent site 'w' has a value for each row"):
        draw_functions(local, 3)
    with pytest.raises(ValueError, match="latent site 'w' has a value for each row"):
        draw_functions(PosteriorDraws(local.model, {"w": torch.randn(2, 12)}, (x, y)), 3)
    guide = guide_for(TwoLayers(x), x, y)
    with pytest.raises(ValueError, match="no Gaussian process at 'g'"):
        draw_functions(guide, 3, site="g")
    with pytest.raises(ValueError, match="num_draws is a whole number, 1 or more"):
        draw_functions(guide, 0)
    functions = draw_functions(guide, 3)
    for wrong in (torch.zeros(3), torch.zeros(2, 4, 1), torch.zeros(0, 1)):
        with pytest.raises(ValueError, match="inputs of 3 functions have shape"):
            functions(wrong)
    with pytest.raises(ValueError, match="have 1 dimensions and its inputs 2"):
        functions(torch.zeros(4, 2))
    functions(x)
    with pytest.raises(ValueError, match="the inputs of 'hidden' have 2 columns"):
        functions(torch.zeros(4, 2))
    with torch.no_grad():
        guide.model.likelihood.variance = torch.tensor(0.3)
    with pytest.raises(ValueError, match="have changed since the functions were drawn"):
        functions(x)
    other = Variational(TwoLayers(x), InducingPoints(6), Carried())
    other.initialize(x, y)
    with pytest.raises(ValueError, match="functions of 'h' cannot be drawn from a guide whose layers Carried carries"):
        draw_functions(other, 3)(x)


class Chained(PyroModule):
    """A layer on top of an observed site, which is no function of the inputs."""

    def __init__(self):
        super().__init__()
        self.low, self.high = GaussianProcess(RBF(1)), GaussianProcess(RBF(2))
        self.likelihood = Gaussian()

    def forward(self, x, low=None, high=None):
        low = pyro.sample("low", self.likelihood(self.low(x)), obs=low)
        return pyro.sample("high", self.likelihood(self.high(concatenate_inputs(low[:, None], x))), obs=high)


def test_a_function_of_an_observation_is_refused():
    x, y = regression(12)
    guide = Variational(Chained(), InducingPoints(6), MonteCarlo(2))
    guide.initialize(x, y, y)
    with pytest.raises(ValueError, match=r"observation sites \['low', 'high'\]: name one"):
        draw_functions(guide, 2)
    assert draw_functions(guide, 2, site="low")(x).shape == (2, 12, 1)
    with pytest.raises(ValueError, match="the function at 'high' is not finite: .* an observed site before it"):
        draw_functions(guide, 2, site="high")(x)


class Shifted(OneLayer):
    def forward(self, x, y=None):
        return super().forward(x + pyro.sample("shift", dist.Normal(0.0, 1.0)), y)


class Network(torch.nn.Module):
    def forward(self, x, y=None):
        return dist.Normal(x.mean(), 0.1)


def test_a_network_of_a_shared_site_is_refused():
    x, y = regression(12)
    guide = Variational(Shifted(), InducingPoints(6), MonteCarlo(2), networks={"shift": Network()})
    guide.initialize(x, y)
    with pytest.raises(ValueError, match="posterior of 'shift' is a network"):
        draw_functions(guide, 2)(x)


def test_the_global_generator_decides_the_seed():
    x, y = regression(12)
    model = DeepGP(x, layers=1)
    torch.manual_seed(7)
    first = draw_functions(PosteriorDraws(model, {}, (x, y)), 2)
    state = torch.get_rng_state()
    first(GRID)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(7)
    assert torch.equal(draw_functions(PosteriorDraws(model, {}, (x, y)), 2)(GRID), first(GRID))


class Sum(PyroModule):
    """Two functions that no other GP takes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GaussianProcess(RBF()), GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.first(x)) + x * pyro.sample("g", self.second(x))
        return pyro.sample("y", dist.Normal(f[..., 0], 0.3).to_event(1), obs=y)


class Chain(Sum):
    """The second takes the first, through a step of the model's."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.first(x))
        g = pyro.sample("g", self.second(torch.tanh(f)))
        return pyro.sample("y", dist.Normal(g[..., 0], 0.3).to_event(1), obs=y)


def test_several_functions_under_y_are_named():
    """The last of them was taken, which is no more the function of the model than the others."""
    x, y = regression(12)
    fits = [guide_for(Sum(), x, y), PosteriorDraws(Sum(), {name: torch.randn(3, 12, 1) for name in "fg"}, (x, y))]
    for fit in fits:
        with pytest.raises(ValueError, match=r"the functions at \['f', 'g'\] are taken by no other Gaussian process"):
            draw_functions(fit, 3)(GRID)
        assert draw_functions(fit, 3, site="f")(GRID).shape == (3, 5, 1)
    values = draw_functions(guide_for(Chain(), x, y), 3, seed=0)
    assert values(GRID).shape == (3, 5, 1) and values.site == "g"


@pytest.mark.parametrize(
    "family", [FourierFeatures(4), Orthogonal(FourierFeatures(4), InducingPoints(3)), InducingPoints(4)]
)
def test_white_noise_in_a_kernel_has_no_functions_under_any_basis(family):
    x = torch.linspace(0, 1, 12)[:, None]
    model = OneLayer(Matern32() + White(variance=0.3))
    guide = Variational(model, family, MonteCarlo(1))
    guide.initialize(x, x[:, 0])
    with pytest.raises(ValueError, match="the kernel of 'gp' holds White, .* leave White out of the kernel"):
        draw_functions(guide, 2)(x)


def test_white_noise_in_a_kernel_of_another_library_has_no_functions():
    x = torch.linspace(-1, 1, 12)[:, None]
    noisy = FromPyroContrib(contrib.Sum(contrib.RBF(1), contrib.WhiteNoise(1, variance=torch.tensor(0.5))))
    for kernel, is_refused in ((noisy, True), (FromPyroContrib(contrib.RBF(1)), False)):
        values = draw_functions(PosteriorDraws(OneLayer(kernel), {}, (x, x[:, 0])), 3)
        if is_refused:
            with pytest.raises(ValueError, match="the kernel of 'gp' holds White, .* leave White out of the kernel"):
                values(x)
        else:
            torch.testing.assert_close(values(x), values(x), atol=1e-3, rtol=0)


LOCATIONS = {
    "gaussian": (lambda: Gaussian(2), 2, 2),
    "student": (lambda: StudentT(df=5.0), 1, 1),
    "noise": (lambda: HeteroscedasticGaussian(), 2, 1),
    "mixed": (lambda: LinearCoregionalization(3, 2), 2, 3),
    "missing": (lambda: MissingOutputs(Gaussian(2)), 2, 2),
}


@pytest.mark.parametrize("kind", LOCATIONS)
def test_the_location_of_a_target_is_its_mean_given_the_functions(kind):
    make, functions, outputs = LOCATIONS[kind]
    f = torch.randn(4, 6, functions)
    conditional = make().conditional()
    found, given = conditional.location(f), conditional.given(f).base_dist
    mean = getattr(given, "base_dist", given).mean
    assert found.shape == (4, 6, outputs)
    torch.testing.assert_close(found.reshape(mean.shape), mean)
    units = Units(torch.tensor(10.0), torch.tensor(3.0))
    torch.testing.assert_close(StandardizedConditional(conditional, outputs, units).location(f), 10 + 3 * found)


def test_classes_and_counts_have_no_location():
    for likelihood in (Bernoulli(), Poisson()):
        assert likelihood.conditional().location(torch.zeros(5, 1)) is None


def test_functions_notice_buffers_that_have_changed():
    class Normalised(OneLayer):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.BatchNorm1d(1)

        def forward(self, x, y=None):
            return pyro.sample("y", self.likelihood(self.gp(self.network(x))), obs=y)

    x, y = regression(8)
    guide = guide_for(Normalised(), x, y)
    functions = draw_functions(guide, 2, seed=0)
    joint = functions.joint(GRID)
    before = functions(GRID)
    assert torch.equal(functions(GRID), before)
    guide.model.network.running_mean = torch.ones(1)  # another tensor in its place
    for use in (lambda: functions(GRID), lambda: joint.covariance):
        with pytest.raises(ValueError, match=r"have changed since the functions were drawn, .*'network.running_mean'"):
            use()
