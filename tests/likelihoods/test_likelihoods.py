import inspect
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC, NUTS
from pyro.nn import PyroSample
from scipy import stats
from scipy.integrate import quad
from scipy.stats import norm

from pyro_dgp import (
    ELBO,
    RBF,
    Bernoulli,
    GammaDivergence,
    Gaussian,
    InducingPoints,
    LinearCoregionalization,
    MonteCarlo,
    NegativeBinomial,
    Ordinal,
    Poisson,
    PosteriorDraws,
    PredictiveLogLikelihood,
    StudentT,
    Variational,
    fit,
    likelihoods,
    module_local_parameters,
    predict,
    whitened,
)
from pyro_dgp.internal.recording import reports
from pyro_dgp.likelihoods import Likelihood
from pyro_dgp.likelihoods.coregionalization import CoregionalizedConditional
from pyro_dgp.likelihoods.gaussian import GaussianConditional
from pyro_dgp.likelihoods.moments import Moments
from tests.examples import OneLayer, TwoSites, regression

CASES = {
    "Gaussian": (
        lambda: Gaussian(variance=0.3),
        lambda y, f: math.exp(-((y - f) ** 2) / 0.6) / math.sqrt(2 * math.pi * 0.3),
        [-0.4, 1.3],
    ),
    "Bernoulli probit": (Bernoulli, lambda y, f: norm.cdf(f if y else -f), [0.0, 1.0]),
    "Bernoulli logit": (lambda: Bernoulli("logit"), lambda y, f: 1 / (1 + math.exp(-f if y else f)), [0.0, 1.0]),
    "Poisson": (Poisson, lambda y, f: stats.poisson.pmf(y, math.exp(f)), [0.0, 3.0, 12.0]),
    "NegativeBinomial": (
        lambda: NegativeBinomial(0.5),
        lambda y, f: stats.nbinom.pmf(y, 2.0, 1 / (1 + 0.5 * math.exp(f))),
        [0.0, 3.0, 12.0],
    ),
    "StudentT": (lambda: StudentT(3.0, 0.3), lambda y, f: stats.t.pdf(y, 3.0, f, 0.3), [-0.4, 1.3, 30.0]),
    "Ordinal": (
        lambda: ordinal([-0.5, 1.0]),
        lambda y, f: (norm.cdf(-0.5 - f), between(-0.5 - f, 1.0 - f), norm.cdf(f - 1.0))[int(y)],
        [0.0, 1.0, 2.0],
    ),
}

#: Likelihoods of several functions, each with a test of its own.
OF_SEVERAL = {"LinearCoregionalization", "MissingOutputs", "RobustMax", "Softmax", "HeteroscedasticGaussian"}
#: Without a score of the gamma divergence: the integral of their density to a power is not known.
WITHOUT_GAMMA_SCORE = ("Poisson", "NegativeBinomial")


def between(low, high):
    """``Phi(high) - Phi(low)`` without cancellation."""
    return norm.cdf(-low) - norm.cdf(-high) if low > 0 else norm.cdf(high) - norm.cdf(low)


def ordinal(cutpoints):
    likelihood = Ordinal(len(cutpoints) + 1)
    likelihood.cutpoints = torch.tensor(cutpoints)
    return likelihood


def log_density(name, y, f):
    """The logarithm of a density, of counts without underflow."""
    if name == "Poisson":
        return stats.poisson.logpmf(y, math.exp(f))
    if name == "NegativeBinomial":
        return stats.nbinom.logpmf(y, 2.0, 1 / (1 + 0.5 * math.exp(f)))
    return math.log(CASES[name][1](y, f))


def test_every_likelihood_of_the_package_is_in_this_table():
    classes = {n for n, c in vars(likelihoods).items() if inspect.isclass(c) and issubclass(c, Likelihood)}
    assert classes - {"Likelihood"} == {name.split()[0] for name in CASES} | OF_SEVERAL


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("mean", "variance"), [(0.3, 0.5), (-2.0, 0.01), (1.5, 4.0)])
def test_integrals_against_adaptive_quadrature(name, mean, variance):
    make, density, targets = CASES[name]
    conditional = make().requires_grad_(False).conditional()
    moments = Moments(torch.tensor([[mean]]), torch.tensor([[variance]]))
    q = norm(mean, math.sqrt(variance))
    low, high = q.ppf(1e-13), q.ppf(1 - 1e-13)
    for y in targets:
        expected = quad(lambda f, y=y: q.pdf(f) * log_density(name, y, f), low, high, epsabs=1e-12, limit=200)[0]
        predictive = quad(lambda f, y=y: q.pdf(f) * density(y, f), low, high, epsabs=1e-16, limit=400)[0]
        target = torch.tensor([y])
        assert float(conditional.expected_log_prob(target, moments)) == pytest.approx(expected, abs=2e-5)
        assert float(conditional.predictive_log_prob(target, moments)) == pytest.approx(math.log(predictive), abs=2e-5)
        component = conditional.components(moments).log_prob(target)
        assert float(component) == pytest.approx(math.log(predictive), abs=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name):
    make, _, targets = CASES[name]
    conditional = make().conditional()
    y = torch.tensor(targets)
    mean, raw = torch.randn(len(y), 1, requires_grad=True), torch.rand(len(y), 1, requires_grad=True)

    def call(mean, raw):
        moments = Moments(mean, raw + 0.1)
        return conditional.expected_log_prob(y, moments), conditional.predictive_log_prob(y, moments)

    assert torch.autograd.gradcheck(call, (mean, raw))


@pytest.mark.parametrize("outputs", [1, 3])
def test_gaussian_evidence_under_the_prior(outputs):
    x, _ = regression(7)
    y = torch.randn(7) if outputs == 1 else torch.randn(7, outputs)
    model = OneLayer(outputs=outputs)
    trace = pyro.poutine.trace(model).get_trace(x, y)
    trace.compute_log_prob()
    k = trace.nodes["y"]["fn"].priors["f"].covariance_matrix[0] + 0.04 * torch.eye(7)
    normal = dist.MultivariateNormal(torch.zeros(7), k)
    expected = normal.log_prob(y) if outputs == 1 else sum(normal.log_prob(y[:, d]) for d in range(outputs))
    torch.testing.assert_close(trace.nodes["y"]["log_prob_sum"], expected)


def test_noise_per_output():
    likelihood = Gaussian(2)
    likelihood.variance = torch.tensor([0.1, 2.0])
    y, f = torch.randn(5, 2), torch.randn(5, 2)
    expected = dist.Normal(f, torch.tensor([0.1, 2.0]).sqrt()).log_prob(y)
    torch.testing.assert_close(likelihood.given(f).log_prob(y), expected.sum())
    variances = torch.rand(5, 2)
    predictive = likelihood.conditional().components(Moments(f, variances))
    torch.testing.assert_close(predictive.variance, variances + torch.tensor([0.1, 2.0]))


def test_noise_stays_above_its_floor():
    likelihood = Gaussian(variance=0.1)
    likelihood.variance_unconstrained.data.fill_(-100.0)
    assert float(likelihood.variance.detach()) == pytest.approx(likelihoods.NOISE_FLOOR)
    with pytest.raises(ValueError, match="must exceed its floor"):
        Gaussian(variance=1e-5)


def test_bernoulli_tails_stay_finite_in_float32():
    moments = Moments(torch.tensor([[40.0], [-40.0]], dtype=torch.float32), torch.ones(2, 1, dtype=torch.float32))
    y = torch.tensor([0.0, 1.0], dtype=torch.float32)
    for link in ("probit", "logit"):
        conditional = Bernoulli(link).conditional()
        assert torch.isfinite(conditional.expected_log_prob(y, moments)).all()
        assert torch.isfinite(conditional.predictive_log_prob(y, moments)).all()


@pytest.mark.slow
def test_prior_draws_of_y_have_the_right_spread():
    x = torch.tensor([[0.0], [0.5]])
    model = OneLayer()
    with torch.no_grad():
        draws = torch.stack([model(x) for _ in range(4000)])
    k = math.exp(-0.5 * (0.5 / 0.7) ** 2)
    torch.testing.assert_close(torch.cov(draws.T), torch.tensor([[1.04, k], [k, 1.04]]), atol=0.1, rtol=0)


def test_one_output_targets_are_vectors():
    x, y = regression(5)
    with pytest.raises(ValueError, match=r"y has shape \(5, 1\); for one output it is \(N,\)"):
        pyro.poutine.trace(OneLayer()).get_trace(x, y[:, None]).log_prob_sum()


def test_a_table_of_targets_for_one_output_is_told_what_to_pass():
    x, _ = regression(6)
    model, tables = OneLayer(), torch.eye(3)[torch.arange(6) % 3]
    with pytest.raises(
        ValueError, match=r"\(6, 3\).*\(\.\.\., 6\): pass y.argmax\(-1\) for .*num_outputs=3 for as many targets"
    ):
        pyro.poutine.trace(model).get_trace(x, tables).log_prob_sum()
    with pytest.raises(ValueError, match=r"\(4,\), .* make it \(\.\.\., 6\)\n"):
        pyro.poutine.trace(model).get_trace(x, tables[:4, 0]).log_prob_sum()


@pytest.mark.parametrize("make", [OneLayer, TwoSites])
def test_an_observation_inside_a_data_plate_raises(make):
    model = make()
    x, y = regression(6)

    def inside():
        with pyro.plate("data", 6):
            model(x, y)

    with pytest.raises(ValueError, match="inside the plate 'data' of 6"):
        inside()


def test_bernoulli_has_no_closed_form_under_the_prior():
    x, y = regression(5)
    with pytest.raises(ValueError, match="no closed form"):
        pyro.poutine.trace(OneLayer(likelihood=Bernoulli())).get_trace(x, (y > 0).double()).log_prob_sum()


def test_a_likelihood_wants_a_distribution_over_functions():
    with pytest.raises(TypeError, match="use likelihood.given"):
        Gaussian()(torch.randn(5, 1))
    with pytest.raises(ValueError, match="takes one function, got 2"):
        Bernoulli().given(torch.randn(5, 2))
    with pytest.raises(ValueError, match="link is"):
        Bernoulli("cauchit")


def test_every_conditional_says_how_it_integrates():
    for make, _, _ in CASES.values():
        with module_local_parameters():
            text = make().conditional().integration
        assert any(word in text for word in ("closed form", "Gauss-Hermite", "Monte Carlo"))


def test_shapes_are_checked_in_every_way_of_writing_a_model():
    x, y = regression(6)
    model = TwoSites()
    for bad in (y[:, None], y[:1]):
        with pytest.raises(ValueError, match="y has shape"):
            pyro.poutine.trace(model).get_trace(x, bad).log_prob_sum()
    with pytest.raises(ValueError, match=r"function values of 'gp' have shape \(..., 6, 1\), got \(6,\)"):
        model.gp(x).log_prob(y)


def test_dimensions_and_outputs_must_fit():
    from pyro_dgp import RBF, GaussianProcess

    with pytest.raises(ValueError, match="ard=3 got inputs of 1 dimensions"):
        GaussianProcess(RBF(3))(torch.randn(4, 1)).rsample()
    with pytest.raises(ValueError, match="outputs=3 and the Gaussian process num_outputs=1"):
        GaussianProcess(RBF(outputs=3))
    with pytest.raises(ValueError, match="stands over a Gaussian process of 1 outputs"):
        OneLayer(likelihood=Gaussian(3))(torch.randn(4, 1))


def test_binary_targets_are_zero_or_one():
    from pyro_dgp import ELBO, InducingPoints, MonteCarlo, Variational

    x, y = regression(6)
    model = OneLayer(likelihood=Bernoulli())
    guide = Variational(model, InducingPoints(3), MonteCarlo(1))
    guide.initialize(x, (y > 0).double())
    with pytest.raises(ValueError, match="other than 0 and 1"):
        ELBO().loss(model, guide, x, y.sign())


@pytest.mark.parametrize("name", sorted(CASES.keys() - WITHOUT_GAMMA_SCORE))
@pytest.mark.parametrize("gamma", [1.03, 1.5])
def test_gamma_scores_against_adaptive_quadrature(name, gamma):
    make, density, targets = CASES[name]
    conditional = make().requires_grad_(False).conditional()
    mean, variance = 0.3, 0.5
    q = norm(mean, math.sqrt(variance))
    moments = Moments(torch.tensor([[mean]]), torch.tensor([[variance]]))

    is_noise = name in ("Gaussian", "StudentT")
    of_noise = quad(lambda y: density(y, 0.0) ** gamma, -90, 90, points=[0], limit=400)[0] if is_noise else None

    def integral(f):
        if is_noise:
            return of_noise  # wherever f is
        return sum(density(y, f) ** gamma for y in targets)

    for y in targets:
        expected = quad(
            lambda f, y=y: q.pdf(f) * density(y, f) ** (gamma - 1) / integral(f) ** ((gamma - 1) / gamma),
            q.ppf(1e-12), q.ppf(1 - 1e-12), epsabs=1e-10, limit=200,
        )[0]  # fmt: skip
        value = conditional.log_expected_gamma_score(torch.tensor([y]), moments, gamma)
        assert float(value) == pytest.approx(math.log(expected), abs=1e-7)


def coregionalized(outputs=3, latents=2):
    likelihood = LinearCoregionalization(outputs, latents)
    with torch.no_grad():
        likelihood.bias = torch.randn(outputs)
        likelihood.variance = 0.1 + torch.rand(outputs)
    return likelihood


def test_coregionalization_against_dense_normals():
    likelihood = coregionalized().requires_grad_(False)
    conditional = likelihood.conditional()
    mixing, noise = likelihood.mixing, torch.diag(likelihood.variance)
    moments = Moments(torch.randn(4, 2), torch.rand(4, 2))
    y = torch.randn(4, 3)
    mean = moments.mean @ mixing.T + likelihood.bias
    for n in range(4):
        covariance = mixing @ torch.diag(moments.variance[n]) @ mixing.T + noise
        predictive = dist.MultivariateNormal(mean[n], covariance)
        torch.testing.assert_close(conditional.predictive_log_prob(y, moments)[n], predictive.log_prob(y[n]))
        plain = dist.MultivariateNormal(mean[n], noise).log_prob(y[n])
        penalty = 0.5 * torch.trace(torch.linalg.solve(noise, covariance - noise))
        torch.testing.assert_close(conditional.expected_log_prob(y, moments)[n], plain - penalty)
        torch.testing.assert_close(conditional.components(moments).covariance_matrix[n], covariance)


def test_gamma_score_of_coregionalization_against_draws_and_of_one_function_against_the_gaussian():
    likelihood = coregionalized().requires_grad_(False)
    conditional = likelihood.conditional()
    moments, y, gamma = Moments(torch.randn(4, 2), torch.rand(4, 2)), torch.randn(4, 3), 1.2
    f = moments.mean + moments.variance.sqrt() * torch.randn(400_000, 4, 2)
    score = likelihoods.log_gamma_score(conditional.given(f).base_dist, y, gamma).sum(-1).exp()
    expected, error = score.mean(0), score.std(0) / len(f) ** 0.5
    value = conditional.log_expected_gamma_score(y, moments, gamma).exp()
    assert bool(((value - expected).abs() < 4 * error).all())


def test_the_joint_density_of_coregionalized_outputs_is_the_dense_normal(local):
    x, y = torch.randn(5, 1), torch.randn(5, 3)
    model = OneLayer(kernel=RBF(outputs=2), likelihood=coregionalized(), outputs=2)
    observation = pyro.poutine.trace(model).get_trace(x, y).nodes["y"]["fn"]
    prior, c = observation.priors["f"], observation.conditional
    covariance = torch.zeros(5, 3, 5, 3)
    for latent in range(2):
        column = c.mixing[:, latent]
        covariance += torch.einsum("nm,d,e->ndme", prior.covariance_matrix[latent], column, column)
    covariance = covariance.reshape(15, 15) + torch.diag(c.variance.repeat(5))
    expected = dist.MultivariateNormal(c.bias.repeat(5), covariance).log_prob(y.reshape(-1))
    torch.testing.assert_close(observation.log_prob(y), expected)


@pytest.mark.slow
def test_coregionalization_under_guides_losses_and_nuts(local):
    x = torch.rand(25, 1) * 4 - 2
    latent = torch.stack([torch.sin(2 * x[:, 0]), torch.cos(3 * x[:, 0])], -1)
    y = latent @ torch.randn(2, 4) + 0.1 * torch.randn(25, 4)
    model = OneLayer(likelihood=LinearCoregionalization.fit(y, 2), outputs=2)
    guide = Variational(model, InducingPoints(25), MonteCarlo(1))
    guide.initialize(x, y)
    for loss in (ELBO, PredictiveLogLikelihood, GammaDivergence):
        losses = fit(loss(25)(model, guide), x, y, steps=150, batch_size=25).losses
        assert losses[-1] < losses[0] - 0.2, loss
    fit(ELBO(25)(model, guide), x, y, steps=100, batch_size=25)
    with torch.no_grad():
        log_z = float(pyro.poutine.trace(model).get_trace(x, y).nodes["y"]["fn"].log_prob(y))
        bound = -float(ELBO(25)(model, guide)(x, y))
    assert log_z - 5 < bound <= log_z + 1e-6
    prediction = predict(guide, x)
    assert prediction.batch_shape == (25,) and prediction.event_shape == (4,)
    correlation = torch.corrcoef(prediction.sample((4000,))[:, 3].T)
    mixture = prediction._mixture(0).components
    expected = mixture.covariance_matrix[0, 3] / mixture.stddev[0, 3].outer(mixture.stddev[0, 3])
    torch.testing.assert_close(correlation, expected, rtol=0, atol=0.1)
    torch.testing.assert_close(
        prediction.crps(y), dist_crps(mixture.mean[0], mixture.stddev[0], y), rtol=1e-6, atol=1e-8
    )
    kernel = NUTS(whitened(model), max_tree_depth=4)
    mcmc = MCMC(kernel, num_samples=80, warmup_steps=60, disable_progbar=True)
    mcmc.run(x, y)
    sampled = predict(PosteriorDraws(model, mcmc.get_samples(), (x, y)), x)
    assert float((sampled.mean - prediction.mean).abs().max()) < 0.1
    assert sampled.log_prob(y).shape == (25,)


def dist_crps(mean, scale, y):
    z = (y - mean) / scale
    normal = torch.distributions.Normal(0.0, 1.0)
    return scale * (z * (2 * normal.cdf(z) - 1) + 2 * normal.log_prob(z).exp() - 1 / math.sqrt(math.pi))


def test_coregionalization_says_what_does_not_fit():
    with pytest.raises(ValueError, match="make them equal"):
        OneLayer(likelihood=LinearCoregionalization(3, 2), outputs=3)(torch.randn(4, 1))
    with pytest.raises(ValueError, match="2 or more outputs"):
        LinearCoregionalization(1, 1)
    with pytest.raises(ValueError, match="latent functions need"):
        LinearCoregionalization.fit(torch.randn(9, 3), 4)


def test_coregionalization_is_accurate_in_float32_at_the_noise_floor():
    torch.manual_seed(1)
    mixing, variance = 30 * torch.randn(5, 2), torch.full((5,), 1e-4)
    moments, y = Moments(torch.randn(20, 2), torch.rand(20, 2)), None
    values = []
    for dtype in (torch.float64, torch.float32):
        conditional = CoregionalizedConditional(mixing.to(dtype), torch.zeros(5, dtype=dtype), variance.to(dtype))
        f = Moments(moments.mean.to(dtype), moments.variance.to(dtype))
        y = (moments.mean @ mixing.T + 0.01 * torch.ones(5)) if y is None else y
        values.append(conditional.predictive_log_prob(y.to(dtype), f).double())
    assert bool(torch.isfinite(values[1]).all())
    torch.testing.assert_close(values[1], values[0], rtol=0.05, atol=0.5)


@pytest.mark.parametrize("kind", ["gaussian", "coregionalized"])
def test_a_batch_of_hyperparameters_of_as_many_as_the_rows_is_no_broadcast_over_rows(kind):
    rows, f = 6, torch.randn(6, 6, 2)
    y = torch.randn(6, 3 if kind == "coregionalized" else 2)
    variance = torch.rand(rows, y.shape[-1]) + 0.1

    def conditional(v, bias):
        if kind == "gaussian":
            return GaussianConditional(v)
        return CoregionalizedConditional(torch.eye(3, 2), bias, v)

    bias = torch.randn(rows, 3)
    moments = Moments(f, torch.rand(6, 6, 2))
    together = conditional(variance, bias)
    for k in range(rows):
        alone, part = conditional(variance[k], bias[k]), Moments(moments.mean[k], moments.variance[k])
        for call in ("expected_log_prob", "predictive_log_prob"):
            torch.testing.assert_close(getattr(together, call)(y, moments)[k], getattr(alone, call)(y, part))
        torch.testing.assert_close(
            together.log_expected_gamma_score(y, moments, 1.2)[k], alone.log_expected_gamma_score(y, part, 1.2)
        )
        torch.testing.assert_close(together.given(f).base_dist.log_prob(y)[k], alone.given(f[k]).base_dist.log_prob(y))


@pytest.mark.parametrize(
    ("make", "name", "shape"),
    [
        (lambda: Gaussian(2), "variance", (2,)),
        (lambda: LinearCoregionalization(3, 2), "mixing", (3, 2)),
        (lambda: LinearCoregionalization(3, 2), "bias", (3,)),
        (lambda: LinearCoregionalization(3, 2), "variance", (3,)),
    ],
)
def test_a_prior_of_the_wrong_shape_says_which_is_wanted(make, name, shape):
    for wrong in ((), (5,)):
        likelihood = make()
        setattr(likelihood, name, PyroSample(dist.LogNormal(0.0, 1.0).expand(wrong).to_event(len(wrong))))
        with pytest.raises(ValueError) as error:
            likelihood.conditional()
        assert f".{name} has shape {wrong} where {shape} is wanted: write a prior as PyroSample(" in str(error.value)
    setattr(likelihood, name, PyroSample(dist.LogNormal(0.0, 1.0).expand(shape).to_event(len(shape))))
    assert likelihood.conditional() is not None


@pytest.mark.parametrize("cutpoints", [[1.0, -1.0, 0.0], [[-1.0, 0.0, 1.0], [-1.0, 1.0, 0.9]]])
def test_cutpoints_that_do_not_increase_are_refused(cutpoints):
    """The values of a prior may have leading axes, of draws."""
    likelihood, f = Ordinal(4), torch.zeros(2, 3, 1)
    likelihood.cutpoints = PyroSample(dist.Delta(torch.tensor(cutpoints), event_dim=1))
    with pytest.raises(ValueError, match=r"Ordinal.cutpoints do not increase: .* dist.transforms.OrderedTransform"):
        likelihood.given(f[0])
    with reports() as failures:
        likelihood.conditional()
    assert sum(int(count) for count in failures) > 0


@pytest.mark.usefixtures("local")
def test_a_prior_of_ordered_vectors_for_cutpoints():
    normal = dist.Normal(0.0, 2.0).expand([2]).to_event(1)
    ordered = dist.TransformedDistribution(normal, [dist.transforms.OrderedTransform()])
    x, y = torch.linspace(-1, 1, 12)[:, None], torch.arange(12.0) // 4
    for prior, message in ((ordered, None), (normal, "do not increase")):
        torch.manual_seed(1)
        likelihood = Ordinal(3)
        likelihood.cutpoints = PyroSample(prior)
        guide = Variational(OneLayer(likelihood=likelihood), InducingPoints(5), MonteCarlo(2))

        def run(guide=guide):
            guide.initialize(x, y)
            fit(ELBO(12)(guide.model, guide), x, y, steps=20)
            return predict(guide, x, num_samples=50, num_hyperparameter_draws=50).probs

        if message is None:
            torch.testing.assert_close(run().sum(-1), torch.ones(12))
        else:
            with pytest.raises(ValueError, match=message):
                run()
