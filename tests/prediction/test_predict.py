"""Prediction from any fit: row arguments, any site, one way in for guides and draws."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    ELBO,
    RBF,
    DeepGP,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    InducingDraws,
    InducingPoints,
    MonteCarlo,
    PosteriorDraws,
    SigmaPoints,
    Standardizer,
    StochasticGradientHMC,
    Variational,
    WithMean,
    fit,
    predict,
    run_chains,
)
from tests.examples import LatentInputs, OneLayer, TwoLayers, TwoSites, posterior, regression


class Exposed(PyroModule):
    """Counts with an exposure: y ~ Poisson(exposure exp(f)), the rate as a site."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF(lengthscale=0.7))

    def forward(self, x, y=None, exposure=None):
        f = pyro.sample("f", self.gp(x))
        rate = pyro.deterministic("rate", f[..., 0].exp())
        return pyro.sample("y", dist.Poisson(exposure * rate).to_event(1), obs=y)


def exposed(rows=30):
    x, _ = regression(rows)
    exposure = torch.rand(rows) + 0.5
    return x, dist.Poisson(exposure * x[:, 0].exp()).sample(), exposure


def guide_of(model, *args, processes=None, propagation=None, **kwargs):
    guide = Variational(model, processes or InducingPoints(6), propagation or MonteCarlo(5))
    guide.initialize(*args, **kwargs)
    return guide


@pytest.mark.parametrize("kind", ["guide", "draws"])
def test_a_row_argument_is_split_as_x_is(local, kind):
    x, y, exposure = exposed()
    model = Exposed()
    if kind == "guide":
        fitted = guide_of(model, x, y, exposure=exposure)
    else:
        fitted = PosteriorDraws(model, {"f": torch.randn(3, 30, 1)}, (x, y, exposure))
    new, e = torch.linspace(-2, 2, 11)[:, None], torch.linspace(0.1, 5, 11)
    state = torch.get_rng_state()
    whole = predict(fitted, new, 2000, exposure=e)
    torch.set_rng_state(state)
    parts = predict(fitted, new, 2000, exposure=e, batch_size=4)
    with torch.no_grad():
        rate = whole.mean / e
        torch.testing.assert_close(parts.mean / e, rate, rtol=0.5 if kind == "guide" else 1.0, atol=0)
    assert parts.log_prob(torch.ones(11)).shape == (11,)
    one = predict(fitted, new[:1], exposure=e[:1])
    assert one.mean.shape == (1,)


def test_batches_get_their_own_rows_of_every_argument(local):
    """The mean of y given an offset is that offset, whatever f is: nothing is left to chance."""

    class Offset(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian()

        def forward(self, x, y=None, *, offset, scale, table):
            assert len(offset) == len(scale) == len(x) and table.shape == (3,)
            shift = pyro.deterministic("shift", offset + scale[:, 0] * table.sum())
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.Normal(1e-9 * f[..., 0] + shift, 0.1).to_event(1), obs=y)

    x, y = regression(20)
    more = {"offset": torch.arange(20.0), "scale": torch.rand(20, 2), "table": torch.ones(3)}
    expected = more["offset"] + 3 * more["scale"][:, 0]
    guide = guide_of(Offset(), x, y, **more)
    fit(ELBO(20)(guide.model, guide), x, y, steps=2, batch_size=7, **more)
    for fitted in (guide, PosteriorDraws(guide.model, {"f": torch.randn(2, 20, 1)}, (x, y), kwargs=more)):
        torch.testing.assert_close(predict(fitted, x, batch_size=6, **more).mean, expected, rtol=0, atol=1e-6)
        shifts = predict(fitted, x, batch_size=6, site="shift", **more)
        torch.testing.assert_close(shifts.mean, expected)
        torch.testing.assert_close(shifts.quantile(0.3), expected)
    with pytest.raises(ValueError, match="offset holds NaN or infinity: drop or fill such rows before prediction"):
        predict(guide, x, **more | {"offset": torch.full((20,), torch.nan)})


@pytest.mark.slow
def test_function_values_have_the_marginals_of_their_posterior(local):
    """One layer under Gaussian noise: f at the data has the closed form, from draws and, with inducing points at the data, from a guide."""
    x, y = regression(8)
    model = TwoSites(likelihood=Gaussian(variance=0.04)).requires_grad_(False)
    prior = model.gp(x)
    mean, sd = posterior(prior, y, 0.04)
    k = prior.covariance_matrix[0]
    covariance = k - k @ torch.linalg.solve(k + 0.04 * torch.eye(8), k)
    f = mean + torch.randn(500, 8) @ torch.linalg.cholesky(covariance + 1e-10 * torch.eye(8)).T
    sampled = predict(PosteriorDraws(model, {"f": f.unsqueeze(-1)}, (x, y)), x, 500, site="f")
    torch.testing.assert_close(sampled.mean, mean, atol=0.04, rtol=0)
    torch.testing.assert_close(sampled.variance.sqrt(), sd, atol=0.02, rtol=0)
    guide = guide_of(model, x, y, processes=InducingPoints(8), propagation=MonteCarlo(1))
    q = guide.processes.f(model.gp(x))
    p = predict(guide, x, site="f", batch_size=3)
    torch.testing.assert_close(p.mean, q.mean[:, 0])
    torch.testing.assert_close(p.variance, q.variance[:, 0])
    assert p.log_prob(mean).shape == (8,)


@pytest.mark.parametrize("propagation", [MonteCarlo(4), SigmaPoints("qr3", 4)], ids=["samples", "points"])
def test_a_hidden_layer_is_predicted_too(local, propagation):
    x, y = regression(12)
    guide = guide_of(TwoLayers(x), x, y, propagation=propagation)
    hidden = predict(guide, x, site="h", batch_size=5)
    q = guide.processes.h(guide.model.hidden(x))
    assert hidden.event_shape == (2,) and hidden.mean.shape == (12, 2)
    torch.testing.assert_close(hidden.mean, q.mean)
    torch.testing.assert_close(hidden.quantile(0.5), q.mean, atol=1e-8, rtol=0)
    top = predict(guide, x)
    assert top.mean.shape == (12,) and top.functions().components.batch_shape[0] > 1


@pytest.mark.parametrize("propagation", [MonteCarlo(4), WithMean(MonteCarlo(4)), SigmaPoints("qr3", 4)])
def test_a_function_inside_an_observation_is_the_prediction_without_noise(local, propagation):
    x, y = regression(12)
    guide = guide_of(TwoLayers(x), x, y, propagation=propagation)
    draws = PosteriorDraws(guide.model, {"h": torch.randn(5, 12, 2)}, (x, y))
    for fitted in (guide, draws):
        f, noisy = predict(fitted, x, 8, site="y/f"), predict(fitted, x, 8)
        noisy.seed = f.seed  # the same draws of the hidden layer
        torch.testing.assert_close(f.mean, noisy.mean)
        torch.testing.assert_close(f.variance + guide.model.likelihood.variance, noisy.variance)
        torch.testing.assert_close(f.mixture().components.mean, noisy.functions().components.mean[..., 0])


@pytest.mark.slow
def test_a_second_hidden_layer_is_a_mixture_over_the_first(local):
    x, y = regression(12)
    guide = guide_of(DeepGP(x, layers=3, width=2), x, y)
    p = predict(guide, x, 50, site="h2")
    assert p.mixture().components.batch_shape == (50, 12, 2)
    draws = torch.stack([guide(x)["h2"] for _ in range(300)])
    torch.testing.assert_close(predict(guide, x, 3000, site="h2").mean, draws.mean(0), atol=0.25, rtol=0)


def test_a_model_of_one_function_and_no_likelihood(local):
    class Alone(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp = GaussianProcess(RBF(lengthscale=0.7))

        def forward(self, x, f=None):
            return pyro.sample("f", self.gp(x), obs=f)

    x, _ = regression(6)
    f = torch.sin(x)
    p = predict(PosteriorDraws(Alone(), {}, (x, f)), x)
    torch.testing.assert_close(p.mean, f[:, 0], atol=1e-4, rtol=0)
    guide = guide_of(Alone(), x)
    assert predict(guide, x).mean.shape == (6,)


def test_values_that_a_model_computes_are_mixtures_of_points(local):
    x, y, exposure = exposed()
    guide = guide_of(Exposed(), x, y, exposure=exposure)
    rates = predict(guide, x, 4000, site="rate", exposure=exposure)
    q = guide.processes.f(guide.model.gp(x))
    expected = (q.mean + 0.5 * q.variance)[:, 0].exp()  # the mean of a log-normal
    torch.testing.assert_close(rates.mean, expected, rtol=0.15, atol=0)
    level = dist.Normal(0.0, 1.0).icdf(torch.tensor(0.8))
    torch.testing.assert_close(rates.quantile(0.8), (q.mean + level * q.variance.sqrt())[:, 0].exp(), rtol=0.2, atol=0)
    torch.testing.assert_close(rates.cdf(rates.quantile(0.8)), torch.full((30,), 0.8), atol=1e-3, rtol=0)
    assert rates.sample((3,)).shape == (3, 30) and (rates.sample() > 0).all()
    with pytest.raises(ValueError, match="the prediction of 'rate' is a mixture of the values"):
        rates.log_prob(torch.ones(30))


class Noisy(OneLayer):
    """A prior on the noise, and sites without rows."""

    def __init__(self):
        super().__init__(likelihood=Gaussian(variance=0.04))
        self.likelihood.variance = PyroSample(dist.LogNormal(-3.0, 0.5))

    def forward(self, x, y=None):
        pyro.deterministic("noise sd", self.likelihood.variance.sqrt())
        f = self.gp(x)
        pyro.deterministic("pair", torch.stack([self.likelihood.variance, 2 * self.likelihood.variance]))
        return pyro.sample("y", self.likelihood(f), obs=y)


def test_latent_values_and_those_without_rows_are_repeated_for_each_row(local):
    x, y = regression(10)
    model = Noisy()
    draws = {"likelihood.variance": torch.rand(50) + 0.1}
    fitted = PosteriorDraws(model, draws, (x, y))
    values = draws["likelihood.variance"]
    noise = predict(fitted, x[:4], site="likelihood.variance")
    torch.testing.assert_close(noise.mean, values.mean().expand(4))
    torch.testing.assert_close(noise.variance, values.var(correction=0).expand(4))
    torch.testing.assert_close(predict(fitted, x[:4], site="noise sd").mean, values.sqrt().mean().expand(4))
    assert predict(fitted, x[:4], site="pair").mean.shape == (4, 2)
    guide = guide_of(model, x, y)
    q = predict(guide, x[:4], 60, site="likelihood.variance")
    assert q.mixture().components.batch_shape == (60, 4) and (q.mean == q.mean[0]).all()
    start = torch.stack([guide(x)["likelihood.variance"] for _ in range(200)]).log()
    torch.testing.assert_close(q.quantile(0.5)[0].log(), start.mean(), rtol=0, atol=0.1)


def test_a_latent_value_of_each_row_has_its_distribution_at_new_rows(local):
    x, y = regression(10)
    guide = guide_of(LatentInputs(), x, y)
    with pytest.warns(
        UserWarning, match=r"'w' has a value for each row, .* at the training rows are guide\(x, y\)\['w'\]"
    ):
        w = predict(guide, x[:3], site="w")
    torch.testing.assert_close(w.log_prob(torch.zeros(3)), dist.Normal(0.0, 1.0).log_prob(torch.zeros(3)))
    draws = PosteriorDraws(LatentInputs(), {"w": torch.randn(5, 10)}, (x, y))
    with pytest.warns(
        UserWarning, match=r"'w' has a value for each row, .* at the training rows are chains.draws\['w'\]"
    ):
        assert (predict(draws, x[:3], site="w").variance - 1.0).abs().max() < 1e-5
    assert predict(draws, x[:3]).mean.shape == (3,)


def test_what_a_model_observes_by_itself_is_not_what_is_predicted(local):
    class Measured(OneLayer):
        def forward(self, x, y=None):
            mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
            pyro.sample("z", dist.Normal(mu, 1.0).expand([5]).to_event(1), obs=torch.zeros(5))
            return super().forward(x, y)

    x, y = regression(10)
    draws = {"mu": torch.randn(4)}
    for fitted in (guide_of(Measured(), x, y), PosteriorDraws(Measured(), draws, (x, y))):
        assert predict(fitted, x).mean.shape == (10,)
        again = predict(fitted, x, site="z")
        torch.testing.assert_close(again.mean, again.mean[0, 0].expand(10, 5))


def test_one_distribution_of_all_rows_is_refused(local):
    class Joint(TwoSites):
        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))[..., 0]
            return pyro.sample("y", dist.MultivariateNormal(f, torch.eye(f.shape[-1])), obs=y)

    x, y = regression(10)
    guide = guide_of(Joint(), x, y)
    assert predict(guide, x, site="f").mean.shape == (10,)
    with pytest.raises(
        ValueError, match="'y' has one distribution of all rows together.*the function values, by site="
    ):
        predict(guide, x)


def test_what_no_prediction_can_be_made_of_is_said(local):
    class Total(TwoSites):
        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            pyro.deterministic("total", f.sum((-2, -1)))
            pyro.deterministic("square", f @ f.mT)
            return pyro.sample("y", self.likelihood.given(f), obs=y)

    x, y = regression(10)
    guide, draws = guide_of(Total(), x, y), PosteriorDraws(Total(), {"f": torch.randn(2, 10, 1)}, (x, y))
    for fitted in (guide, draws):
        with pytest.raises(ValueError, match="'total' has one value for all rows together"):
            predict(fitted, x, site="total")
        with pytest.raises(ValueError, match="'square' has shape .* one value, or one vector, for each row"):
            predict(fitted, x, site="square")
        with pytest.raises(ValueError, match="there is no site 'g': the model has"):
            predict(fitted, x, site="g")
    with pytest.raises(TypeError, match="predict takes a trained guide, chains"):
        predict(Total(), x)
    with pytest.raises(ValueError, match="num_hyperparameter_draws is for guides"):
        predict(draws, x, num_hyperparameter_draws=3)
    with pytest.raises(TypeError, match="a tuple that begins with x"):
        PosteriorDraws(Total(), {}, ("x",))


def test_chains_and_inducing_draws_hold_what_a_prediction_needs(local):
    x, y, exposure = exposed(12)
    chains = run_chains(
        EllipticalSlice(Exposed()), (x, y, exposure), num_samples=6, warmup_steps=2, num_chains=2, processes=1
    )
    by_chains = predict(chains, x[:5], 12, exposure=exposure[:5])
    torch.manual_seed(0)
    again = predict(PosteriorDraws(chains.model, chains.flat, (x, y, exposure)), x[:5], 12, exposure=exposure[:5])
    assert by_chains.mixture().components.batch_shape == again.mixture().components.batch_shape == (12, 5)
    guide = guide_of(Exposed(), x, y, exposure=exposure, processes=InducingPoints(4, "delta"))
    sampler = StochasticGradientHMC(burn_in=2, thin=1)
    sampled = sampler.run(guide, x, y, num_samples=6, batch_size=5, exposure=exposure)
    before = {name: value.detach().clone() for name, value in guide.named_parameters()}
    p = predict(sampled, x, exposure=exposure, site="f")
    assert p.mixture().components.batch_shape == (6, 12)
    (name, values), *_ = sampled.draws.items()
    for number in (0, 5):
        guide.get_parameter(name).data.copy_(values[number])
        q = guide.processes.f(guide.model.gp(x))
        torch.testing.assert_close(p.mixture().components.mean[number], q.mean[:, 0])
        guide.get_parameter(name).data.copy_(before[name])
    assert all(torch.equal(value, before[name]) for name, value in guide.named_parameters())
    with pytest.raises(ValueError, match="the guide has no parameter 'nope'"):
        predict(InducingDraws(guide, {"nope": values}), x, exposure=exposure)


def test_more_values_than_rows_are_refused():
    class Shifted(OneLayer):
        def forward(self, x, y=None, off=None):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.Normal(f[..., 0] + off, 0.1).to_event(1), obs=y)

    x, y = regression(12)
    off = torch.arange(12.0)
    guide = guide_of(Shifted(), x, y, off=off)
    assert predict(guide, x[:1], off=off[:1]).mean.shape == (1,)
    with pytest.raises(ValueError, match=r"the argument 'off' has shape \(12,\), and there are 1 rows"):
        predict(guide, x[:1], off=off)

    class Fixed(OneLayer):
        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.Normal(f[..., 0] + off, 0.1).to_event(1), obs=y)

    with pytest.raises(ValueError, match="the model gives 12 values for 1 rows of the inputs"):
        predict(guide_of(Fixed(), x, y), x[:1]).mean  # noqa: B018


def test_an_error_at_the_first_row_names_the_shape_of_all_rows(local):
    x, y = regression(8)
    guide = Variational(DeepGP(x, layers=1, standardizer=Standardizer.fit(x, y)), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    with pytest.raises(ValueError, match=r"made for inputs \(N, 1\) of real numbers, got \(30, 2\)"):
        predict(guide, torch.zeros(30, 2))


def test_inputs_that_change_after_the_call_change_nothing():
    """Mixtures are evaluated when they are asked for."""
    x, y = regression(12)
    model = Exposed().requires_grad_(False)
    exposure = torch.linspace(0.5, 2.0, 12, dtype=x.dtype)
    guide = Variational(model, InducingPoints(5), MonteCarlo(3))
    counts = y.exp().round()
    guide.initialize(x, counts, exposure=exposure)
    exact = PosteriorDraws(OneLayer(), {}, (x, y))
    for fit_, arguments in ((guide, {"exposure": exposure}), (exact, {})):
        torch.manual_seed(0)
        wanted = predict(fit_, x, **arguments).mean
        inputs, others = x.clone(), {name: value.clone() for name, value in arguments.items()}
        torch.manual_seed(0)
        prediction = predict(fit_, inputs, **others)
        for value in (inputs, *others.values()):
            value.mul_(0.1)
        torch.testing.assert_close(prediction.mean, wanted, rtol=0, atol=0)
