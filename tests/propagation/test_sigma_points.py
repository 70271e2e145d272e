import copy
import io
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Predictive
from pyro.nn import PyroModule
from scipy.integrate import quad

from pyro_dgp import (
    ELBO,
    RBF,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern52,
    MonteCarlo,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    concatenate_inputs,
    fit,
    predict,
)
from pyro_dgp.internal.quadrature import gauss_hermite
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.propagation.sigma_points import RULES
from tests.examples import OneLayer, TwoLayers, TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")


def guided(model, x, y, propagation):
    guide = Variational(model, InducingPoints(6, covariance="diagonal", hidden_scale=0.8), propagation)
    guide.initialize(x, y)
    for name, parameter in guide.named_parameters():
        if "q.mean" in name:
            parameter.data.add_(torch.randn_like(parameter))
    return guide


class Narrow(PyroModule):
    """Two layers of one output."""

    def __init__(self):
        super().__init__()
        self.hidden = GaussianProcess(Matern52(lengthscale=1.5, variance=0.5))
        self.top = GaussianProcess(RBF(lengthscale=1.5))
        self.likelihood = Gaussian(variance=0.1)

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


@pytest.mark.slow
def test_gauss_hermite_converges_to_the_numerically_integrated_density():
    x, y = regression(20)
    model = Narrow()
    guide = guided(model, x, y, MonteCarlo(1))
    with torch.no_grad():
        q = guide.processes._modules["h"](model.hidden(x))

        def density(n, h):
            top = guide.processes._modules["y/f"](model.top(torch.tensor([[h]])))
            scale = (top.variance + 0.1).sqrt()
            weight = torch.distributions.Normal(q.mean[n, 0], q.variance[n, 0].sqrt()).log_prob(torch.tensor(h))
            return float((dist.Normal(top.mean, scale).log_prob(y[n]) + weight).exp())

        rows = [0, 7, 13]
        exact = []
        for n in rows:
            mean, scale = float(q.mean[n, 0]), float(q.variance[n, 0].sqrt())
            exact.append(math.log(quad(lambda h, n=n: density(n, h), mean - 9 * scale, mean + 9 * scale, limit=200)[0]))
    errors = []
    for size in (2, 6, 60):
        guide.propagation = SigmaPoints("gauss-hermite", size)
        guide.propagation.initialize({"h": model.hidden(x)}, {"y/f": ["h"]})
        value = predict(guide, x).log_prob(y)[rows]
        errors.append(float((value - torch.tensor(exact)).abs().max()))
    assert errors[2] < 1e-6 < errors[1] < errors[0]


def test_gauss_hermite_of_two_outputs_is_the_monte_carlo_predictive():
    x, y = regression(12, inputs=2)
    guide = guided(TwoLayers(x), x, y, SigmaPoints("gauss-hermite", 12))
    quadrature = predict(guide, x).log_prob(y)
    guide.propagation = MonteCarlo(1)
    sampled = predict(guide, x, num_samples=40_000).log_prob(y)
    torch.testing.assert_close(quadrature, sampled, rtol=0, atol=0.05)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [1, 3, 4])
def test_components_positions_and_weights_of_each_rule(rule, size):
    x, y = regression(9, inputs=2)
    guide = guided(TwoLayers(x), x, y, SigmaPoints(rule, size))
    points = guide.propagation
    count = size if rule == "qr3" else size**2
    assert points.num_components == count
    log_weights, positions = points.log_weights(x), points.positions("h", x)
    assert torch.equal(points.log_weights(), log_weights) and torch.equal(points.positions("h"), positions)
    assert log_weights.shape == (count,) and positions.shape == (count, 2)
    torch.testing.assert_close(log_weights.exp().sum(), torch.tensor(1.0))
    mean = log_weights.exp() @ positions
    torch.testing.assert_close(mean, torch.zeros(2), rtol=0, atol=1e-12)
    if size > 1:
        second = log_weights.exp() @ positions.square()
        torch.testing.assert_close(second, torch.ones(2), rtol=0, atol=1e-12)
    if rule != "qr3":
        nodes = gauss_hermite(size)[0]
        expected = torch.cartesian_prod(nodes, nodes)
        torch.testing.assert_close(positions, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_training_moves_points_and_weights_and_the_symmetric_rule_stays_symmetric(rule):
    x, y = regression(40, inputs=2)
    model = TwoLayers(x)
    guide = guided(model, x, y, SigmaPoints(rule, 3))
    before = {name: value.clone() for name, value in guide.propagation.named_parameters()}
    fit(PredictiveLogLikelihood(40)(model, guide), x, y, steps=30, batch_size=20)
    after = dict(guide.propagation.named_parameters())
    learned = {"gauss-hermite": set(), "qr1": {"points.h", "weight_logits"}}.get(rule, {"points.h", "weight_logits"})
    assert set(after) == {f"{name}_unconstrained" for name in learned}
    for name, value in after.items():
        assert bool((value != before[name]).all()), name
    weights = guide.propagation.log_weights(x).exp().detach()
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    if rule == "qr2":
        grid = guide.propagation.positions("h", x).reshape(3, 3, 2)
        torch.testing.assert_close(grid, -grid.flip(0, 1), rtol=0, atol=0)
        assert bool((grid[1, :, 0] == 0).all()) and bool((grid[:, 1, 1] == 0).all())
        table = weights.reshape(3, 3)
        assert float((table - table.flip(0, 1)).abs().max()) > 1e-3  # the weights are free
    if rule == "qr1":
        grid = guide.propagation.positions("h", x).detach().reshape(3, 3, 2)
        assert float((grid + grid.flip(0, 1)).abs().max()) > 1e-3


def test_gradients_of_points_and_weights_are_those_of_finite_differences():
    x, y = regression(10, inputs=2)
    model = TwoLayers(x)
    guide = guided(model, x, y, SigmaPoints("qr3", 4))
    loss = PredictiveLogLikelihood(10)(model, guide)
    loss(x, y).backward()
    for parameter in guide.propagation.parameters():
        for index in ((0,), (2,)):
            step = torch.zeros_like(parameter)
            step[index] = 1e-5
            with torch.no_grad():
                parameter.add_(step)
                up = loss(x, y)
                parameter.sub_(2 * step)
                down = loss(x, y)
                parameter.add_(step)
            assert float((up - down) / 2e-5) == pytest.approx(float(parameter.grad[index].sum()), rel=1e-4, abs=1e-6)


def test_every_parameter_moves_under_stock_svi_with_the_global_store():
    pyro.settings.set(module_local_params=False)
    x, y = regression(20, inputs=2)
    model = TwoLayers(x)
    guide = Variational(model, InducingPoints(6, covariance="diagonal"), SigmaPoints("qr3", 4))
    guide.initialize(x, y)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), PredictiveLogLikelihood(20))
    svi.step(x, y)
    before = {name: value.detach().clone() for name, value in guide.named_parameters()}
    for _ in range(3):
        svi.step(x, y)
    for name, value in guide.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_three_layers_have_points_each_and_share_the_weights():
    x, y = regression(30, inputs=2)
    model = DeepGP(x, 3, 2)
    guide = guided(model, x, y, SigmaPoints("qr3", 5))
    assert set(dict(guide.propagation.named_parameters())) == {
        "points.h1_unconstrained", "points.h2_unconstrained", "weight_logits_unconstrained",
    }  # fmt: skip
    losses = fit(PredictiveLogLikelihood(30)(model, guide), x, y, steps=100, batch_size=30).losses
    assert losses[-1] < losses[0] - 0.3
    with pytest.raises(ValueError, match="'h1', 'h2'.*'qr3'"):
        guided(DeepGP(x, 3, 2), x, y, SigmaPoints("qr1", 2))


def test_too_large_a_grid_and_other_bad_arguments_are_one_sentence():
    x, y = regression(10, inputs=2)
    with pytest.raises(ValueError, match="1600 components, more than max_components=1024"):
        guided(TwoLayers(x), x, y, SigmaPoints("qr1", 40))
    with pytest.raises(ValueError, match="no quadrature rule 'qr4'"):
        SigmaPoints("qr4")
    with pytest.raises(ValueError, match="num_points of SigmaPoints is a whole number, at least 1, got 0"):
        SigmaPoints("qr3", 0)


def test_one_layer_needs_no_points():
    x, y = regression(10)
    model = OneLayer()
    guide = guided(model, x, y, SigmaPoints("qr3", 7))
    other = copy.deepcopy(guide)
    other.propagation = MonteCarlo(3)
    assert guide.propagation.num_components == 1
    for loss in (ELBO(), PredictiveLogLikelihood()):
        torch.testing.assert_close(
            loss.differentiable_loss(model, guide, x, y), loss.differentiable_loss(other.model, other, x, y)
        )


def test_two_plain_sites_are_integrated_by_quadrature_too():
    x, y = regression(10)
    model = TwoSites()
    guide = guided(model, x, y, SigmaPoints("gauss-hermite", 20))
    q = guide.processes._modules["f"](model.gp(x))
    kl = q.regularizer
    expected = (
        Gaussian(variance=0.04)
        .requires_grad_(False)
        .conditional()
        .expected_log_prob(y, Moments(q.mean, q.variance))
        .sum()
        - kl
    )
    torch.testing.assert_close(-ELBO().differentiable_loss(model, guide, x, y), expected)


@pytest.mark.slow
def test_an_ancestral_draw_is_a_component_by_weight_the_same_for_all_layers_and_rows():
    x, y = regression(8, inputs=2)
    model = DeepGP(x, 3, 2)
    guide = guided(model, x, y, SigmaPoints("qr3", 3))
    guide.propagation.weight_logits = torch.tensor([0.2, 0.5, 0.3]).log()
    counts = torch.zeros(3)
    for _ in range(400):
        trace = pyro.poutine.trace(guide).get_trace(x)
        seen = []
        for name in ("h1", "h2"):
            site = trace.nodes[name]
            z = (site["value"] - site["fn"].mean) / site["fn"].variance.sqrt()
            points = guide.propagation.positions(name, x)
            seen.append(int((points - z[0]).abs().sum(-1).argmin()))
            torch.testing.assert_close(z, points[seen[-1]].expand_as(z), rtol=0, atol=1e-6)
        assert seen[0] == seen[1]
        counts[seen[0]] += 1
    torch.testing.assert_close(counts / 400, torch.tensor([0.2, 0.5, 0.3]), rtol=0, atol=0.08)
    draws = Predictive(model, guide=guide, num_samples=200, parallel=True)(x)["h1"]
    assert len(torch.unique(draws[:, ..., 0, 0].round(decimals=6))) == 3


def test_saved_and_loaded_it_predicts_bit_for_bit():
    x, y = regression(20, inputs=2)
    for rule in RULES:
        model = TwoLayers(x)
        guide = guided(model, x, y, SigmaPoints(rule, 3))
        file = io.BytesIO()
        torch.save({"guide": guide.state_dict(), "model": model.state_dict()}, file)
        file.seek(0)
        state = torch.load(file)
        other_model = TwoLayers(x)
        other = Variational(other_model, InducingPoints(6, covariance="diagonal"), SigmaPoints(rule, 3))
        other.load_state_dict(state["guide"])
        other_model.load_state_dict(state["model"])
        assert torch.equal(predict(guide, x).log_prob(y), predict(other, x).log_prob(y))


def test_one_recipe_serves_several_guides():
    x, y = regression(20, inputs=2)
    recipe = SigmaPoints("qr3", 3)
    first, second = (guided(TwoLayers(x), x, y, recipe) for _ in range(2))
    with torch.no_grad():
        first.propagation.weight_logits = torch.tensor([1.0, 2.0, 3.0])
    assert not torch.equal(first.propagation.log_weights(x), second.propagation.log_weights(x))


def test_a_model_that_transforms_the_hidden_layer():
    class Skip(TwoLayers):
        def __init__(self, x):
            super().__init__(x)
            self.top = GaussianProcess(RBF(ard=4))

        def forward(self, x, y=None):
            h = pyro.sample("h", self.hidden(x))
            return pyro.sample("y", self.likelihood(self.top(concatenate_inputs(2 * h, x))), obs=y)

    x, y = regression(30, inputs=2)
    model = Skip(x)
    guide = guided(model, x, y, SigmaPoints("qr3", 4))
    losses = fit(PredictiveLogLikelihood(30)(model, guide), x, y, steps=60, batch_size=30).losses
    assert losses[-1] < losses[0]
    assert predict(guide, x)._mixture(0).components.batch_shape == (4, 30)


def test_loading_leaves_the_generator_alone_and_refuses_another_rule():
    x, y = regression(20, inputs=2)
    guide = guided(TwoLayers(x), x, y, SigmaPoints("qr3", 3))
    state = guide.state_dict()
    other = Variational(TwoLayers(x), InducingPoints(6, covariance="diagonal"), SigmaPoints("qr3", 3))
    generator = torch.get_rng_state()
    other.load_state_dict(state)
    assert torch.equal(generator, torch.get_rng_state())
    for points in (SigmaPoints("qr3", 4), SigmaPoints("qr1", 3)):
        wrong = Variational(TwoLayers(x), InducingPoints(6, covariance="diagonal"), points)
        with pytest.raises(ValueError, match="the state is that of SigmaPoints"):
            wrong.load_state_dict(state)


def test_many_points_are_a_list_and_not_a_grid():
    x, y = regression(20)
    with pytest.raises(ValueError, match="at most 200 points"):
        SigmaPoints("gauss-hermite", 400)
    guide = guided(TwoLayers(x, width=1), x, y, SigmaPoints("qr3", 400))
    assert bool(torch.isfinite(predict(guide, x).log_prob(y)).all())


def test_a_site_that_cannot_name_a_module_is_refused():
    gp = GaussianProcess(RBF())

    def model(x, y=None):
        h = pyro.sample("layer.h", gp(x))
        return pyro.sample("y", Gaussian().requires_grad_(False)(gp(h)), obs=y)

    x, y = regression(5)
    with pytest.raises(ValueError, match="'layer.h' cannot name a module"):
        Variational(model, InducingPoints(2), SigmaPoints("qr3", 2)).initialize(x, y)


class Plain(PyroModule):
    """A hidden layer, and function values under a plain observation."""

    def __init__(self):
        super().__init__()
        self.hidden, self.top = GaussianProcess(RBF()), GaussianProcess(RBF())

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        f = pyro.sample("f", self.top(h))
        return pyro.sample("y", dist.Normal(f[..., 0], 0.2).to_event(1), obs=y)


def test_points_of_function_values_under_a_plain_observation_are_not_learned():
    """No KL would hold them: a learned shift of f would fit the targets for free."""
    x, y = regression(10)
    one = guided(TwoSites(), x, y, SigmaPoints("qr3", 7)).propagation
    assert list(one.parameters()) == []
    points = one.positions("f")
    torch.testing.assert_close(points.mean(0), torch.zeros(1), atol=1e-12, rtol=0)
    torch.testing.assert_close(points.square().mean(0), torch.ones(1))
    deep = guided(Plain(), x, y, SigmaPoints("qr3", 7))
    names = [name for name, _ in deep.propagation.named_parameters()]
    assert names == ["weight_logits_unconstrained", "points.h_unconstrained"]
    other = Variational(Plain(), InducingPoints(6, covariance="diagonal"), SigmaPoints("qr3", 7))
    other.load_state_dict(deep.state_dict())
    for site in ("h", "f"):
        assert torch.equal(deep.propagation.positions(site), other.propagation.positions(site))
    assert [name for name, _ in other.propagation.named_parameters()] == names


@pytest.mark.parametrize("rule", ["qr1", "qr2"])
def test_a_grid_over_plain_function_values_is_gauss_hermite(rule):
    x, y = regression(10)
    model = TwoSites()
    guide = guided(model, x, y, SigmaPoints(rule, 5))
    loss = ELBO().differentiable_loss(model, guide, x, y)
    guide.propagation = SigmaPoints("gauss-hermite", 5)
    guide.propagation.initialize({"f": model.gp(x)}, {})
    torch.testing.assert_close(ELBO().differentiable_loss(model, guide, x, y), loss)
