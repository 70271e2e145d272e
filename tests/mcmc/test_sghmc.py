import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from benchmarks.studies.sghmc_bias import bias
from pyro_dgp import (
    ELBO,
    FourierFeatures,
    Gaussian,
    InducingDraws,
    InducingPoints,
    Matern52,
    MonteCarlo,
    Orthogonal,
    StochasticGradientHMC,
    Variational,
    draw_functions,
    fit,
    predict,
)
from pyro_dgp.mcmc.sghmc_state import HamiltonianState
from tests.examples import OneLayer, TwoLayers, regression

pytestmark = pytest.mark.usefixtures("local")


def point_guide(model, x, y, points=5):
    guide = Variational(model, InducingPoints(points, covariance="delta"), MonteCarlo(1))
    guide.initialize(x, y)
    return guide


class Behind(PyroModule):
    """A Gaussian process behind a network."""

    def __init__(self, network):
        super().__init__()
        self.network, self.rest = network, OneLayer()

    def forward(self, x, y=None):
        return pyro.sample("y", self.rest.likelihood(self.rest.gp(self.network(x))), obs=y)


def normal_posterior(step_size, steps, noise=0.0):
    """Draws of a normal of two correlated dimensions, and its covariance; gradients may have noise."""
    covariance = torch.tensor([[0.5, 0.3], [0.3, 0.4]])
    precision = torch.linalg.inv(covariance)
    position = torch.nn.Parameter(torch.zeros(2))
    chain = HamiltonianState([position], 0.05)
    kept = []
    for step in range(steps):
        shifted = position - 1.0
        potential = 0.5 * shifted @ precision @ shifted + noise * torch.randn(2) @ position
        chain.move(potential, step_size, adapt=step < 500)
        if step >= 500:
            kept.append(position.detach().clone())
    return torch.stack(kept), covariance


def test_the_burn_in_begins_with_large_steps():
    sampler = StochasticGradientHMC(step_size=0.2, burn_in=100)
    steps = [sampler._step(step, 10_000) for step in (0, 10, 49, 50, 99, 100, 500)]
    assert steps == pytest.approx([0.1, 0.08, 0.002, 0.002, 0.002, 0.002, 0.002])
    assert sampler._step(0, 1) == 0.2
    assert StochasticGradientHMC(step_size=0.2, burn_in=0)._step(0, 10_000) == 0.002


def test_many_rows_are_fitted_within_a_short_burn_in():
    """At its last step size alone the chain would be nowhere after 300 steps."""
    x, y = regression(4000)
    guide = point_guide(OneLayer(likelihood=Gaussian(variance=0.05)), x, y, 12)
    sampler = StochasticGradientHMC(burn_in=300, thin=5, learning_rate=0.0)
    draws = sampler.run(guide, x, y, num_samples=10, batch_size=200).draws
    error = predict(InducingDraws(guide, draws), x).mean - torch.sin(2 * x[:, 0])
    assert float(error.square().mean().sqrt()) < 0.15


def test_moves_leave_a_normal_posterior_and_their_bias_falls_with_the_step():
    bias = []
    for step_size, steps in ((0.8, 12_000), (0.4, 24_000)):
        draws, covariance = normal_posterior(step_size, steps)
        sd = covariance.diagonal().sqrt()
        bias.append(float((draws.std(0) / sd - 1).mean()))
        assert ((draws.mean(0) - 1.0).abs() < 0.1 * sd).all()
    assert 0.05 < bias[0] < 0.4  # of the size that halving must be seen on
    assert abs(bias[1]) < 0.1 and abs(bias[1]) < 0.6 * bias[0]
    correlation = torch.corrcoef(draws.T)[0, 1]
    assert float(correlation) == pytest.approx(0.3 / math.sqrt(0.2), abs=0.1)


@pytest.mark.parametrize("friction", [0.05, 0.3, 0.9])
def test_the_variance_is_that_of_the_posterior_whatever_the_friction(friction):
    """200,000 standard normals move at once, long enough to forget where they began."""
    position = torch.nn.Parameter(torch.randn(200_000))
    chain = HamiltonianState([position], friction)
    for _ in range(400):
        chain.move(0.5 * position.square().sum(), 0.1, adapt=False)
    assert float(position.detach().var()) == pytest.approx(1.0, abs=0.012)


def test_the_potential_is_minus_the_log_joint_density():
    """One layer: -log N(y; A v, noise + what the points do not tell) - log N(v; 0, I), whatever the batch in expectation."""
    x, y = regression(12)
    model = OneLayer(likelihood=Gaussian(variance=0.1)).requires_grad_(False)
    guide = point_guide(model, x, y)
    process = getattr(guide.processes, "y/f")
    v = torch.randn(1, 5)
    process.q.mean = v
    z = process.basis.inducing_points.detach()
    factor = model.gp(z).scale_tril[0]
    covariance = model.gp.kernel()
    a = torch.linalg.solve_triangular(factor, covariance.matrix(z[None], x[None])[0], upper=False)
    rest = covariance.diagonal(x[None])[0] - a.square().sum(0)
    log_joint = dist.Normal(a.T @ v[0], math.sqrt(0.1)).log_prob(y).sum() - (0.5 * rest / 0.1).sum()
    log_joint = log_joint + dist.Normal(0.0, 1.0).log_prob(v).sum()
    loss = ELBO(12)(model, guide)
    assert float(loss(x, y).detach()) == pytest.approx(-float(log_joint), rel=1e-6)
    halves = torch.stack([loss(x[:6], y[:6]), loss(x[6:], y[6:])]).mean().detach()
    assert float(halves) == pytest.approx(-float(log_joint), rel=1e-6)


def test_hyperparameters_learn_in_the_burn_in_and_stand_still_afterwards():
    x, y = regression(30)
    seen = []
    model = TwoLayers(x)
    guide = point_guide(model, x, y)
    start = {name: p.detach().clone() for name, p in guide.named_parameters()} | {
        name: p.detach().clone() for name, p in model.named_parameters()
    }

    def report(step, total, figures):
        assert total == 26 and math.isfinite(figures["potential"])
        seen.append((float(model.top.kernel.variance.detach()), guide.processes.h.q.mean.detach().clone()))

    sampler = StochasticGradientHMC(step_size=0.2, burn_in=20, thin=2)
    result = sampler.run(guide, x, y, num_samples=3, batch_size=10, report=report)
    noise = [variance for variance, _ in seen]
    assert len(set(noise[:20])) == 20 and len(set(noise[19:])) == 1
    assert all(not torch.equal(a, b) for (_, a), (_, b) in zip(seen[:-1], seen[1:], strict=True))
    moved = {name: p for name, p in [*guide.named_parameters(), *model.named_parameters()]}
    assert all(not torch.equal(p, start[name]) for name, p in moved.items())
    assert {name: tuple(v.shape) for name, v in result.draws.items()} == {
        "processes.h.q.mean_unconstrained": (3, 2, 5),
        "processes.y/f.q.mean_unconstrained": (3, 1, 5),
    }
    assert torch.equal(result.draws["processes.h.q.mean_unconstrained"][-1], guide.processes.h.q.mean)
    assert result.potential.shape == (3,)


def test_the_same_seed_draws_the_same_and_leaves_the_generator_alone():
    x, y = regression(20)
    draws = []
    for _ in range(2):
        torch.manual_seed(1)
        guide = point_guide(TwoLayers(x), x, y)
        state = torch.get_rng_state()
        draws.append(
            StochasticGradientHMC(burn_in=3, thin=1).run(guide, x, y, num_samples=2, batch_size=8, seed=7).draws
        )
        assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(values, draws[1][name]) for name, values in draws[0].items())


def test_predictions_are_the_mixture_over_draws():
    x, y = regression(20)
    guide = point_guide(OneLayer(), x, y)
    name = "processes.y/f.q.mean_unconstrained"
    draws = {name: torch.randn(3, 1, 5)}
    own = dict(guide.named_parameters())[name].detach().clone()
    prediction = predict(InducingDraws(guide, draws), x[:4])
    means = []
    for draw in draws[name]:
        dict(guide.named_parameters())[name].data.copy_(draw)
        means.append(predict(guide, x[:4]).mean)
    dict(guide.named_parameters())[name].data.copy_(own)
    torch.testing.assert_close(prediction.mean, torch.stack(means).mean(0))
    assert float((means[0] - means[1]).abs().min()) > 1e-3
    assert prediction.component_log_prob(y[:4]).shape == (3, 4)
    assert torch.equal(dict(guide.named_parameters())[name], own)
    with pytest.raises(ValueError, match="no parameter 'nothing'"):
        predict(InducingDraws(guide, {"nothing": own[None]}), x)


def test_bad_requests_are_one_sentence():
    x, y = regression(10)
    guide = Variational(OneLayer(), InducingPoints(4), MonteCarlo(1))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match="'y/f' is no set of inducing variables .* covariance=\"delta\""):
        StochasticGradientHMC().run(guide, x, y, num_samples=1)
    with pytest.raises(ValueError, match="friction lies between 0 and 1, got 1.5"):
        StochasticGradientHMC(friction=1.5)
    with pytest.raises(ValueError, match="step_size, thin and window are above 0"):
        StochasticGradientHMC(step_size=0.0)
    with pytest.raises(ValueError, match="the potential is (nan|inf): lower step_size"):
        StochasticGradientHMC(step_size=1e100, burn_in=50, learning_rate=0.0).run(
            point_guide(OneLayer(), x, y), x, y, num_samples=1
        )


def test_one_layer_comes_close_to_the_closed_form():
    """The benchmark's full run at toy length, where chance makes most of the distance."""
    row = bias(0.5, draws=60, burn_in=200)
    assert row["step_size"] == 0.5 and row["mean"] < 0.6 and row["sd"] < 0.4


@pytest.mark.parametrize(
    "family",
    [FourierFeatures(4, "delta"), Orthogonal(InducingPoints(4, "delta"), InducingPoints(3, "delta"))],
    ids=["Fourier features", "orthogonal"],
)
def test_coefficients_of_any_basis_are_sampled(family):
    x, y = regression(12)
    model = OneLayer(Matern52())
    guide = Variational(model, family, MonteCarlo(1))
    guide.initialize(x, y)
    sampler = StochasticGradientHMC(burn_in=2, thin=1)
    result = sampler.run(guide, x, y, num_samples=3, batch_size=6)
    assert sum(v[0].numel() for v in result.draws.values()) == getattr(guide.processes, "y/f").basis.size
    assert torch.isfinite(predict(result, x).mean).all()
    assert torch.isfinite(draw_functions(result, 3, seed=0)(x)).all()


def test_networks_are_in_evaluation_mode():
    x, y = regression(12)
    sampler, draws = StochasticGradientHMC(burn_in=3, thin=1), []
    for dropped in (0.0, 0.5):
        torch.manual_seed(0)
        dropout = torch.nn.Dropout(0.0)
        model = Behind(torch.nn.Sequential(torch.nn.Linear(1, 1), dropout))
        guide = point_guide(model, x, y)
        dropout.p = dropped
        modes = [module.training for module in (*model.modules(), *guide.modules())]
        draws.append(sampler.run(guide, x, y, num_samples=3, batch_size=6).draws)
        assert modes == [module.training for module in (*model.modules(), *guide.modules())] and all(modes)
    assert all(torch.equal(values, draws[1][name]) for name, values in draws[0].items())
    model = Behind(torch.nn.BatchNorm1d(1))
    guide = point_guide(model, x, y)
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert torch.isfinite(predict(sampler.run(guide, x, y, num_samples=2), x).mean).all()
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_draws_of_parameters_that_have_changed_are_refused():
    x, y = regression(12)
    model = Behind(torch.nn.BatchNorm1d(1))
    guide = point_guide(model, x, y)
    first = StochasticGradientHMC(burn_in=3, thin=1).run(guide, x, y, num_samples=3)
    mean, later = predict(first, x).mean, predict(first, x)
    StochasticGradientHMC(burn_in=3, thin=1, learning_rate=0.0).run(guide, x, y, num_samples=3, seed=1)
    assert torch.equal(predict(first, x).mean, mean)  # the second run moved what the draws hold, and nothing else
    StochasticGradientHMC(burn_in=3, thin=1).run(guide, x, y, num_samples=3)
    for use in (lambda: predict(first, x), lambda: draw_functions(first, 2), lambda: later.mean):
        with pytest.raises(ValueError, match="of the guide or its model has changed .* sample again"):
            use()
    second = StochasticGradientHMC(burn_in=0, thin=1).run(guide, x, y, num_samples=3)
    predict(second, x)
    model.network.running_mean += 1.0
    with pytest.raises(ValueError, match=r"'network.running_mean' of the guide or its model has changed"):
        predict(second, x)
    third = StochasticGradientHMC(burn_in=0, thin=1).run(guide, x, y, num_samples=3)
    fit(ELBO(12)(model, guide), x, y, steps=1)
    with pytest.raises(ValueError, match="has changed since the inducing variables were drawn"):
        predict(third, x)
