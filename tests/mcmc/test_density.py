"""The density of a whitened model at points that rounding has taken out of a support, and where a model is at fault."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    RBF,
    Bernoulli,
    DeepGP,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    WhitenedNUTS,
    run_chains,
    whitened,
)
from pyro_dgp.internal.compiled_function import CHECKS
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.models.priors import with_priors
from tests.examples import Recorded, TwoLayers, regression

pytestmark = pytest.mark.usefixtures("local")


def with_noise_prior(x, prior):
    model = TwoLayers(x)
    model.likelihood.variance = PyroSample(prior)
    return model.requires_grad_(False)


@pytest.mark.parametrize("kind", [WhitenedDensity, Recorded])
@pytest.mark.parametrize(("prior", "far"), [(dist.LogNormal(-2.0, 0.5), 800.0), (dist.Gamma(2.0, 2.0), 400.0)])
def test_a_value_that_rounding_takes_out_of_its_support_has_no_density(kind, prior, far):
    x, y = regression(9)
    density = kind(whitened(with_noise_prior(x, prior)), (x, y), {})
    start = density.unconstrained_start()
    points = torch.stack([density.vector(start | {"likelihood.variance": torch.tensor(u)}) for u in (-far, 0.0, far)])
    for _ in range(2):  # a program is compared with the model at first
        values, gradients = density.slopes(points)
        assert values[1].isfinite() and (values[[0, 2]] < values[1] - 100).all()
        assert gradients[1].isfinite().all()
    value = density.transforms["likelihood.variance"](torch.tensor(-far))
    assert density.evaluate(density.start | {"likelihood.variance": value}).log_density < -100


def test_a_floor_that_rounding_reaches_has_no_density():
    x, y = regression(9)
    density = WhitenedDensity(whitened(with_priors(DeepGP(x, 1))), (x, y), {})
    start = density.unconstrained_start()
    low = density.vector(start | {"likelihood.variance": torch.tensor(-60.0)})  # 1e-4 + exp(-60) is 1e-4
    values, gradients = density.slopes(low[None])
    assert values.tolist() == [-math.inf] and not gradients.any()
    assert density.evaluate(density.start | {"likelihood.variance": torch.tensor(1e-4)}).log_density == -math.inf


class Faulty(PyroModule):
    """A model whose noise scale may be negative, with another latent value beside it."""

    def __init__(self, other):
        super().__init__()
        self.gp, self.other = GaussianProcess(RBF()), other

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        scale = pyro.sample("scale", dist.Normal(1.0, 0.01))
        pyro.sample("other", self.other)
        return pyro.sample("y", dist.Normal(f, scale).to_event(1), obs=y)


OTHERS = {
    "normal": dist.Normal(0.0, 1.0),
    "years": dist.Normal(2000.0, 10.0),
    "correlations": dist.LKJCholesky(3),
    "shares": dist.Dirichlet(torch.ones(3)),
    "positive": dist.HalfCauchy(1.0),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_fault_of_the_model_is_raised(other):
    x, y = regression(9)
    density = WhitenedDensity(whitened(Faulty(OTHERS[other]).requires_grad_(False)), (x, y), {})
    zero = {"other": torch.tensor(0.0)} if other == "normal" else {}
    point = density.vector(density.unconstrained_start() | zero | {"scale": torch.tensor(-0.5)})
    with pytest.raises(ValueError, match="Expected parameter scale"):
        density.slopes(point[None])
    with pytest.raises(ValueError, match="Expected parameter scale"):
        density.evaluate(density.start | zero | {"scale": torch.tensor(-0.5)})


class LogScale(PyroModule):
    """Noise by its logarithm."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        log_scale = pyro.sample("log_scale", dist.Normal(0.0, 3.0))
        return pyro.sample("y", dist.Normal(f, log_scale.exp()).to_event(1), obs=y)


@pytest.mark.parametrize("far", [-800.0, 800.0])
def test_a_logarithm_whose_exponential_is_rounded_away_has_no_density(far):
    x, y = regression(9)
    density = WhitenedDensity(whitened(LogScale().requires_grad_(False)), (x, y), {})
    point = density.vector(density.unconstrained_start() | {"log_scale": torch.tensor(far)})
    assert density.slopes(point[None])[0].tolist() == [-math.inf]


class Probability(PyroModule):
    """A Bernoulli whose probability rises above one where its argument is rounded away."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        low = pyro.sample("low", dist.LogNormal(0.0, 1.0))
        scale = torch.where(low > 1e-200, 0.5, 1.3)
        return pyro.sample("y", dist.Bernoulli(scale * (0.6 + 0.4 * torch.sigmoid(f))).to_event(1), obs=y)


@pytest.mark.parametrize("several", [1, 2])
def test_a_program_that_is_compared_where_the_model_fails_is_set_aside_for_that_point(several):
    x = torch.linspace(-1, 1, 6)[:, None]
    y = (x[:, 0] > 0).double()
    density = Recorded(whitened(Probability().requires_grad_(False)), (x, y), {})
    point = density.vector(density.unconstrained_start() | {"low": torch.tensor(-600.0)})
    for _ in range(CHECKS):
        values, _ = density.slopes(point.expand(several, -1))
        assert values.tolist() == [-math.inf] * several


@pytest.mark.parametrize("kernel", [WhitenedNUTS, EllipticalSlice])
def test_chains_go_on_from_steps_that_leave_a_support(kernel):
    """The first steps of NUTS are so long here that the noise underflows."""
    x = torch.linspace(-1, 1, 6)[:, None]
    y = torch.sin(3 * x[:, 0])
    options = {"step_size": 40.0} if kernel is WhitenedNUTS else {}
    made = kernel(with_priors(DeepGP(x, 1)), **options)
    result = run_chains(made, (x, y), num_samples=5, warmup_steps=0, num_chains=2, processes=1)
    assert np.isfinite(result.stats["lp"]).all()


class BehindNetwork(PyroModule):
    """A layer behind a network with batch statistics and dropout."""

    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
        self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian(variance=0.1)
        self.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(self.network(x))), obs=y)


def test_networks_are_in_evaluation_mode_as_in_predictions():
    x, y = regression(9)
    model = BehindNetwork()
    values = {"gp.kernel.lengthscale": torch.tensor(0.7)}
    running = model.network[1].running_mean.clone()
    found = [WhitenedDensity(whitened(model), (x, y), {}).evaluate(values).log_density for _ in range(2)]
    assert all(each.training for each in model.modules()) and torch.equal(model.network[1].running_mean, running)
    model.eval()
    assert found == [WhitenedDensity(whitened(model), (x, y), {}).evaluate(values).log_density] * 2
    traced = pyro.poutine.trace(pyro.condition(whitened(model.train()), values)).get_trace(x, y)
    assert traced.log_prob_sum().item() == pytest.approx(found[0])


@pytest.mark.parametrize("kind", [Gaussian, Bernoulli])
def test_targets_without_observations_are_sampled_as_other_values(kind):
    x, _ = regression(5)
    model = BehindNetwork().eval()
    model.likelihood = kind()
    if kind is Bernoulli:
        with pytest.raises(ValueError, match="the latent site 'y' is discrete"):
            WhitenedDensity(whitened(model), (x,), {})
        return
    density = WhitenedDensity(whitened(model), (x,), {})
    values = {"gp.kernel.lengthscale": torch.tensor(0.7), "y": torch.randn(5)}
    found = [density.evaluate(values).log_density for _ in range(2)]
    traced = pyro.poutine.trace(pyro.condition(whitened(model), values)).get_trace(x)
    assert found == [pytest.approx(traced.log_prob_sum().item())] * 2


def offset_by(draw):
    """A model whose function values have an offset, which is drawn in a way of its own."""
    gp = GaussianProcess(RBF()).requires_grad_(False)

    def model(x, y=None):
        f = pyro.sample("f", gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + draw(), 0.3).to_event(1), obs=y)

    return model


def normal():
    return pyro.sample("a", dist.Normal(0.0, 1.0))


def hidden_draws():
    """Models that draw beyond their sites."""
    return {
        "normal": poutine.block(offset_by(normal), hide=["a"]),
        "coin": poutine.block(offset_by(lambda: pyro.sample("a", dist.Bernoulli(0.2))), hide=["a"]),
        "function values": poutine.block(offset_by(lambda: 0.0), hide=["f"]),
        "torch": offset_by(lambda: torch.randn(())),
        "numpy": offset_by(lambda: np.random.normal()),
        "dropout": offset_by(lambda: torch.nn.functional.dropout(torch.ones(4)).sum()),
    }


@pytest.mark.parametrize("name", ["normal", "coin", "function values", "torch", "numpy", "dropout"])
def test_a_model_that_draws_beyond_its_sites_is_refused(name):
    """Its density would be another at each evaluation, and chains would keep to the prior of what is hidden."""
    x, y = regression(6)
    model = hidden_draws()[name]
    if name == "function values":
        model = with_level(model)
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="draws at random beyond its sites.*take the block away or give"):
        WhitenedDensity(whitened(model), (x, y), {})


def with_level(model):
    """A latent site beside those of a model."""

    def other(x, y=None):
        pyro.sample("level", dist.Normal(0.0, 1.0))
        return model(x, y)

    return other


def unused():
    """A draw that nothing depends on, such as a prediction that is made on the side."""
    pyro.sample("new", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    return 0.7


def sound_models():
    """Models whose offset is 0.7."""
    given = poutine.condition(offset_by(normal), {"a": torch.tensor(0.7)})
    return {
        "given": given,
        "given and hidden": poutine.block(given, hide=["a"]),
        "hidden and unused": poutine.block(offset_by(unused), hide=["new"]),
        "nothing hidden": poutine.block(offset_by(lambda: 0.7), hide=["nothing"]),
        "deterministic": offset_by(lambda: pyro.deterministic("a", torch.tensor(0.7))),
        "no dropout": offset_by(lambda: torch.nn.functional.dropout(torch.tensor(0.7), training=False)),
    }


@pytest.mark.parametrize(
    "name", ["given", "given and hidden", "hidden and unused", "nothing hidden", "deterministic", "no dropout"]
)
def test_a_model_whose_density_is_the_same_in_each_run_is_taken(name):
    """It is built from one draw of the prior, whatever is compared then."""
    x, y = regression(6)
    model = sound_models()[name]
    torch.manual_seed(0)
    density, after = WhitenedDensity(whitened(model), (x, y), {}), torch.get_rng_state()
    torch.manual_seed(0)
    pyro.poutine.trace(whitened(model)).get_trace(x, y)
    assert torch.equal(after, torch.get_rng_state())
    white = torch.randn(6, 1)
    f = GaussianProcess(RBF())(x).unwhiten(white)[..., 0].detach() + 0.7
    expected = dist.Normal(f, 0.3).log_prob(y).sum()
    if name == "given":
        expected = expected + dist.Normal(0.0, 1.0).log_prob(torch.tensor(0.7))
    assert density.evaluate({"f_whitened": white}).log_likelihood == pytest.approx(float(expected))
