"""Gaussian noise that is a function of its own."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro.nn import PyroModule
from scipy import stats

from pyro_dgp import (
    ELBO,
    RBF,
    GammaDivergence,
    Gaussian,
    GaussianProcess,
    HeteroscedasticGaussian,
    InducingPoints,
    LinearMean,
    Matern52,
    MonteCarlo,
    PredictiveLogLikelihood,
    SigmaPoints,
    Standardizer,
    Variational,
    coverage,
    fit,
    predict,
)
from pyro_dgp.internal.recording import reports
from pyro_dgp.likelihoods.gamma_score import log_expected_normal_power
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.units import Units


class Noisy(PyroModule):
    def __init__(self, outputs=1, units=None):
        super().__init__()
        self.gp, self.noise = GaussianProcess(RBF(), num_outputs=outputs), GaussianProcess(RBF(), num_outputs=outputs)
        likelihood = HeteroscedasticGaussian(outputs)
        self.likelihood = likelihood if units is None else units.likelihood(likelihood)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x), self.noise(x)), obs=y)


def test_integrals_against_quadrature_in_two_dimensions():
    conditional = HeteroscedasticGaussian(variance=0.2).requires_grad_(False).conditional()
    means, variances, y = (0.3, -0.4), (0.5, 0.8), 1.1
    grids = [np.linspace(-8, 8, points) for points in (4001, 301)]  # the trapezoidal rule
    weights = np.outer(*(stats.norm.pdf(z) * (z[1] - z[0]) for z in grids))
    f, g = (m + math.sqrt(v) * z for m, v, z in zip(means, variances, grids, strict=True))
    moments = Moments(torch.tensor([means]), torch.tensor([variances]))

    def mean_of(term):
        return float((weights * term(stats.norm(f[:, None], np.sqrt(0.2 * np.exp(g[None, :]))))).sum())

    target = torch.tensor([y])
    assert float(conditional.expected_log_prob(target, moments)) == pytest.approx(
        mean_of(lambda p: p.logpdf(y)), abs=1e-7
    )
    predictive = math.log(mean_of(lambda p: p.pdf(y)))
    assert float(conditional.predictive_log_prob(target, moments)) == pytest.approx(predictive, abs=1e-7)
    assert float(conditional.components(moments).log_prob(target)) == pytest.approx(predictive, abs=1e-7)
    power = math.log(mean_of(lambda p: p.pdf(y) ** 0.4))
    assert float(conditional.log_expected_power(target, moments, 0.4)) == pytest.approx(power, abs=1e-7)

    def score(p):
        return p.pdf(y) ** 0.2 / (1.2**-0.5 * (2 * math.pi * p.var()) ** -0.1) ** (0.2 / 1.2)

    gamma = math.log(mean_of(score))
    assert float(conditional.log_expected_gamma_score(target, moments, 1.2)) == pytest.approx(gamma, abs=1e-7)


def dense(y, f, power, *, reach):
    """``log E N(y | f, 0.1 exp(g))^power`` by the trapezoidal rule over z, ``g = m + s z``."""
    z = torch.linspace(-10.0, reach, 200_001)
    noise = 0.1 * (f.mean[0, 1] + f.variance[0, 1].sqrt() * z).exp()
    log_terms = log_expected_normal_power(y - f.mean[0, 0], f.variance[0, 0], noise, power)
    return torch.logsumexp(log_terms - 0.5 * z.square() + math.log(float(z[1] - z[0]) / math.sqrt(2 * math.pi)), 0)


@pytest.mark.parametrize("deviation", [3.0, 20.0, 30.0, 1000.0])
@pytest.mark.parametrize("spread", [0.01, 0.2, 0.7, 1.5])
@pytest.mark.parametrize("variance", [1e-4, 0.5])
@torch.no_grad()
def test_outliers_have_their_density(deviation, spread, variance):
    """The integrand's mode is then many standard deviations of the log noise above its mean."""
    conditional = HeteroscedasticGaussian(variance=0.1).conditional()
    f = Moments(torch.tensor([[0.3, -0.4]]), torch.tensor([[variance, spread**2]]))
    y = torch.tensor([0.3 + deviation * math.sqrt(0.1)])
    for power in (1.0, 0.4):
        exact = float(dense(y, f, power, reach=20 + 8 / spread))
        assert float(conditional.log_expected_power(y, f, power)) == pytest.approx(exact, rel=1e-7, abs=5e-5)
    exact = float(dense(y, f, 1.0, reach=20 + 8 / spread))
    components = conditional.components(f)
    units = Units(torch.tensor(5.0), torch.tensor(10.0))
    assert float(components.log_prob(y)) == pytest.approx(exact, rel=1e-7, abs=5e-5)
    log_prob = float(units.image(components).log_prob(5 + 10 * y))
    assert log_prob == pytest.approx(exact - math.log(10), rel=1e-7, abs=5e-5)


def test_outliers_have_their_gradients():
    conditional = HeteroscedasticGaussian(2, variance=0.1).conditional()
    y, mean = torch.tensor([[0.2, 9.0], [-6.0, 40.0]]), torch.randn(2, 4, requires_grad=True)
    variance = torch.tensor([[0.1, 0.2, 0.04, 0.5], [1e-3, 0.1, 0.3, 2.0]], requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda m, v: conditional.log_expected_power(y, Moments(m, v), 0.7), (mean, variance), atol=1e-4
    )
    assert torch.autograd.gradcheck(
        lambda m, v: conditional.log_expected_gamma_score(y, Moments(m, v), 1.2), (mean, variance), atol=1e-4
    )


@pytest.mark.parametrize(("deviation", "is_served"), [(4.0, True), (3000.0, False)])
def test_a_recorded_function_reports_outliers_that_its_nodes_do_not_serve(deviation, is_served):
    conditional = HeteroscedasticGaussian(variance=0.1).conditional()
    f = Moments(torch.zeros(3, 2), torch.full((3, 2), 0.04))
    with reports() as failures:
        found = conditional.predictive_log_prob(torch.full((3,), deviation * math.sqrt(0.1)), f)
    assert (sum(int(count) for count in failures) == 0) == is_served
    if is_served:
        again = conditional.predictive_log_prob(torch.full((3,), deviation * math.sqrt(0.1)), f)
        torch.testing.assert_close(found, again, rtol=0, atol=1e-5)


@pytest.mark.parametrize("spread", [0.5, 16.0, 50.0])
def test_the_variance_of_a_prediction_is_that_of_the_log_normal_noise(spread):
    """``v + variance exp(m_g + v_g / 2)``, to which nodes far out contribute the most where v_g is large."""
    conditional = HeteroscedasticGaussian(2, variance=0.1).requires_grad_(False).conditional()
    f = Moments(torch.tensor([[0.3, -0.4, 0.2, -1.0]]), torch.tensor([[0.01, 0.5, spread, 0.2]]))
    wanted = torch.tensor([[0.01 + 0.1 * math.exp(0.2 + spread / 2), 0.5 + 0.1 * math.exp(-1.0 + 0.1)]])
    torch.testing.assert_close(conditional.components(f).variance, wanted)
    one = HeteroscedasticGaussian(variance=0.1).requires_grad_(False).conditional()
    torch.testing.assert_close(one.components(Moments(f.mean[:, [0, 2]], f.variance[:, [0, 2]])).variance, wanted[:, 0])


def test_without_a_noise_function_it_is_gaussian():
    f = Moments(torch.randn(5, 2), torch.rand(5, 2))
    both = Moments(torch.cat([f.mean, torch.zeros(5, 2)], -1), torch.cat([f.variance, torch.zeros(5, 2)], -1))
    y = torch.randn(5, 2)
    plain, noisy = Gaussian(2, 0.3).conditional(), HeteroscedasticGaussian(2, 0.3).conditional()
    for call in ("expected_log_prob", "predictive_log_prob"):
        torch.testing.assert_close(getattr(noisy, call)(y, both), getattr(plain, call)(y, f))
    torch.testing.assert_close(noisy.log_expected_gamma_score(y, both, 1.1), plain.log_expected_gamma_score(y, f, 1.1))
    assert torch.autograd.gradcheck(
        lambda m, v: noisy.predictive_log_prob(y, Moments(m, v + 0.1)),
        (both.mean.clone().requires_grad_(), torch.rand(5, 4, requires_grad=True)),
    )


def noisy_data(rows=300):
    x = torch.linspace(-2, 2, rows)[:, None]
    sd = 0.05 + 0.5 * torch.sigmoid(4 * x[:, 0])
    return x, torch.sin(2 * x[:, 0]) + sd * torch.randn(rows), sd


@pytest.mark.slow
@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("loss", [ELBO, PredictiveLogLikelihood, GammaDivergence])
def test_noise_that_grows_is_learned(loss):
    x, y, sd = noisy_data()
    guide = Variational(Noisy(), InducingPoints(12), MonteCarlo(1))
    guide.initialize(x, y)
    assert set(guide.processes._modules) == {"y/f", "y/log_noise"}
    fit(loss(300)(guide.model, guide), x, y, steps=500, learning_rate=0.02)
    prediction = predict(guide, x)
    ratio = prediction.variance.sqrt() / sd
    assert 0.7 < float(ratio[:80].median()) < 1.8 and 0.7 < float(ratio[-80:].median()) < 1.4  # of 0.05 and 0.55
    assert abs(float(coverage(prediction, y, [0.8])) - 0.8) < 0.09
    assert predict(guide, x, site="y/log_noise").mean.shape == (300,)
    levels = prediction.quantile([0.1, 0.9])
    assert 0.7 < float(((y > levels[0]) & (y < levels[1])).double().mean()) < 0.9


@pytest.mark.usefixtures("local")
def test_units_and_several_outputs():
    x, y, _ = noisy_data(80)
    y = torch.stack([100 + 20 * y, -5 + 0.1 * y], -1)
    guide = Variational(Noisy(2, Standardizer.fit(x, y)), InducingPoints(8), MonteCarlo(1))
    guide.initialize(x, y)
    fit(ELBO(80)(guide.model, guide), x, y, steps=150, learning_rate=0.05)
    prediction = predict(guide, x)
    assert prediction.event_shape == (2,)
    assert 70 < float(prediction.mean[:, 0].mean()) < 130 and -5.3 < float(prediction.mean[:, 1].mean()) < -4.7
    torch.testing.assert_close(
        prediction.log_prob(y),
        torch.logsumexp(prediction.component_log_prob(y), 0) - math.log(len(prediction.component_log_prob(y))),
    )


def test_what_does_not_fit_is_said():
    x = torch.randn(5, 1)
    gp, two = GaussianProcess(RBF()), GaussianProcess(RBF(), num_outputs=2)
    likelihood = HeteroscedasticGaussian()
    assert likelihood(two(x)).event_shape == (5,)  # one process of two outputs
    with pytest.raises(
        ValueError,
        match=r"takes 2 functions, half of them for the noise, and got 1: .* likelihood\(gp\(x\), noise_gp\(x\)\)",
    ):
        likelihood(gp(x))
    with pytest.raises(
        ValueError, match=r"whose values have shapes \(5, 1\) and \(5, 2\): give them the same rows and as many outputs"
    ):
        likelihood(gp(x), two(x))
    with pytest.raises(
        TypeError, match="is called on 1 and 2 Gaussian processes, not 3: the functions are f, log_noise"
    ):
        likelihood(gp(x), gp(x), gp(x))
    with pytest.raises(TypeError, match="is called on 1 Gaussian processes, not 2"):
        Gaussian()(gp(x), gp(x))
    with pytest.raises(TypeError, match="Gaussian takes no values of rows, and got exposure"):
        Gaussian()(gp(x), exposure=torch.ones(5))


class NoiseOfTheInputs(PyroModule):
    """A function above a hidden layer, and a noise function above the inputs or above as many copies of them as the layer has components."""

    def __init__(self, x, *, copies):
        super().__init__()
        self.copies = copies
        self.hidden = GaussianProcess(Matern52(ard=1), LinearMean.fit(x, 1), 1)
        self.top, self.noise = GaussianProcess(RBF(ard=1)), GaussianProcess(RBF(ard=1))
        self.likelihood = HeteroscedasticGaussian()

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        below = x.expand(*h.shape[:-2], *x.shape[-2:]) if self.copies else x
        return pyro.sample("y", self.likelihood(self.top(h), self.noise(below)), obs=y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("propagation", [MonteCarlo(5), SigmaPoints("qr3", 4)])
@pytest.mark.parametrize("loss", [ELBO(12), PredictiveLogLikelihood(12, 0.1)])
def test_a_noise_function_above_the_inputs_is_that_of_every_component(propagation, loss):
    found = []
    for copies in (True, False):
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 12)[:, None]
        y = torch.sin(3 * x[:, 0])
        guide = Variational(NoiseOfTheInputs(x, copies=copies), InducingPoints(6), propagation)
        guide.initialize(x, y)
        with torch.no_grad():
            for parameter in guide.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
        objective = loss(guide.model, guide)
        torch.manual_seed(1)
        value = objective(x, y)
        value.backward()
        found.append(
            (value.detach(), [p.grad for p in guide.processes.parameters()], predict(guide, x, 50).log_prob(y))
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
