"""Moment matching: a layer's normals through the model, against quadrature, and what it refuses."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    AmortizedInducingPoints,
    Bernoulli,
    DeepGP,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    LinearMean,
    MomentMatching,
    MonteCarlo,
    Poisson,
    SigmaPoints,
    Variational,
    concatenate_inputs,
    draw_functions,
    fit,
    predict,
)
from pyro_dgp.internal.quadrature import gauss_hermite_product
from tests.examples import TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")


class Chain(PyroModule):
    """Layers whose values a function passes on."""

    def __init__(self, between=lambda h, x: h, inputs=1, width=1, likelihood=None):
        super().__init__()
        self.hidden = GaussianProcess(RBF(lengthscale=1.5), mean=LinearMean(1, width), num_outputs=width)
        self.top = GaussianProcess(RBF(ard=inputs, lengthscale=1.2), mean=LinearMean(inputs))
        self.likelihood = Gaussian(variance=0.1) if likelihood is None else likelihood
        self.between = [between]

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(self.between[0](h, x))), obs=y)


def guided(model, x, y, family=None, propagation=None, **options):
    guide = Variational(
        model, family or InducingPoints(6, hidden_scale=0.5), propagation or MomentMatching(), **options
    )
    guide.initialize(x, y)
    for name, parameter in guide.named_parameters():
        if "q.mean" in name:
            parameter.data.add_(0.5 * torch.randn_like(parameter))
    return guide


def top_moments(guide, x, y, propagation=None):
    weighted = guide.components(x, y, propagation=propagation)
    moments, weights = weighted.trace.nodes["y"]["fn"].moments, weighted.log_weights.exp()
    mean = torch.tensordot(weights, moments.mean, 1)
    return mean, torch.tensordot(weights, moments.variance + moments.mean.square(), 1) - mean.square()


def grid(guide, width=1):
    propagation = SigmaPoints("gauss-hermite", 80 if width == 1 else 30)
    x = torch.zeros(1, 1)
    propagation.initialize({"h": guide.model.hidden(x)}, {"y/f": ["h"]})
    return propagation


@pytest.mark.parametrize("width", [1, 2])
def test_two_layers_have_the_moments_of_quadrature(width):
    x, y = regression(12)
    guide = guided(Chain(width=width, inputs=width), x, y)
    ours, exact = top_moments(guide, x, y), top_moments(guide, x, y, grid(guide, width))
    torch.testing.assert_close(ours, exact, atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("between", "inputs"),
    [
        (concatenate_inputs, 3),
        (lambda h, x: 2.0 * h.flip(-1) - 1.0, 2),
        (lambda h, x: h[..., :1] - h[..., 1:], 1),
        (lambda h, x: h * x, 2),
    ],
)
def test_affine_maps_between_layers_are_carried_exactly(between, inputs):
    x, y = regression(12)
    guide = guided(Chain(between, inputs, width=2), x, y)
    ours, exact = top_moments(guide, x, y), top_moments(guide, x, y, grid(guide, 2))
    torch.testing.assert_close(ours, exact, atol=1e-8, rtol=0)


def test_three_layers_match_moments_one_after_the_other():
    x, y = regression(12)
    model = DeepGP(x, layers=3, width=2, kernel="rbf")
    guide = guided(model, x, y)
    mean, variance = top_moments(guide, x, y)
    trace = guide.components(x, y).trace
    second = trace.nodes["h2"]["fn"]  # eight values: centre, two directions and five checks
    assert second.batch_shape == (8,)
    assert mean.shape == variance.shape == (12, 1)
    loc, scale = second.mean[0], second.variance[0].sqrt()  # inputs of the last layer, integrated by quadrature
    nodes, weights = gauss_hermite_product(40, 2)
    process, top = getattr(guide.processes, "y/f"), model.top
    marginal = process(top(loc + scale * nodes.unsqueeze(1)))
    expected = torch.tensordot(weights.exp(), marginal.mean, 1)
    total = torch.tensordot(weights.exp(), marginal.variance + marginal.mean.square(), 1) - expected.square()
    torch.testing.assert_close((mean, variance), (expected, total), atol=1e-7, rtol=0)


def test_one_layer_is_that_of_any_propagation():
    x, y = regression(12)
    guide = guided(DeepGP(x, layers=1, kernel="rbf"), x, y)
    loss = ELBO().differentiable_loss(guide.model, guide, x, y)
    guide.propagation = SigmaPoints("qr3", 3)
    torch.testing.assert_close(ELBO().differentiable_loss(guide.model, guide, x, y), loss)


def test_it_trains_and_predicts_without_draws():
    x, y = regression(30)
    guide = guided(DeepGP(x, width=2, kernel="rbf"), x, y)
    objective = ELBO(30)(guide.model, guide)
    assert objective(x, y) == objective(x, y)
    result = fit(objective, x, y, steps=60, learning_rate=0.03)
    assert result.losses[-1] < result.losses[0] - 5
    prediction = predict(guide, x)
    assert (prediction.mean - y).square().mean() < 0.5 * y.square().mean()
    mean, variance = top_moments(guide, x, None)
    torch.testing.assert_close(prediction.mean, mean[:, 0])
    torch.testing.assert_close(prediction.variance, variance[:, 0] + guide.model.likelihood.variance)


def test_hidden_layers_and_functions_are_predicted():
    x, y = regression(12)
    guide = guided(DeepGP(x, layers=3, width=2, kernel="rbf"), x, y)
    trace = guide.components(x, y).trace
    for site in ("h1", "h2"):
        prediction, marginal = predict(guide, x, site=site), trace.nodes[site]["fn"]
        torch.testing.assert_close(prediction.mean, marginal.mean[0])
        torch.testing.assert_close(prediction.variance, marginal.variance[0])
    functions = predict(guide, x).functions()
    torch.testing.assert_close(functions.mean, top_moments(guide, x, y)[0])
    guide.propagation = MonteCarlo(50)
    assert torch.isfinite(predict(guide, x).log_prob(y)).all()


@pytest.mark.parametrize(
    "between",
    [
        lambda h, x: torch.tanh(h),
        lambda h, x: h.relu(),
        lambda h, x: h * h.flip(-1),
        lambda h, x: torch.relu(h + 3.0),  # a kink some standard deviations away
        lambda h, x: torch.relu(x + 2.0 - h),
        lambda h, x: h.clamp(max=1.5),
        lambda h, x: (h + 2.0).abs(),
    ],
)
def test_other_maps_between_layers_are_refused(between):
    x, y = regression(12)
    guide = guided(Chain(between, 2, width=2), x, y)
    with pytest.raises(ValueError, match="not affine in the hidden layer"):
        guide.components(x, y)


@pytest.mark.filterwarnings("ignore:the target of the site")
@pytest.mark.parametrize("size", [10.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bend_beside_a_far_larger_output_is_refused(size, dtype):
    def between(h, x):
        return torch.cat([size * h[..., :1], torch.tanh(h[..., 1:])], -1)

    x, y = (part.to(dtype) for part in regression(12))
    model = Chain(between, 2, width=2).to(dtype)
    with pytest.raises(ValueError, match="not affine in the hidden layer"):
        guided(model, x, y).components(x, y)
    fine = Chain(lambda h, x: torch.cat([size * h[..., :1], h[..., 1:] + 3.0], -1), 2, width=2).to(dtype)
    assert torch.isfinite(ELBO(12)(fine, (guide := guided(fine, x, y)))(x, y)) and guide.propagation is not None


@pytest.mark.parametrize("between", [lambda h, x: h - h.mean(-2, keepdim=True), lambda h, x: h - h.roll(1, -2)])
def test_rows_that_are_joined_are_refused_after_initialisation_too(between):
    x, y = regression(12)
    guide = Variational(Chain(between, 2, width=2), InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    guide.propagation = MomentMatching()
    with pytest.raises(ValueError, match="row by row"):
        guide.components(x, y)


def test_a_mean_that_is_no_affine_map_is_refused():
    x, y = regression(12)
    model = Chain()
    model.top = GaussianProcess(RBF(), mean=torch.sin)
    guide = guided(model, x, y)
    with pytest.raises(ValueError, match="the mean of .* not affine"):
        guide.components(x, y)


class Skipping(PyroModule):
    """A top layer that reads two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GaussianProcess(RBF()), GaussianProcess(RBF())
        self.top, self.likelihood = GaussianProcess(RBF(ard=2)), Gaussian()

    def forward(self, x, y=None):
        h1 = pyro.sample("h1", self.first(x))
        h2 = pyro.sample("h2", self.second(h1))
        return pyro.sample("y", self.likelihood(self.top(torch.cat([h1, h2], -1))), obs=y)


class Plain(Chain):
    """A hidden layer that a plain observation reads too."""

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        pyro.sample("z", dist.Poisson(h[..., 0].exp()).to_event(1), obs=torch.ones(len(x)))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


class Noisy(Chain):
    """A latent site between two layers."""

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        h = pyro.sample("noisy", dist.Normal(h, 0.1).to_event(2))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Skipping, "made from 2 layers"),
        (TwoSites, "no other Gaussian process reads"),
        (Plain, "'z' is no Gaussian process and depends on a hidden layer"),
        (Noisy, "'noisy' is no Gaussian process and depends on a hidden layer"),
    ],
)
def test_models_whose_layers_are_no_chain_are_refused(model, message):
    x, y = regression(12)
    with pytest.raises(ValueError, match=message):
        guided(model(), x, y).components(x, y)


class Exposed(Chain):
    """Counts whose exposure is a function of the hidden layer."""

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h), exposure=h[..., 0].exp()), obs=y)


def test_a_likelihood_whose_parameter_depends_on_a_layer_is_refused():
    x, y = regression(12)
    counts = torch.arange(12.0)
    guide = guided(Exposed(likelihood=Poisson()), x, counts)
    with pytest.raises(ValueError, match="a parameter that depends on a hidden layer"):
        ELBO().differentiable_loss(guide.model, guide, x, counts)
    guide = guided(Exposed(likelihood=Poisson()), x, counts, propagation=MonteCarlo(3))
    assert torch.isfinite(ELBO().differentiable_loss(guide.model, guide, x, counts))


def test_amortised_processes_above_the_first_layer_are_refused():
    x, y = regression(12)
    guide = guided(Chain(), x, y, AmortizedInducingPoints(4))
    with pytest.raises(ValueError, match="take InducingPoints"):
        guide.components(x, y)


def test_functions_are_those_of_q():
    x, y = regression(12)
    guide = guided(DeepGP(x, width=1, kernel="rbf"), x, y)
    drawn = draw_functions(guide, 2000, seed=0)(x)[..., 0].detach()
    guide.propagation = MonteCarlo(2000)
    exact = predict(guide, x, num_samples=4000).functions()
    torch.testing.assert_close(drawn.mean(0), exact.mean[:, 0].detach(), atol=0.1, rtol=0)
    torch.testing.assert_close(drawn.var(0), exact.variance[:, 0].detach(), atol=0.15, rtol=0)


def test_other_likelihoods_are_integrated_over_the_matched_normal():
    x, _ = regression(12)
    y = (x[:, 0] > 0).to(x.dtype)
    guide = guided(Chain(likelihood=Bernoulli()), x, y)
    assert torch.isfinite(ELBO().differentiable_loss(guide.model, guide, x, y))


class Computed(Chain):
    """A chain that names a function of its hidden layer."""

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        pyro.deterministic("twice", 2 * h[..., 0])
        pyro.deterministic("inputs", 2 * x[..., 0])
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


def test_a_computed_site_of_a_hidden_layer_is_refused_and_others_are_not():
    x, y = regression(12)
    guide = guided(Computed(), x, y)
    with pytest.raises(ValueError, match="the site 'twice' is no Gaussian process and depends on a hidden layer"):
        predict(guide, x, site="twice")
    torch.testing.assert_close(predict(guide, x, site="inputs").mean, 2 * x[:, 0])
    assert bool((predict(guide, x).variance > 0).all())
    guide.propagation = MonteCarlo(10)
    variance, hidden = predict(guide, x, 4000, site="twice").variance, predict(guide, x, site="h").variance.flatten()
    torch.testing.assert_close(variance, 4 * hidden, rtol=0.15, atol=0)


class ByHidden(Chain):
    """Counts whose exposure depends on the hidden layer."""

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h), exposure=h[..., 0].exp()), obs=y)


def test_a_prediction_whose_likelihood_looks_at_the_hidden_layer_is_refused():
    x, _ = regression(12)
    y = torch.arange(12.0) % 3
    guide = guided(ByHidden(likelihood=Poisson()), x, y, propagation=MonteCarlo(10))
    assert bool(predict(guide, x).mean.isfinite().all())
    guide.propagation = MomentMatching()
    with pytest.raises(
        ValueError, match="'y' has a parameter that depends on a hidden layer, .* set guide.propagation = MonteCarlo"
    ):
        predict(guide, x).mean  # noqa: B018
