"""Expected powers of p(y | f), which approximate expectation propagation takes, of targets far from f and for powers near 0."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_ndtr
from torch.distributions import StudentT as TorchStudentT

from pyro_dgp import (
    ELBO,
    ApproximateEP,
    Bernoulli,
    DeepGP,
    InducingPoints,
    MomentMatching,
    Ordinal,
    StudentT,
    Variational,
)
from pyro_dgp.likelihoods.moments import Moments

FAR = [(16.0, 1.0), (20.0, 4.0), (30.0, 9.0), (30.0, 25.0), (40.0, 2.0), (3.0, 1.0)]


def at(mean, variance, **kwargs):
    return Moments(torch.tensor([[mean]], **kwargs), torch.tensor([[variance]], **kwargs))


def by_quadrature(log_density, mean, variance, power):
    """``log E p^power`` by many nodes; p falls where f grows."""
    scale = math.sqrt(variance)
    f = np.linspace(mean - 30 * scale, mean + 8 * scale, 400_001)
    terms = power * log_density(f) - 0.5 * ((f - mean) / scale) ** 2
    top = terms.max()
    return top + math.log(np.trapezoid(np.exp(terms - top), f)) - 0.5 * math.log(2 * math.pi * variance)


@pytest.mark.parametrize(("mean", "variance"), FAR)
def test_classes_far_on_the_wrong_side(mean, variance):
    """Nodes around the mean of f do not reach the values that explain such a class."""
    f, y = at(mean, variance, requires_grad=True), torch.zeros(1)
    probit = Bernoulli().conditional()
    found = probit.log_expected_power(y, f, 1.0)
    assert found.item() == pytest.approx(float(log_ndtr(-mean / math.sqrt(1 + variance))), abs=2e-6)
    (slope,) = torch.autograd.grad(found.sum(), f.mean)
    (wanted,) = torch.autograd.grad(probit.predictive_log_prob(y, f).sum(), f.mean)
    assert float(slope) == pytest.approx(float(wanted), abs=1e-4)
    half = by_quadrature(lambda f: log_ndtr(-f), mean, variance, 0.5)
    assert probit.log_expected_power(y, f, 0.5).item() == pytest.approx(half, abs=2e-6)
    with torch.no_grad():
        ordinal = Ordinal(3).conditional()
        exact = float(ordinal.predictive_log_prob(y, f))
        assert float(ordinal.log_expected_power(y, f, 1.0)) == pytest.approx(exact, abs=2e-6)


@pytest.mark.parametrize("power", [1e-8, 1e-5, 1e-3, 0.1, 0.5])
@pytest.mark.parametrize(("y", "mean", "variance"), [(0.0, 0.2, 0.5), (10.0, 0.0, 0.1), (1.0, 1.0, 1e-4)])
def test_low_powers_of_heavy_tails(power, y, mean, variance):
    """One over the power times the logarithm, which tends to the mean log density; by few nodes, however low the power."""
    f = np.linspace(mean - 12 * math.sqrt(variance), mean + 12 * math.sqrt(variance), 400_001)
    log_density = TorchStudentT(4.0, torch.tensor(f), 0.3).log_prob(torch.tensor(y)).numpy()
    weights = np.exp(-0.5 * (f - mean) ** 2 / variance) / math.sqrt(2 * math.pi * variance)
    wanted = math.log1p(np.trapezoid(np.expm1(power * log_density) * weights, f)) / power
    found = StudentT(df=4.0, scale=0.3).conditional().log_expected_power(torch.tensor([y]), at(mean, variance), power)
    assert found.item() / power == pytest.approx(wanted, abs=1e-7)


def test_powers_that_rounding_swallows_are_refused():
    x = torch.linspace(-1, 1, 20, dtype=torch.float32)[:, None]
    y = (x[:, 0] > 0).float()
    model = DeepGP(x, layers=1, kernel="rbf", likelihood=Bernoulli("logit")).float()
    guide = Variational(model, InducingPoints(5), MomentMatching())
    guide.initialize(x, y)
    with torch.no_grad():
        bound = float(ELBO(20)(model, guide)(x, y))
        assert float(ApproximateEP(20, 2e-3)(model, guide)(x, y)) == pytest.approx(bound, abs=0.02)
    with pytest.raises(ValueError, match=r"alpha = 1e-06 is so near 0 .*take 0.002 or more, or ELBO"):
        ApproximateEP(20, 1e-6)(model, guide)(x, y)
