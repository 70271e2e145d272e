"""Likelihoods of counts, and heavy tails, where N(f) is wide and densities are narrow."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule
from scipy import stats
from scipy.integrate import quad

from pyro_dgp import (
    ELBO,
    RBF,
    DeepGP,
    GaussianProcess,
    InducingPoints,
    Mixture,
    MonteCarlo,
    NegativeBinomial,
    Poisson,
    PredictiveLogLikelihood,
    StudentT,
    Variational,
    fit,
    predict,
)
from pyro_dgp.likelihoods.moments import Moments

LOG_PMF = {
    "Poisson": lambda y, mean: stats.poisson.logpmf(y, mean),
    "NegativeBinomial": lambda y, mean: stats.nbinom.logpmf(y, 20.0, 1 / (1 + 0.05 * mean)),
}


def made(name, exposure=None, dtype=torch.float64):
    likelihood = Poisson() if name == "Poisson" else NegativeBinomial(0.05)
    return likelihood.to(dtype).requires_grad_(False).conditional(exposure)


def one(mean, variance):
    return Moments(torch.tensor([[mean]]), torch.tensor([[variance]]))


@pytest.mark.parametrize("name", LOG_PMF)
@pytest.mark.parametrize(
    ("mean", "variance", "y"), [(6.9, 0.5, 1000.0), (6.9, 0.5, 300.0), (2.0, 4.0, 0.0), (9.0, 1.0, 9000.0)]
)
@pytest.mark.parametrize("power", [1.0, 0.3])
def test_large_counts_have_the_right_predictive_density(name, mean, variance, y, power):
    q = stats.norm(mean, math.sqrt(variance))
    peak = math.log(y) if y else mean - 3
    low, high = mean - 12 * math.sqrt(variance), mean + 12 * math.sqrt(variance)
    shift = LOG_PMF[name](y, math.exp(peak)) * power
    points = [peak + 0.02 * k for k in range(-12, 13)]
    integral = quad(
        lambda f: math.exp(q.logpdf(f) + power * LOG_PMF[name](y, math.exp(f)) - shift), low, high,
        points=[p for p in points if low < p < high], limit=800, epsabs=1e-14,
    )[0]  # fmt: skip
    value = made(name).log_expected_power(torch.tensor([y]), one(mean, variance), power)
    assert float(value) == pytest.approx(math.log(integral) + shift, abs=5e-5)


@pytest.mark.parametrize("name", LOG_PMF)
def test_predictions_of_large_counts_have_no_lumps(name):
    f = one(5.0, 0.25)
    y = torch.arange(0.0, 1500.0)
    log_prob = made(name).components(f).log_prob(y[:, None])[:, 0]
    exact = made(name).log_expected_power(y[:, None].squeeze(-1)[:, None], f, 1.0)[:, 0]
    body = log_prob > -14
    assert int(body.sum()) > 400
    torch.testing.assert_close(log_prob[body], exact[body], rtol=0, atol=1e-5)


def test_exposure_multiplies_the_mean():
    exposure, f = torch.tensor([0.5, 3.0]), torch.tensor([[0.2], [1.0]])
    torch.testing.assert_close(made("Poisson", exposure).given(f).mean, exposure * f[:, 0].exp())
    counts = made("NegativeBinomial", exposure).given(f)
    torch.testing.assert_close(counts.mean, exposure * f[:, 0].exp())
    torch.testing.assert_close(counts.variance, counts.mean + 0.05 * counts.mean**2)
    for name in LOG_PMF:
        moved = Moments(f + exposure.log()[:, None], torch.full((2, 1), 0.3))
        y, own = torch.tensor([1.0, 12.0]), Moments(f, torch.full((2, 1), 0.3))
        for call in ("expected_log_prob", "predictive_log_prob"):
            with_exposure = getattr(made(name, exposure), call)(y, own)
            torch.testing.assert_close(with_exposure, getattr(made(name), call)(y, moved))


class Counts(PyroModule):
    def __init__(self, likelihood):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), likelihood

    def forward(self, x, y=None, exposure=None):
        values = {} if exposure is None else {"exposure": exposure}
        return pyro.sample("y", self.likelihood(self.gp(x), **values), obs=y)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("make", [Poisson, NegativeBinomial])
@pytest.mark.parametrize("loss", [ELBO, PredictiveLogLikelihood])
def test_rates_are_learned_with_exposure(make, loss):
    x = torch.linspace(-2, 2, 120)[:, None]
    exposure = 0.5 + 4 * torch.rand(120)
    rate = torch.exp(1 + torch.sin(2 * x[:, 0]))
    y = dist.Poisson(exposure * rate).sample().long()
    guide = Variational(Counts(make()), InducingPoints(12), MonteCarlo(1))
    guide.initialize(x, y, exposure=exposure)
    fit(loss(120)(guide.model, guide), x, y, steps=200, learning_rate=0.05, exposure=exposure)
    prediction = predict(guide, x, exposure=torch.ones(120))
    assert float((prediction.mean / rate - 1).abs().mean()) < 0.12
    doubled = predict(guide, x, exposure=torch.full((120,), 2.0))
    torch.testing.assert_close(doubled.mean, 2 * prediction.mean, rtol=1e-3, atol=1e-3)
    each = [prediction.log_prob(torch.full((120,), float(count))).exp() for count in range(4)]
    torch.testing.assert_close(prediction.cdf(torch.full((120,), 3.0)), torch.stack(each).sum(0))


@pytest.mark.usefixtures("local")
def test_quantiles_and_crps_against_enumeration():
    x = torch.linspace(-1, 1, 8)[:, None]
    y = torch.tensor([0.0, 1.0, 2.0, 0.0, 3.0, 5.0, 9.0, 4.0])
    guide = Variational(Counts(Poisson()), InducingPoints(4), MonteCarlo(1))
    guide.initialize(x, y)
    prediction = predict(guide, x)
    values = torch.arange(0.0, 400.0)
    pmf = torch.stack([prediction.log_prob(torch.full((8,), float(v))).exp() for v in values])
    cdf = pmf.cumsum(0)
    for level in (0.05, 0.5, 0.9):
        expected = torch.stack([values[(cdf[:, n] >= level).nonzero()[0, 0]] for n in range(8)])
        torch.testing.assert_close(prediction.quantile(level), expected)
    score = ((cdf - (values[:, None] >= y).double()) ** 2).sum(0)
    torch.testing.assert_close(prediction.crps(y), score, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(prediction.mean, (values[:, None] * pmf).sum(0), rtol=1e-4, atol=1e-4)
    draws = prediction.sample((4000,))
    assert float((draws.mean(0) - prediction.mean).abs().max()) < 0.2


@pytest.mark.parametrize("name", ["Poisson", "NegativeBinomial"])
@pytest.mark.parametrize("exposure", [3, 3.0, torch.tensor(3.0), np.full(2, 3.0), [3.0, 3.0], torch.tensor([3, 3])])
def test_exposure_may_be_a_number_a_list_or_an_array(name, exposure):
    f, right = torch.tensor([[0.2], [1.0]]), torch.full((2,), 3.0)
    torch.testing.assert_close(made(name, exposure).given(f).mean, made(name, right).given(f).mean)


@pytest.mark.parametrize("name", ["Poisson", "NegativeBinomial"])
@pytest.mark.parametrize("call", ["expected_log_prob", "predictive_log_prob", "given", "components"])
@pytest.mark.parametrize("variance", [1e-6, 0.1])
def test_large_counts_keep_their_digits_in_single_precision(name, call, variance):
    """A log density of -10 is the difference of numbers of 1e8 at counts of 1e7."""
    rate = torch.tensor([1e3, 1e5, 1e6, 1e7])
    f = Moments(rate.log().float()[:, None], torch.full((4, 1), variance).float())
    y = torch.tensor([1.02, 0.999, 1.001, 1.0003]) * rate // 1

    def log_density(dtype):
        moments, count = Moments(*(each.to(dtype) for each in f)), y.to(dtype)
        conditional = made(name, dtype=dtype)
        if call == "given":
            return conditional.given(moments.mean).base_dist.log_prob(count)
        if call == "components":
            return conditional.components(moments).log_prob(count)
        return getattr(conditional, call)(count, moments)

    single = log_density(torch.float32)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), log_density(torch.float64), rtol=1e-5, atol=2e-3)


@pytest.mark.usefixtures("local")
def test_what_counts_refuse():
    x = torch.randn(6, 1)
    model = Counts(Poisson())
    guide = Variational(model, InducingPoints(3), MonteCarlo(1))
    y = torch.ones(6)
    guide.initialize(x, y)
    loss = ELBO()(model, guide)
    for bad in (y - 2, y + 0.5):
        with pytest.raises(ValueError, match="holds values other than 0, 1, 2, ...: pass counts"):
            loss(x, bad)
    with pytest.raises(ValueError, match="exposure holds values that are not positive"):
        loss(x, y, exposure=torch.zeros(6))
    with pytest.raises(
        ValueError, match=r"exposure has shape \(4,\) and there are 6 rows: pass one number for each row, as a tensor"
    ):
        Poisson().given(torch.zeros(6, 1), exposure=torch.ones(4))
    with pytest.raises(TypeError, match="Poisson takes exposure, and got offset: leave it out"):
        Poisson()(model.gp(x), offset=y)
    with pytest.raises(ValueError, match="dispersion must be positive"):
        NegativeBinomial(0.0)
    with pytest.raises(ValueError, match="Poisson takes one function, got 2"):
        Poisson().given(torch.zeros(6, 2))


@pytest.mark.parametrize(("mean", "variance", "y"), [(0.0, 1.0, 0.5), (0.0, 1.0, 1e4), (0.0, 1e-6, 1.0)])
def test_student_noise_that_is_narrow_beside_f(mean, variance, y):
    likelihood = StudentT(2.5, 0.02).requires_grad_(False)
    q = stats.norm(mean, math.sqrt(variance))
    points = sorted({mean, y} | {y + d for d in (-0.05, 0.05)})
    low, high = q.ppf(1e-14), q.ppf(1 - 1e-14)
    inside = [p for p in points if low < p < high]
    f, target = one(mean, variance), torch.tensor([y])
    expected = quad(lambda f: q.pdf(f) * stats.t.logpdf(y, 2.5, f, 0.02), low, high, points=inside, limit=800)[0]
    predictive = quad(lambda f: q.pdf(f) * stats.t.pdf(y, 2.5, f, 0.02), low, high, points=inside, limit=800, epsabs=0)[
        0
    ]
    conditional = likelihood.conditional()
    assert float(conditional.expected_log_prob(target, f)) == pytest.approx(expected, abs=1e-7)
    assert float(conditional.predictive_log_prob(target, f)) == pytest.approx(math.log(predictive), abs=1e-6)


@pytest.mark.usefixtures("local")
def test_an_outlier_moves_student_noise_less():
    x = torch.linspace(-1, 1, 60)[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.05 * torch.randn(60)
    y[30] = 20.0
    errors = {}
    for name, likelihood in (("gaussian", None), ("student", StudentT())):
        arguments = {} if likelihood is None else {"likelihood": likelihood}
        model = DeepGP(x, layers=1, **arguments)
        guide = Variational(model, InducingPoints(15), MonteCarlo(1))
        guide.initialize(x, y)
        fit(ELBO(60)(model, guide), x, y, steps=300, learning_rate=0.05)
        prediction = predict(guide, x)
        errors[name] = float((prediction.quantile(0.5) - torch.sin(3 * x[:, 0])).abs().mean())
    assert errors["student"] < 0.1 < errors["gaussian"]
    assert np.isfinite(errors["student"])


@pytest.mark.parametrize("df", [2.1, 30.0, 100.0, 500.0, 1e5, 1e8])
@pytest.mark.parametrize("variance", [0.01, 1.0])
def test_students_integrals_hold_for_many_degrees_of_freedom(df, variance):
    conditional = StudentT(df, 0.3).requires_grad_(False).conditional()
    f, y = Moments(torch.tensor([[0.1]]), torch.tensor([[variance]])), torch.tensor([0.7])
    at = torch.linspace(-12, 12, 200_001)
    log_normal = -0.5 * at.square() - 0.5 * math.log(2 * math.pi)
    log_density = torch.distributions.StudentT(min(df, 1e5), 0.1 + variance**0.5 * at, 0.3).log_prob(y)
    for power in (0.5, 1.0):
        wanted = torch.logsumexp(power * log_density + log_normal, 0) + math.log(24 / 200_000)
        assert float(conditional.log_expected_power(y, f, power)) == pytest.approx(float(wanted), abs=1e-8)
    components = conditional.components(f)
    assert float(components.log_prob(y)) == pytest.approx(float(wanted), abs=1e-8)
    assert float(components.cdf(torch.tensor([50.0]))) == pytest.approx(1.0, abs=1e-3 if df < 3 else 1e-9)
    if df > 10:
        assert float(components.variance) == pytest.approx(variance + 0.09 * df / (df - 2), rel=1e-4)


@pytest.mark.parametrize("df", [30.0, 1e3, 3e4, 1e5])
def test_students_integrals_hold_in_single_precision(df):
    """Their weights summed to 0.995 at 30,000 degrees of freedom: the mean of 300 was 298.4, and a quantile infinite."""
    found = {}
    for dtype in (torch.float32, torch.float64):
        conditional = StudentT(df, 1.0).requires_grad_(False).to(dtype).conditional()
        f = Moments(torch.full((1, 1, 1), 300.0, dtype=dtype), torch.full((1, 1, 1), 0.25, dtype=dtype))
        y = torch.tensor([301.0], dtype=dtype)
        mixture = Mixture(conditional.components(f), torch.zeros(1, dtype=dtype))
        figures = [
            mixture.mean,
            mixture.cdf(y + 50),
            *mixture.quantile(torch.tensor([0.001, 0.5, 0.99, 0.999], dtype=dtype)),
            mixture.log_prob(y),
            mixture.crps(y),
            conditional.log_expected_power(y, f, 2.0),
            conditional.expected_log_prob(y, f),
            conditional.log_power_integral(f, 2.0),
            conditional.given(f.mean).log_prob(y),
        ]
        found[dtype] = torch.stack([figure.reshape(()) for figure in figures]).double()
    assert float(found[torch.float64][0]) == pytest.approx(300.0, abs=1e-9)
    torch.testing.assert_close(found[torch.float32], found[torch.float64], rtol=2e-6, atol=3e-5)
    likelihood = StudentT(df, 1.0).double().requires_grad_(False)
    density = torch.distributions.StudentT(df, 300.0, torch.tensor(1.0, dtype=torch.float64)).log_prob(y)
    torch.testing.assert_close(
        likelihood.given(f.mean).log_prob(y), density.sum(-1, keepdim=True), rtol=1e-9, atol=1e-9
    )


def test_counts_have_a_ranked_score_in_single_precision():
    rates = torch.linspace(0.5, 50.0, 40)
    values = torch.arange(40.0)
    found, wanted = (
        Mixture(dist.Poisson(rates.to(dtype)[None]), torch.zeros(1, dtype=dtype)).crps(values.to(dtype))
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)
