import inspect
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from scipy.integrate import quad
from scipy.stats import norm

from pyro_dgp import Bernoulli, Gaussian, likelihoods, module_local_parameters
from pyro_dgp.likelihoods import Likelihood
from pyro_dgp.moments import Moments
from tests.examples import OneLayer, TwoSites, regression

CASES = {
    "Gaussian": (lambda: Gaussian(variance=0.3), lambda y, f: norm(f, math.sqrt(0.3)).pdf(y), [-0.4, 1.3]),
    "Bernoulli probit": (Bernoulli, lambda y, f: norm.cdf(f if y else -f), [0.0, 1.0]),
    "Bernoulli logit": (lambda: Bernoulli("logit"), lambda y, f: 1 / (1 + math.exp(-f if y else f)), [0.0, 1.0]),
}


def test_every_likelihood_of_the_package_is_in_this_table():
    classes = {n for n, c in vars(likelihoods).items() if inspect.isclass(c) and issubclass(c, Likelihood)}
    assert classes - {"Likelihood"} == {name.split()[0] for name in CASES}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("mean", "variance"), [(0.3, 0.5), (-2.0, 0.01), (1.5, 4.0)])
def test_integrals_against_adaptive_quadrature(name, mean, variance):
    make, density, targets = CASES[name]
    conditional = make().requires_grad_(False).conditional()
    moments = Moments(torch.tensor([[mean]]), torch.tensor([[variance]]))
    q = norm(mean, math.sqrt(variance))
    low, high = q.ppf(1e-13), q.ppf(1 - 1e-13)
    for y in targets:
        expected = quad(lambda f, y=y: q.pdf(f) * math.log(density(y, f)), low, high, epsabs=1e-12, limit=200)[0]
        predictive = quad(lambda f, y=y: q.pdf(f) * density(y, f), low, high, epsabs=1e-13, limit=200)[0]
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
    mean, raw = torch.randn(2, 1, requires_grad=True), torch.rand(2, 1, requires_grad=True)

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
