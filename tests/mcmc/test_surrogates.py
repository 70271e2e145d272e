import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroSample
from torch.distributions import MultivariateNormal

from pyro_dgp import (
    RBF,
    EllipticalSlice,
    GaussianProcess,
    SurrogateScale,
    SurrogateSlice,
    inducing_inputs,
    run_chains,
    whitened,
)
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.evaluation import Evaluation
from pyro_dgp.mcmc.surrogate_density import SurrogateDensity
from tests.examples import Recorded, TwoLayers, regression

pytestmark = pytest.mark.usefixtures("local")


class Chain(PyroModule):
    """GPs one above the other, all of them sampled, with priors on their lengthscales, under noise of a known scale."""

    def __init__(self, scale, layers=1, outputs=1, shared=True):
        super().__init__()
        self.scale = scale
        self.gps = PyroModule[torch.nn.ModuleList](
            GaussianProcess(RBF(1 if i == 0 else outputs, outputs=None if shared else outputs), num_outputs=outputs)
            for i in range(layers)
        )
        self.requires_grad_(False)
        for gp in self.gps:
            gp.kernel.lengthscale = PyroSample(
                dist.LogNormal(torch.full_like(gp.kernel.lengthscale, -0.5), 0.5).to_event(gp.kernel.lengthscale.dim())
            )

    def forward(self, x, y=None):
        for number, gp in enumerate(self.gps):
            x = pyro.sample(f"h{number}", gp(x))
        return pyro.sample("y", dist.Normal(x, self.scale).to_event(2), obs=y)


def joint(density, values, name, scale, change):
    """Surrogate data at values, and what they make of another value of a hyperparameter."""
    at = density.evaluate(values)
    given = SurrogateDensity(density)
    surrogates = given.draw(values, at, name=name, scale=scale)
    moved = values | {name: values[name] * change}
    return surrogates, moved, given.evaluate(surrogates, moved, known=at, changed=name)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("scale", [0.01, 0.3, 5.0])
def test_densities_of_data_and_noise_are_the_joint_density(scale, shared):
    """``p(v) N(g; f, s^2) = N(g; m, K + s^2 I) N(eta; 0, I) |C|`` at other hyperparameters too, by dense matrices."""
    x, y = regression(6)
    model = Chain(0.2, outputs=2, shared=shared)
    density = WhitenedDensity(whitened(model), (x, y[:, None].expand(-1, 2)), {})
    name = "gps.0.kernel.lengthscale"
    for change in (1.0, 1.4):
        surrogates, moved, found = joint(density, density.start, name, scale, change)
        values = moved | found.whitened
        run = density.run(values, Evaluation(0.0))
        factors = run.factors["h0"].expand(2, 6, 6)
        marginal, prior, given = 0.0, 0.0, 0.0
        for output, factor in enumerate(factors):
            v, g, eta = (z["h0" + end][:, output] for z, end in (
                (values, "_whitened"), (surrogates.data, ""), (surrogates.noise, "")
            ))  # fmt: skip
            marginal += float(
                MultivariateNormal(torch.zeros(6), factor @ factor.T + scale**2 * torch.eye(6)).log_prob(g)
            )
            prior += float(dist.Normal(0.0, 1.0).log_prob(v).sum() + dist.Normal(factor @ v, scale).log_prob(g).sum())
            precision = torch.eye(6) + factor.T @ factor / scale**2
            given += float(dist.Normal(0.0, 1.0).log_prob(eta).sum() + 0.5 * torch.logdet(precision))
        assert found.log_surrogates == pytest.approx(marginal, rel=1e-6)
        assert prior == pytest.approx(marginal + given, rel=1e-6)
        assert found.evaluation.log_density == pytest.approx(density.evaluate(values).log_density, rel=1e-8)
        unmoved = (found.whitened["h0_whitened"] - density.start["h0_whitened"]).abs().max() < 1e-5
        assert unmoved == (change == 1.0)
        assert (found.log_surrogates == pytest.approx(surrogates.log_density, rel=1e-9)) == (change == 1.0)


@pytest.mark.parametrize("change", [1.0, 1.4])
def test_a_moved_chain_of_two_layers_has_the_density_of_what_it_became(change):
    """The upper layer's whitened values follow from its data and its factor at what the lower one has become."""
    x, y = regression(6)
    density = WhitenedDensity(whitened(Chain(0.2, layers=2)), (x, y[:, None]), {})
    surrogates, moved, found = joint(density, density.start, "gps.0.kernel.lengthscale", 0.3, change)
    values = moved | found.whitened
    assert found.evaluation.log_density == pytest.approx(density.evaluate(values).log_density, rel=1e-8)
    run = density.run(values, Evaluation(0.0))
    total = 0.0
    for name in ("h0", "h1"):
        covariance = (run.factors[name] @ run.factors[name].mT)[0]
        g = surrogates.data[name][:, 0]
        total += float(MultivariateNormal(torch.zeros(6), covariance + 0.09 * torch.eye(6)).log_prob(g))
        factor, eta, v = run.factors[name][0], surrogates.noise[name][:, 0], values[name + "_whitened"][:, 0]
        precision = torch.eye(6) + factor.T @ factor / 0.09
        root = torch.linalg.cholesky(precision)
        mean = torch.linalg.solve(precision, factor.T @ g / 0.09)
        torch.testing.assert_close(root.T @ (v - mean), eta, rtol=1e-5, atol=1e-6)
    assert found.log_surrogates == pytest.approx(total, rel=1e-6)


def test_data_are_drawn_about_the_function_values():
    x, _ = regression(40)
    density = WhitenedDensity(whitened(Chain(0.2)), (x, torch.zeros(40, 1)), {})
    at, name = density.evaluate(density.start), "gps.0.kernel.lengthscale"
    values = at.factors["h0"][0] @ density.start["h0_whitened"]
    draws = [SurrogateDensity(density).draw(density.start, at, name=name, scale=0.3).data["h0"] for _ in range(50)]
    residuals = torch.cat([data - values for data in draws])
    assert abs(float(residuals.mean())) < 0.03
    assert float(residuals.std()) == pytest.approx(0.3, rel=0.06)


def test_they_stand_for_the_gps_behind_a_hyperparameter():
    x, y = regression(5)
    density = WhitenedDensity(whitened(Chain(0.2, layers=2)), (x, y[:, None]), {})
    at = density.evaluate(density.start)
    names = {
        number: set(
            SurrogateDensity(density).draw(density.start, at, name=f"gps.{number}.kernel.lengthscale", scale=0.1).data
        )
        for number in (0, 1)
    }
    assert names == {0: {"h0", "h1"}, 1: {"h1"}}
    model = TwoLayers(x)
    for gp in (model.hidden, model.top):
        gp.kernel.variance = PyroSample(dist.LogNormal(0.0, 0.5))
    for inducing, expected in ((None, {"h"}), (inducing_inputs(model, x, y, num_inducing=3), set())):
        density = WhitenedDensity(whitened(model.requires_grad_(False), inducing), (x, y), {})
        at = density.evaluate(density.start)
        behind = SurrogateDensity(density).draw(density.start, at, name="hidden.kernel.variance", scale=0.1)
        assert set(behind.data) == expected
        surrogates, moved, found = joint(density, density.start, "top.kernel.variance", 0.1, 1.3)
        assert not surrogates.data and surrogates.log_density == found.log_surrogates == 0 and not found.whitened
        assert found.log_density == pytest.approx(density.evaluate(moved).log_density)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_program_gives_the_same(outputs):
    x, y = regression(7)
    model, target = Chain(0.2, 2, outputs, shared=False), y[:, None].expand(-1, outputs)
    results = []
    for kind in (WhitenedDensity, Recorded):
        torch.manual_seed(1)
        density = kind(whitened(model), (x, target), {})
        for change in (1.1, 0.7, 1.3, 0.9, 1.2):
            torch.manual_seed(2)
            _, _, found = joint(density, density.start, "gps.0.kernel.lengthscale", 0.2, change)
        results.append(found)
    expected, found = results
    assert found.log_density == pytest.approx(expected.log_density, rel=1e-7)
    assert found.log_surrogates == pytest.approx(expected.log_surrogates, rel=1e-7)
    assert found.evaluation.log_priors == pytest.approx(expected.evaluation.log_priors)
    assert not found.evaluation.factors  # it was the program, and no run of the model
    assert found.whitened.keys() == expected.whitened.keys() == {"h0_whitened", "h1_whitened"}
    for name, values in expected.whitened.items():
        torch.testing.assert_close(found.whitened[name], values, rtol=1e-6, atol=1e-8)


def lengthscales(kernel, x, y, draws, seed=0):
    result = run_chains(kernel, (x, y), num_samples=draws, warmup_steps=50, num_chains=1, seed=seed)
    return {name: values.log().flatten() for name, values in result.flat.items() if name.endswith("lengthscale")}


def test_under_a_sharp_likelihood_they_have_the_posterior_and_mix():
    """Function values integrated out on a grid are the oracle; without surrogate data the lengthscale crawls."""
    x = torch.linspace(-1, 1, 12)[:, None]
    y = torch.sin(3 * x)
    grid = torch.linspace(-2.5, 1.5, 300)
    model = Chain(0.02)
    scores = []
    for value in grid:
        covariance = torch.exp(-0.5 * ((x - x.T) / value.exp()) ** 2) + (0.02**2 + 1e-8) * torch.eye(12)
        scores.append(MultivariateNormal(torch.zeros(12), covariance).log_prob(y[:, 0]) - 2 * (value + 0.5) ** 2)
    weights = torch.softmax(torch.stack(scores), 0)
    mean = float((weights * grid).sum())
    sd = float((weights * (grid - mean).square()).sum().sqrt())
    (drawn,) = lengthscales(
        SurrogateSlice(model, 1, scale=SurrogateScale(0.01, 1.0), density=Recorded), x, y, 400
    ).values()
    assert abs(float(drawn.mean()) - mean) < 0.4 * sd
    assert float(drawn.std()) == pytest.approx(sd, rel=0.3)
    (plain,) = lengthscales(EllipticalSlice(model, function_updates=1, density=Recorded), x, y, 100).values()
    assert drawn.diff().abs().mean() > 2 * plain.diff().abs().mean()


def test_without_information_hyperparameters_of_two_layers_have_their_prior():
    x = torch.linspace(-1, 1, 4)[:, None]
    kernel = SurrogateSlice(Chain(1e3, 2), 1, scale=SurrogateScale(0.1, 1.0), density=Recorded)
    drawn = lengthscales(kernel, x, torch.zeros(4, 1), 500)
    assert len(drawn) == 2
    for values in drawn.values():
        assert float(values.mean()) == pytest.approx(-0.5, abs=0.1)
        assert float(values.std()) == pytest.approx(0.5, rel=0.15)


def test_scales_are_drawn_between_two_and_checked():
    scale = SurrogateScale(0.01, 1.0)
    drawn = torch.tensor([scale.draw() for _ in range(400)]).log10()
    assert -2 <= drawn.min() < -1.9 and -0.1 < drawn.max() <= 0
    assert float(drawn.mean()) == pytest.approx(-1.0, abs=0.12)
    for low, high in ((0.0, 1.0), (0.5, 0.1), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="scales of surrogate data are positive, low first"):
            SurrogateScale(low, high)


def test_another_scale_is_another_chain(tmp_path):
    x, y = regression(5)
    model = Chain(0.2)
    run_chains(
        SurrogateSlice(model, scale=SurrogateScale(0.1)),
        (x, y[:, None]),
        num_samples=2,
        warmup_steps=1,
        num_chains=1,
        folder=tmp_path,
    )
    with pytest.raises(ValueError, match="another model, kernel"):
        run_chains(
            SurrogateSlice(model, scale=SurrogateScale(0.2)),
            (x, y[:, None]),
            num_samples=2,
            warmup_steps=1,
            num_chains=1,
            folder=tmp_path,
        )
