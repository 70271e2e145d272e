import functools
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import MCMC
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    RBF,
    Bernoulli,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    Kernel,
    PosteriorDraws,
    WhitenedNUTS,
    predict,
    run_chains,
    whitened,
)
from pyro_dgp.kernels.covariance import Covariance
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.slices import elliptical_slice, slice_sample
from tests.examples import OneLayer, Recorded, TwoLayers, TwoSites, posterior, regression

pytestmark = pytest.mark.usefixtures("local")


def run(model, x, y, count, warmup=50, **options):
    mcmc = MCMC(EllipticalSlice(model, **options), num_samples=count, warmup_steps=warmup, disable_progbar=True)
    mcmc.run(x, y)
    return mcmc.get_samples()


def sampled_hyperparameters(x):
    """Two layers with priors on three hyperparameters."""
    model = TwoLayers(x)
    model.hidden.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0).expand([x.shape[-1]]).to_event(1))
    model.top.kernel.variance = PyroSample(dist.LogNormal(0.0, 1.0))
    model.likelihood.variance = PyroSample(dist.LogNormal(-2.0, 0.5))
    return model.requires_grad_(False)


def test_slices_of_one_number_have_its_distribution():
    """A gamma density, started far out, with widths that are too small and too large."""
    target = dist.Gamma(3.0, 2.0)

    def log_density(value):
        return float(target.log_prob(torch.tensor(value))) if value > 0 else -math.inf

    for width in (0.5, 20.0):
        value, drawn = 5.0, []
        for _ in range(3000):
            value, _ = slice_sample(log_density, value, at_start=log_density(value), width=width)
            drawn.append(value)
        values = torch.tensor(drawn)[100:]
        assert float(values.mean()) == pytest.approx(1.5, abs=0.15)
        assert float(values.var()) == pytest.approx(0.75, rel=0.25)
        assert float((values < 1.5).double().mean()) == pytest.approx(0.577, abs=0.06)


def test_elliptical_slices_have_the_conjugate_posterior():
    """Standard normal prior, normal likelihood of variance 0.25 at 1: posterior N(0.8, 0.2)."""

    def log_likelihood(point):
        return float(-2 * (point - 1.0).square().sum())

    point, drawn = torch.zeros(2), []
    for _ in range(4000):
        point, _ = elliptical_slice(log_likelihood, point, log_likelihood(point))
        drawn.append(point)
    values = torch.stack(drawn)
    torch.testing.assert_close(values.mean(0), torch.full((2,), 0.8), atol=0.04, rtol=0)
    torch.testing.assert_close(values.var(0), torch.full((2,), 0.2), atol=0.03, rtol=0)


def test_the_density_is_that_of_the_trace_and_reuse_changes_nothing():
    x, y = regression(9, 2)
    model = sampled_hyperparameters(x)
    density = WhitenedDensity(whitened(model), (x, y), {})
    at = density.evaluate(density.start)
    trace = poutine.trace(poutine.condition(whitened(model), density.start)).get_trace(x, y)
    normal = sum(dist.Normal(0.0, 1.0).log_prob(density.start[name]).sum() for name in density.whitened)
    assert at.log_density + float(normal) == pytest.approx(float(trace.log_prob_sum()))
    assert len(density.start) == 4
    for name, value in density.start.items():
        changed = density.start | {name: 1.3 * value}
        reused, fresh = density.evaluate(changed, at, name), density.evaluate(changed)
        assert reused.log_density == pytest.approx(fresh.log_density, rel=1e-12)
        assert abs(fresh.log_density - at.log_density) > 1e-3


def test_reuse_sees_a_prior_that_depends_on_another_site():
    x, y = regression(7)
    model = TwoLayers(x, width=1)
    model.top.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.1).expand([1]).to_event(1))
    model.top.kernel.variance = PyroSample(lambda kernel: dist.LogNormal(kernel.lengthscale.sum(), 0.5))
    density = WhitenedDensity(whitened(model.requires_grad_(False)), (x, y), {})
    at = density.evaluate(density.start)
    assert set(at.log_priors) == {"top.kernel.variance", "top.kernel.lengthscale"}
    changed = density.start | {"top.kernel.lengthscale": density.start["top.kernel.lengthscale"] + 0.2}
    reused, fresh = density.evaluate(changed, at, "top.kernel.lengthscale"), density.evaluate(changed)
    assert reused.log_priors == pytest.approx(fresh.log_priors, rel=1e-12)
    assert all(abs(fresh.log_priors[name] - at.log_priors[name]) > 1e-3 for name in at.log_priors)


def test_function_values_are_updated_as_often_as_asked():
    """Of one hidden output and no hyperparameter: six times the updates, about six times the runs."""
    x, y = regression(10)
    model = TwoSites().requires_grad_(False)
    runs = {}
    for updates in (1, 6):
        result = run_chains(
            EllipticalSlice(model, function_updates=updates), (x, y), num_samples=40, warmup_steps=0, num_chains=1
        )
        runs[updates] = float(result.stats["runs"].mean())
    assert 4 < runs[6] / runs[1] < 8
    with pytest.raises(ValueError, match="function_updates must be at least 1"):
        EllipticalSlice(model, function_updates=0)


def test_one_layer_has_the_closed_form_posterior():
    x = torch.linspace(-1, 1, 8)[:, None]
    y = torch.sin(3 * x[:, 0])
    model = TwoSites(Gaussian(variance=0.1)).requires_grad_(False)
    draws = run(model, x, y, 600, density=Recorded)
    prior = model.gp(x)
    f = prior.unwhiten(draws["f_whitened"])[..., 0]
    mean, sd = posterior(prior, y, 0.1)
    assert ((f.mean(0) - mean).abs() / sd).max() < 0.2
    torch.testing.assert_close(f.std(0), sd, rtol=0.12, atol=0)
    new = torch.linspace(-1.5, 1.5, 9)[:, None]
    sampled = predict(PosteriorDraws(model, draws, (x, y)), new, num_samples=300)
    exact = predict(PosteriorDraws(OneLayer(likelihood=Gaussian(variance=0.1)), {}, (x, y)), new)
    torch.testing.assert_close(sampled.mean, exact.mean, atol=0.25, rtol=0)


@pytest.mark.slow
def test_a_hyperparameter_is_integrated_out_like_on_a_grid():
    x = torch.linspace(-1, 1, 10)[:, None]
    y = torch.sin(3 * x[:, 0])
    model = OneLayer(likelihood=Gaussian(variance=0.05))
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    model.requires_grad_(False)
    draws = run(model, x, y, 800)["gp.kernel.lengthscale"].log()
    grid = torch.linspace(-3, 3, 400)

    def score(value):
        conditioned = poutine.condition(model, {"gp.kernel.lengthscale": value})
        return float(poutine.trace(conditioned).get_trace(x, y).log_prob_sum())

    weights = torch.softmax(torch.tensor([score(g.exp()) for g in grid]) + grid, 0)
    mean = (weights * grid).sum()
    sd = (weights * (grid - mean).square()).sum().sqrt()
    assert abs(draws.mean() - mean) < 0.2 * sd
    assert float(draws.std()) == pytest.approx(float(sd), rel=0.2)


@pytest.mark.slow
def test_every_site_of_two_layers_moves_and_predictions_follow():
    x, y = regression(10)
    for likelihood, target in ((None, y), (Bernoulli(), (y > 0).to(y))):
        model = (
            sampled_hyperparameters(x)
            if likelihood is None
            else TwoLayers(x, likelihood=likelihood).requires_grad_(False)
        )
        draws = run(model, x, target, 20, warmup=12)
        assert all(len(values.reshape(20, -1).unique(dim=0)) > 15 for values in draws.values())
        assert ("y_f_whitened" in draws) == (likelihood is not None)
        prediction = predict(PosteriorDraws(model, draws, (x, target)), torch.linspace(-2, 2, 5)[:, None])
        assert torch.isfinite(prediction.log_prob(torch.zeros(5))).all()


class NoisyHidden(PyroModule):
    """A site whose prior stands on function values: ``z ~ N(h, s^2)``."""

    def __init__(self):
        super().__init__()
        self.gp = OneLayer().gp

    def forward(self, x, y=None):
        h = pyro.sample("h", self.gp(x))
        z = pyro.sample("z", dist.Normal(h[..., 0], 0.3).to_event(1))
        return pyro.sample("y", dist.Normal(z, 0.4).to_event(1), obs=y)


@pytest.mark.slow
def test_a_prior_that_stands_on_function_values_counts():
    """With z integrated out the noise is 0.3^2 + 0.4^2: the closed form."""
    x, y = torch.tensor([[-1.0], [0.0], [1.0]]), torch.tensor([1.5, -1.0, 1.5])
    model = NoisyHidden().requires_grad_(False)
    draws = run(model, x, y, 500, density=Recorded)
    prior = model.gp(x)
    h = prior.unwhiten(draws["h_whitened"])[..., 0]
    mean, sd = posterior(prior, y, 0.25)
    assert ((h.mean(0) - mean).abs() / sd).max() < 0.4
    torch.testing.assert_close(h.std(0), sd, rtol=0.25, atol=0)


class Plated(PyroModule):
    def __init__(self, subsample=None):
        super().__init__()
        self.inner, self.subsample = OneLayer(), subsample

    def forward(self, x, y=None):
        with pyro.plate("p", 3, subsample_size=self.subsample):
            pyro.sample("offset", dist.Normal(0.0, 1.0))
        return self.inner(x, y)


@pytest.mark.slow
def test_plates_of_all_their_rows_are_sampled():
    x, y = regression(6)
    draws = run(Plated().requires_grad_(False), x, y, 300)
    assert set(draws) == {"offset"} and draws["offset"].shape == (300, 3)
    assert abs(float(draws["offset"].mean())) < 0.2 and float(draws["offset"].std()) == pytest.approx(1, abs=0.15)


def test_widths_are_learned_in_the_warm_up_alone():
    """Under Pyro's own ``MCMC``, which does not say when it ends."""
    x, y = regression(6)
    kernel = EllipticalSlice(sampled_hyperparameters(x))
    kernel.setup(15, x, y)
    params, widths = kernel.initial_params, []
    for _ in range(25):
        params = kernel.sample(params)
        widths.append(float(kernel._widths["likelihood.variance"]))
    assert len(set(widths[9:15])) > 3 and set(widths[15:]) == {widths[14]}


def test_figures_of_a_draw_belong_to_it():
    x, y = regression(8)
    model = sampled_hyperparameters(x)
    result = run_chains(EllipticalSlice(model), (x, y), num_samples=4, warmup_steps=2, num_chains=1)
    density = WhitenedDensity(whitened(model), (x, y), {})
    for index in range(4):
        own = {name: values[0, index] for name, values in result.draws.items()}
        params = {k: density.transforms[k].inv(v) if k in density.transforms else v for k, v in own.items()}
        assert result.stats["lp"][0, index] == pytest.approx(-float(density.potential(params)), rel=1e-9)
    runs = result.stats["runs"][0]
    assert (runs >= 6).all() and result.diagnostics[0]["runs_per_sweep"] * 6 >= runs.sum()


def test_what_it_cannot_sample_is_named():
    x, y = regression(6)

    class Counted(PyroModule):
        def __init__(self):
            super().__init__()
            self.inner = TwoSites()

        def forward(self, x, y=None):
            pyro.sample("k", dist.Poisson(2.0))
            return self.inner(x, y)

    class Nested(PyroModule):
        def __init__(self):
            super().__init__()
            self.inner = TwoSites()

        def forward(self, x, y=None):
            a = pyro.sample("a", dist.LogNormal(0.0, 1.0))
            pyro.sample("b", dist.Uniform(0.0, a))
            return self.inner(x, y)

    for model, arguments, message in (
        (Counted(), (x, y), "'k' is discrete"),
        (Nested(), (x, y), "the support of the latent site 'b' depends on other sites"),
        (Plated(2), (x, y), "the plate 'p' subsamples"),
        (OneLayer(), (x, y), "nothing to sample"),
    ):
        with pytest.raises(ValueError, match=message):
            MCMC(EllipticalSlice(model), num_samples=1, warmup_steps=0, disable_progbar=True).run(*arguments)


def with_a_site_of_one_branch(x, y):
    t = pyro.sample("t", dist.Normal(torch.zeros((), dtype=x.dtype), 1.0))
    e = pyro.sample("e", dist.Normal(5.0, 1.0)) if t > 0 else 0.0
    pyro.sample("y", dist.Normal(e, 1.0), obs=torch.tensor(2.0, dtype=x.dtype))


def with_two_orders(x, y):
    """A proper density. The GP is met before or after a site that decides its factor."""
    gp = GaussianProcess(RBF()).double()
    t = pyro.sample("t", dist.Normal(torch.zeros((), dtype=x.dtype), 1.0))
    if t > 0:
        f = pyro.sample("f", gp(x))
        a = pyro.sample("a", dist.Normal(torch.zeros_like(t), 1.0))
    else:
        a = pyro.sample("a", dist.Normal(torch.zeros_like(t), 1.0))
        f = pyro.sample("f", gp(x * a.exp()))
    pyro.sample("y", dist.Normal(f[..., 0], 0.1 + 0.0 * a).to_event(1), obs=y)


SOMETIMES = "the latent site 'e' is sampled only for some values of other sites"


@pytest.mark.parametrize(
    ("kernel", "model", "message"),
    [
        (EllipticalSlice, with_a_site_of_one_branch, SOMETIMES),
        (WhitenedNUTS, with_a_site_of_one_branch, SOMETIMES),
        (EllipticalSlice, with_two_orders, "the order in which the model samples its latent sites depends on their"),
    ],
    ids=["some-slices", "some-NUTS", "order-slices"],
)
@pytest.mark.parametrize("seed", range(4))
def test_sites_that_depend_on_values_are_refused(kernel, model, message, seed):
    """The prior of a site that was not met was left out, and a factor was used again that no longer held."""
    torch.manual_seed(seed)
    with pytest.raises(ValueError, match=message):
        run_chains(kernel(model), regression(6), num_samples=300, warmup_steps=0, num_chains=1, seed=seed, processes=1)


def order_of_numbers(x, y, *, is_turned):
    """Two numbers are read before the GP, in an order that one of them decides, or the model ends early where its density is zero."""
    t = pyro.sample("t", dist.Normal(torch.zeros((), dtype=x.dtype), 1.0))
    if not is_turned and t < -1.5:
        pyro.factor("nowhere", torch.tensor(-math.inf, dtype=x.dtype))
        return
    names = ["a", "b"] if t > 0 or not is_turned else ["b", "a"]
    values = {name: pyro.sample(name, dist.Normal(torch.zeros_like(t), 1.0)) for name in names}
    f = pyro.sample("f", GaussianProcess(RBF()).double()(x * values["a"].exp()))
    pyro.sample("y", dist.Normal(f[..., 0] + values["b"], 1.0).to_event(1), obs=y)


@pytest.mark.parametrize("kernel", [EllipticalSlice, WhitenedNUTS])
@pytest.mark.parametrize("is_turned", [True, False], ids=["another order", "an early end"])
def test_branches_that_change_no_density_are_sampled(kernel, is_turned):
    torch.manual_seed(2)
    x, y = regression(6)
    model = functools.partial(order_of_numbers, is_turned=is_turned)
    found = run_chains(
        kernel(model), (x.double(), y.double()), num_samples=60, warmup_steps=20, num_chains=1, processes=1
    )
    assert float(found.draws["t"].min()) < 0 < float(found.draws["t"].max())
    assert is_turned or float(found.draws["t"].min()) >= -1.5


class ReadsLate(Kernel):
    """A kernel of one's own that reads its lengthscale when a matrix is computed, as a run with a known factor does not."""

    def __init__(self):
        super().__init__()
        self.lengthscale = PyroSample(dist.LogNormal(torch.zeros((), dtype=torch.float64), 0.5))

    def forward(self):
        kernel = self

        class OfKernel(Covariance):
            def matrix(self, x, z=None):
                z = x if z is None else z
                distance = (x.unsqueeze(-2) - z.unsqueeze(-3)) / kernel.lengthscale
                return (-0.5 * distance.square().sum(-1)).exp()

            def diagonal(self, x):
                return torch.ones_like(x[..., 0])

        return OfKernel()


def test_a_kernel_that_reads_a_latent_site_late_has_its_factor_anew():
    x, y = (values.double() for values in regression(6))
    model = TwoSites().double()
    model.gp.kernel = ReadsLate()
    density = WhitenedDensity(whitened(model.requires_grad_(False)), (x, y), {})
    known = density.evaluate(density.start)
    moved = density.start | {"gp.kernel.lengthscale": torch.tensor(2.5, dtype=torch.float64)}
    found = density.evaluate(moved, known, "gp.kernel.lengthscale")
    assert found.log_density == pytest.approx(density.evaluate(moved).log_density, rel=1e-12)
    assert found.log_density != pytest.approx(known.log_density, rel=1e-3)
    values = density.start | {"f_whitened": density.start["f_whitened"] + 0.1}
    assert density.evaluate(values, known, "f_whitened").log_priors.keys() == {"gp.kernel.lengthscale"}


class SharesLate(PyroModule):
    """Two layers with one kernel, which each reads late: the site is met after the values of the first."""

    def __init__(self):
        super().__init__()
        self.kernel = ReadsLate()
        self.lower, self.upper = GaussianProcess(self.kernel), GaussianProcess(self.kernel)

    def forward(self, x, y=None):
        h = pyro.sample("h", self.lower(x))
        return pyro.sample("y", Gaussian(variance=0.1).double().requires_grad_(False)(self.upper(h)), obs=y)


def test_a_kernel_that_two_layers_read_late_has_its_factors_anew():
    """The run with known factors met the site in the other layer, and the density was five nats off."""
    x, y = (values.double() for values in regression(6))
    model = SharesLate().double()
    pyro.poutine.trace(model).get_trace(x)  # the names that Pyro gives the modules at first
    density = WhitenedDensity(whitened(model), (x, y), {})
    (site,) = density.transforms
    known = density.evaluate(density.start)
    moved = density.start | {site: 1.7 * density.start[site]}
    found = density.evaluate(moved, known, site).log_density
    assert found == pytest.approx(density.evaluate(moved).log_density, rel=1e-12)
    assert found != pytest.approx(known.log_density, rel=1e-3)


def weighted(x, y):
    """A latent site whose prior, one object for all runs, counts by a weight that another site decides."""
    t = pyro.sample("t", dist.Uniform(torch.tensor(0.1, dtype=x.dtype), 3.0))
    with poutine.scale(scale=t):
        w = pyro.sample("w", NORMAL)
    with poutine.mask(mask=t > 1):
        pyro.sample("v", NORMAL)
    pyro.sample("y", dist.Normal(w, 1.0), obs=torch.tensor(2.0, dtype=x.dtype))


NORMAL = dist.Normal(torch.zeros((), dtype=torch.float64), 1.0)


def test_a_prior_whose_scale_or_mask_has_changed_counts_anew():
    density = WhitenedDensity(whitened(weighted), (torch.zeros(2, 1, dtype=torch.float64), None), {})
    values = {
        name: torch.tensor(number, dtype=torch.float64) for name, number in {"t": 0.5, "w": 1.2, "v": 0.3}.items()
    }
    known = density.evaluate(values)
    for t in (0.7, 2.0):
        moved = values | {"t": torch.tensor(t, dtype=torch.float64)}
        again = density.evaluate(moved, known, "t")
        assert again.log_priors == pytest.approx(density.evaluate(moved).log_priors, rel=1e-12)
        assert again.log_priors["w"] == pytest.approx(t * float(NORMAL.log_prob(moved["w"])))
    assert again.log_priors["v"] != known.log_priors["v"] == 0.0
