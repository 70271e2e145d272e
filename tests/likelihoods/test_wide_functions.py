"""Integrals over functions of large standard deviation, as deep models and rows far from the data have them, against dense quadrature."""

import math

import numpy as np
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroSample
from scipy import special

from pyro_dgp import (
    Bernoulli,
    HeteroscedasticGaussian,
    Mixture,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
)
from pyro_dgp.internal.quadrature import normal_nodes
from pyro_dgp.internal.recording import reports
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.units import Units

WIDE = [(0.0, 0.5), (0.0, 2.0), (2.0, 5.0), (-3.0, 8.0)]
CASES = [
    *[(Poisson(), y) for y in (0.0, 1.0, 40.0, 300.0)],
    *[(NegativeBinomial(dispersion), y) for dispersion in (0.1, 3.0) for y in (0.0, 7.0, 300.0)],
    *[(Bernoulli(link), y) for link in ("probit", "logit") for y in (0.0, 1.0)],
    *[(Ordinal(4), y) for y in (0.0, 2.0)],
]


def one(mean, scale):
    return Moments(torch.tensor([[mean]]), torch.tensor([[scale**2]]))


def dense(mean, scale, nodes=60_001):
    """Function values, and log weights, of the trapezoidal rule over twelve standard deviations."""
    z = torch.linspace(-12, 12, nodes)
    return (mean + scale * z).reshape(-1, 1, 1), torch.log_softmax(-0.5 * z.square(), 0)


@pytest.mark.parametrize(("mean", "scale"), WIDE)
@pytest.mark.parametrize(
    ("likelihood", "y"), CASES, ids=lambda value: str(getattr(value, "_get_name", lambda: value)())
)
@torch.no_grad()
def test_expected_and_predictive_log_densities_are_exact_at_any_width(likelihood, y, mean, scale):
    conditional, target = likelihood.conditional(), torch.tensor([y])
    at, log_weights = dense(mean, scale)
    log_prob = conditional.row_log_prob(target, at)[:, 0]
    f = one(mean, scale)
    exact = torch.logsumexp(log_weights + log_prob, 0)
    assert float(conditional.predictive_log_prob(target, f)) == pytest.approx(float(exact), abs=2e-5)
    assert float(conditional.components(f).log_prob(target)) == pytest.approx(float(exact), abs=2e-5)
    half = torch.logsumexp(log_weights + 0.5 * log_prob, 0)
    assert float(conditional.log_expected_power(target, f, 0.5)) == pytest.approx(float(half), abs=2e-5)
    if not isinstance(likelihood, Poisson):  # a closed form, whose integrand the rule does not reach
        expected = (log_weights.exp() * log_prob).sum()
        assert float(conditional.expected_log_prob(target, f)) == pytest.approx(float(expected), rel=1e-6, abs=2e-6)


def test_a_mode_far_from_both_the_count_and_the_function_is_found():
    conditional, target, f = Poisson().conditional(), torch.tensor([1000.0]), one(-30.0, 0.1)
    at, log_weights = dense(-20.0, 2.0, 200_001)
    log_normal = -0.5 * ((at[:, 0, 0] + 30) / 0.1).square() - math.log(0.1 * math.sqrt(2 * math.pi))
    log_prob = conditional.row_log_prob(target, at)[:, 0] + log_normal
    exact = torch.logsumexp(log_prob, 0) + math.log(4.0 / 200_000 * 12)
    assert float(conditional.predictive_log_prob(target, f)) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(0.5)])
@torch.no_grad()
def test_the_distribution_of_counts_of_a_wide_rate(likelihood):
    """Distribution function, quantile, score, moments and draws against the integral over the rate."""
    conditional = likelihood.conditional()
    components = conditional.components(Moments(torch.full((1, 1, 1), 0.5), torch.full((1, 1, 1), 4.0)))
    mixture = Mixture(components, torch.zeros(1))
    at, log_weights = dense(0.5, 2.0, 4001)
    counts = torch.arange(3000.0)
    log_probs = conditional.row_log_prob(counts, at.expand(-1, len(counts), 1))
    probs = torch.einsum("k,kc->c", log_weights.exp(), log_probs.exp())
    below = probs.cumsum(0)
    for y in (0.0, 3.0, 100.0):
        assert float(mixture.cdf(torch.tensor([y]))) == pytest.approx(float(below[int(y)]), abs=1e-7)
    levels = torch.tensor([0.05, 0.5, 0.9])
    expected = torch.stack([(below >= level).nonzero()[0, 0] for level in levels])
    assert mixture.quantile(levels)[:, 0].tolist() == expected.tolist()
    dispersion = getattr(likelihood, "dispersion", torch.zeros(()))
    mean = math.exp(0.5 + 2)
    assert float(mixture.mean) == pytest.approx(mean)
    squared = (1 + float(dispersion)) * math.exp(2 * 0.5 + 2 * 4)
    assert float(mixture.variance) == pytest.approx(mean + squared - mean**2)
    draws = mixture.sample(20_000)[:, 0]
    assert float((draws <= 3).double().mean()) == pytest.approx(float(below[3]), abs=0.015)


def test_predictions_of_counts_have_gradients_in_the_function_and_none_in_parameters():
    likelihood = NegativeBinomial(0.5)
    f = Moments(torch.zeros(2, 3, 1, requires_grad=True), torch.ones(2, 3, 1))
    components = likelihood.conditional().components(f)
    components.log_prob(torch.tensor([0.0, 3.0, 9.0])).sum().backward()
    assert f.mean.grad is not None and bool((f.mean.grad != 0).all())
    still = likelihood.conditional().components(Moments(f.mean.detach(), f.variance))
    assert not still.log_prob(torch.tensor([0.0, 3.0, 9.0])).requires_grad and not still.mean.requires_grad


@pytest.mark.parametrize("df", [2.01, 2.1, 4.0])
@torch.no_grad()
def test_the_variance_of_heavy_tails_is_that_of_all_of_them(df):
    components = StudentT(df=df, scale=0.3).conditional().components(one(1.0, 0.5))
    exact = 0.25 + 0.09 * df / (df - 2)
    assert float(components.variance) == pytest.approx(exact)
    assert float(components.expand([4, 1]).variance[2, 0]) == pytest.approx(exact)
    image = Units(torch.tensor(5.0), torch.tensor(10.0)).image(components)
    assert float(image.variance) == pytest.approx(100 * exact) and float(image.mean) == pytest.approx(15.0)
    assert float(Mixture(components.expand([1, 1]), torch.zeros(1)).variance) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("df", "mean", "variance"), [(2.0, 1.0, math.inf), (1.2, 1.0, math.inf), (1.0, math.nan, math.nan)]
)
def test_moments_that_heavy_tails_do_not_have(df, mean, variance):
    """As in torch.distributions.StudentT; at the left of two batches, with a noise that has both at its right."""
    likelihood = StudentT()
    value = torch.tensor([df, 4.0], requires_grad=True)
    likelihood.df = PyroSample(dist.Delta(value))
    f = Moments(torch.ones(2, 1, 1), torch.full((2, 1, 1), 0.25))
    components = likelihood.conditional().components(f)
    plain = likelihood.given(f.mean).base_dist
    units = Units(torch.tensor(5.0), torch.tensor(10.0))
    for each, factor, shift in ((components, 1.0, 0.0), (units.image(components), 10.0, 5.0)):
        assert each.mean[:, 0].tolist() == pytest.approx([shift + factor * mean, shift + factor], nan_ok=True)
        total = torch.tensor([variance, 0.25 + 0.09 * 2]) * factor**2
        torch.testing.assert_close(each.variance[:, 0], total, equal_nan=True)
        torch.testing.assert_close(each.expand([2, 3]).mean[:, 2], each.mean[:, 0], equal_nan=True)
    torch.testing.assert_close(plain.mean, components.mean, equal_nan=True)
    torch.testing.assert_close(plain.variance.isinf(), components.variance.isinf())
    torch.testing.assert_close(plain.variance.isnan(), components.variance.isnan())
    mixture = Mixture(components, torch.tensor([0.5, 0.5]).log())
    torch.testing.assert_close(mixture.variance, torch.tensor([variance]), equal_nan=True)
    torch.testing.assert_close(mixture.quantile(torch.tensor([0.5])), torch.ones(1, 1))
    components.variance[1].sum().backward()
    assert bool(value.grad.isfinite().all())


@torch.no_grad()
def test_a_wide_noise_function_is_integrated():
    """Noise whose logarithm has a standard deviation of 4."""
    conditional = HeteroscedasticGaussian(variance=0.1).conditional()
    f = Moments(torch.tensor([[0.3, -1.0]]), torch.tensor([[0.2, 16.0]]))
    z, log_weights = dense(0.0, 1.0)
    total = 0.2 + 0.1 * np.exp(-1.0 + 4.0 * z[:, 0, 0].numpy())
    for y in (0.3, 1.0, 20.0):
        log_terms = -0.5 * (y - 0.3) ** 2 / total - 0.5 * np.log(2 * math.pi * total)
        exact = special.logsumexp(log_weights.numpy() + log_terms)
        target = torch.tensor([y])
        assert float(conditional.predictive_log_prob(target, f)) == pytest.approx(exact, abs=1e-5)
        assert float(conditional.components(f).log_prob(target)) == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("scale", [0.1, 5.0, 15.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_probabilities_of_classes_sum_to_one(scale, dtype):
    mean = torch.tensor([[0.0, 1.0, -2.0], [40.0, -40.0, 0.0]], dtype=dtype)
    f = Moments(mean, torch.full_like(mean, scale**2))
    for likelihood in (Softmax(3), RobustMax(3)):
        probs = likelihood.conditional().components(f).probs
        logs = torch.stack([likelihood.conditional().predictive_log_prob(torch.full((2,), c), f) for c in range(3)])
        torch.testing.assert_close(logs.exp().sum(0), torch.ones(2, dtype=dtype), rtol=0, atol=2e-6)
        torch.testing.assert_close(logs.exp().mT, probs, rtol=0, atol=2e-6)
    ordinal = Ordinal(4).to(dtype).conditional().components(Moments(f.mean[:, :1], f.variance[:, :1]))
    torch.testing.assert_close(ordinal.probs.sum(-1), torch.ones(2, dtype=dtype), rtol=0, atol=2e-6)


def test_widths_that_are_no_numbers_have_nodes():
    """So that NaN reaches the loss, whose message names its cause."""
    for scale in (torch.tensor([torch.nan]), torch.tensor([torch.inf]), torch.zeros(0)):
        assert len(normal_nodes(scale)[0]) == 20


def test_a_recorded_function_reports_scales_that_its_nodes_do_not_serve():
    for scale, is_served in ((4.0, True), (4.1, False)):
        with reports() as failures:
            normal_nodes(torch.tensor([1.0, scale]))
        assert (sum(int(count) for count in failures) == 0) == is_served
