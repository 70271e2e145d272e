"""Likelihoods of one's own, with the checks that distributions make by default, whose parameters underflow or overflow far from the mean of f."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from pyro import distributions as dist
from torch.nn.functional import softplus

from pyro_dgp import Conditional, RowObservation
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.refinement import NotResolvedError
from pyro_dgp.prediction.distribution_functions import DistributionFunction


@dataclass(frozen=True)
class Own(Conditional):
    """p(y | f) that a function makes."""

    make: Any

    def given(self, f):
        return RowObservation(self.make(f), 1)


def components(make, sd, dtype=torch.float32, mean=0.2):
    f = Moments(torch.full((1, 1, 1), mean, dtype=dtype), torch.full((1, 1, 1), float(sd) ** 2, dtype=dtype))
    return Own(make).components(f)


MAKES = {
    "poisson": lambda f: dist.Poisson(f[..., 0].exp()),
    "negative binomial": lambda f: dist.NegativeBinomial(5.0, logits=f[..., 0]),
    "lognormal": lambda f: dist.LogNormal(f[..., 0], 0.1),
    "gamma": lambda f: dist.Gamma(2.0, softplus(f[..., 0])),
    "normal": lambda f: dist.Normal(0.0, f[..., 0].exp()),
    "exponential": lambda f: dist.Exponential((-f[..., 0]).exp()),
    "weibull": lambda f: dist.Weibull(f[..., 0].exp(), 2.0),
    "beta": lambda f: dist.Beta(10 * f[..., 0].sigmoid(), 10 * (1 - f[..., 0].sigmoid())),
}


def by_quadrature(figure, sd, mean=0.2):
    """The expectation of a figure of f, by many nodes in double precision up to 25 standard deviations."""
    z = torch.linspace(-25, 25, 400_001, dtype=torch.float64)
    return float((torch.softmax(-0.5 * z.square(), 0) * figure((mean + sd * z).unsqueeze(-1))).sum())


def exact(name, sd):
    """Mean and variance of y: closed forms where f is the log of a scale, and quadrature."""
    first, second = (math.exp(0.2 * power + 0.5 * (power * sd) ** 2) for power in (1, 2))  # E e^f and E e^2f
    if name == "gamma":
        mean = by_quadrature(lambda f: 2 / softplus(f[:, 0]), sd)
        return mean, by_quadrature(lambda f: 6 / softplus(f[:, 0]).square(), sd) - mean**2
    raw = {
        "poisson": (first, first + second),
        "negative binomial": (5 * first, 5 * first + 30 * second),
        "lognormal": (first * math.exp(0.005), second * math.exp(0.02)),
        "normal": (0.0, second),
        "exponential": (first, 2 * second),
        "weibull": (first * math.gamma(1.5), second),
    }
    mean, square = raw[name]
    return mean, square - mean**2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sd", [0.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("name", [name for name in MAKES if name != "beta"])
def test_moments_are_right_in_either_precision(name, sd, dtype):
    found, (mean, variance) = components(MAKES[name], sd, dtype), exact(name, sd)
    assert found.mean.dtype == found.variance.dtype == dtype
    assert float(found.variance) == pytest.approx(variance, rel=1e-4)
    assert float(found.mean) == pytest.approx(mean, abs=1e-4 * math.sqrt(variance))
    with pytest.raises(ValueError, match="Expected parameter scale"):  # checks are on again
        dist.Normal(0.0, -1.0)


REACHED = {
    "normal": lambda y, f: torch.special.ndtr(y * (-f).exp()),
    "exponential": lambda y, f: -torch.expm1(-y * (-f).exp()),
    "gamma": lambda y, f: torch.special.gammainc(torch.full_like(f, 2.0), y * softplus(f)),
    "weibull": lambda y, f: -torch.expm1(-(y * (-f).exp()).square()),
}


@pytest.mark.parametrize("name", REACHED)
def test_quantiles_are_right(name):
    """The search for them begins at the variance."""
    levels = torch.tensor([0.1, 0.9], dtype=torch.float32)
    function = DistributionFunction(components(MAKES[name], 2.0), torch.zeros(1, dtype=torch.float32))
    for level, y in zip(levels.tolist(), function.quantile(levels).flatten().tolist(), strict=True):
        assert by_quadrature(lambda f, y=y: REACHED[name](y, f[:, 0]), 2.0) == pytest.approx(level, abs=2e-5)


@pytest.mark.parametrize(
    ("name", "sd", "y", "dtype"),
    [
        ("gamma", 5.0, 50.0, torch.float32),
        ("gamma", 5.0, 50.0, torch.float64),
        ("weibull", 5.0, 1e-20, torch.float32),
        ("beta", 2.0, 0.3, torch.float32),
        ("beta", 5.0, 0.3, torch.float64),
    ],
)
def test_log_densities_are_right(name, sd, y, dtype):
    found = components(MAKES[name], sd, dtype).log_prob(torch.full((1, 1), y, dtype=dtype))

    def density(f):
        near = f.clamp(0.2 - 12 * sd, 0.2 + 7 * sd)  # the mass is between
        return MAKES[name](near).log_prob(torch.tensor(y, dtype=torch.float64)).exp()

    assert float(found) == pytest.approx(math.log(by_quadrature(density, sd)), abs=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_that_are_infinite_stay_so(dtype):
    def pareto(f):
        return dist.Pareto(f[..., 0].exp(), torch.tensor(0.8, dtype=dtype))

    def student(f):
        return dist.StudentT(2.0, f[..., 0], 0.1)

    def narrowing(f):
        return dist.StudentT(1 + f[..., 0].exp(), 0.0, 1.0)

    assert float(components(pareto, 1.4, dtype).mean) == math.inf
    assert float(components(student, 3.0, dtype).variance) == math.inf
    assert float(components(narrowing, 1.0, dtype).variance) == math.inf
    square = components(lambda f: dist.LogNormal(f[..., 0].square(), 0.1), 2.0, dtype, mean=0.0)
    assert float(square.mean) == math.inf


def of_a_matrix(f):
    """A rate by a matrix in single precision, which takes no other."""
    return dist.Poisson((f @ torch.ones(1, 1, dtype=torch.float32))[..., 0].exp())


def test_a_likelihood_that_takes_single_precision_alone():
    """Its moments are right where they do not overflow, and refused where they do."""
    assert float(components(of_a_matrix, 3.0).variance) == pytest.approx(exact("poisson", 3.0)[1], rel=1e-4)
    with pytest.raises(NotResolvedError, match=r"the variance of p\(y \| f\) over f overflows in single .*\.to\(f\)"):
        _ = components(of_a_matrix, 5.0).variance


def test_checks_that_a_likelihood_asks_for_are_a_refusal_that_quantiles_do_without():
    found = components(lambda f: dist.Normal(0.0, f[..., 0].exp(), validate_args=True), 5.0)
    with pytest.raises(NotResolvedError, match="given raises ValueError .* leave out validate_args=True"):
        _ = found.variance
    function = DistributionFunction(found, torch.zeros(1, dtype=torch.float32))
    y = float(function.quantile(torch.tensor([0.9], dtype=torch.float32)))
    assert by_quadrature(lambda f: REACHED["normal"](y, f[:, 0]), 5.0) == pytest.approx(0.9, abs=1e-4)


@pytest.mark.parametrize("name", ["normal", "weibull"])
def test_targets_in_double_precision_are_taken_where_functions_have_single(name):
    y = torch.ones(1, 1, dtype=torch.float64)
    found = components(MAKES[name], 2.0).cdf(y)
    assert by_quadrature(lambda f: REACHED[name](1.0, f[:, 0]), 2.0) == pytest.approx(float(found), abs=2e-5)


def test_a_value_outside_a_support_far_off_is_a_refusal():
    found = components(lambda f: dist.Uniform(0.0, f[..., 0].exp()), 5.0, torch.float64, mean=0.0)
    with pytest.raises(NotResolvedError, match=r"p\(y \| f\) raises ValueError .* a log density of -inf"):
        found.log_prob(torch.full((1, 1), 1e-20, dtype=torch.float64))
