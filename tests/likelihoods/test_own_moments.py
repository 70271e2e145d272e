"""Means, variances and covariances of likelihoods of one's own whose moments are narrow in f, against closed forms and quadrature."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from pyro import distributions as dist

from pyro_dgp import Conditional, Mixture, RowObservation
from pyro_dgp.internal.recording import reports
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.units import Units


@dataclass(frozen=True)
class Own(Conditional):
    """p(y | f) that a function makes."""

    make: Any
    events: int = 1

    def given(self, f):
        return RowObservation(self.make(f), self.events)


def moments(mean, sd, functions=1):
    shape = (len(mean), functions)
    return Moments(torch.tensor(mean).unsqueeze(-1).expand(shape), torch.full(shape, float(sd) ** 2))


def waves(f):
    return dist.Normal(torch.sin(6 * f[..., 0]), 0.05, validate_args=False)


def of_waves(mean, sd):
    """Mean and variance under :func:`waves`."""
    first = math.exp(-18 * sd**2) * (6 * mean).sin()
    return first, 0.05**2 + 0.5 * (1 - math.exp(-72 * sd**2) * (12 * mean).cos()) - first.square()


@pytest.mark.parametrize("sd", [0.05, 0.3, 0.5, 1.4, 3.0])
def test_moments_of_waves_are_those_of_the_closed_form(sd):
    f, weights = moments([0.4, -0.1], sd), torch.tensor([0.3, 0.7])
    found = Own(waves).components(f)
    mean, variance = of_waves(f.mean[:, 0], sd)
    torch.testing.assert_close((found.mean, found.variance), (mean, variance), rtol=0, atol=1e-5)
    both = Moments(*(torch.stack([each, each]) for each in f))
    m = Mixture(Own(waves).components(both), weights.log())
    torch.testing.assert_close((m.mean, m.variance), (mean, variance), rtol=0, atol=1e-5)


def test_moments_are_in_the_units_of_the_targets():
    f, units = moments([0.4, -0.1], 1.4), Units(torch.tensor(2000.0), torch.tensor(10.0))
    mean, variance = of_waves(f.mean[:, 0], 1.4)
    image = units.image(Own(waves).components(f)).expand((3, 2))
    torch.testing.assert_close(image.mean, (2000 + 10 * mean).expand(3, 2), rtol=0, atol=1e-4)
    torch.testing.assert_close(image.variance, (100 * variance).expand(3, 2), rtol=0, atol=1e-3)


@pytest.mark.parametrize("steepness", [20.0, 80.0])
@pytest.mark.parametrize("functions", [1, 2])
def test_the_mean_of_two_values_is_their_probability(steepness, functions):
    sign = torch.tensor([1.0, -1.0])[:functions]
    conditional = Own(lambda f: dist.Bernoulli(logits=steepness * ((f * sign).sum(-1) - 0.1), validate_args=False))
    found, sd = conditional.components(moments([0.4, -0.1], 1.4, functions)), 1.4 * math.sqrt(functions)
    z = torch.linspace(-9, 9, 200_001)
    at = torch.tensor([0.4, -0.1] if functions == 1 else [0.0, 0.0])[:, None] - 0.1 + sd * z
    expected = (torch.softmax(-0.5 * z.square(), 0) * (steepness * at).sigmoid()).sum(-1)
    torch.testing.assert_close(found.mean, expected, rtol=0, atol=1e-4)
    with torch.no_grad():
        probs = Mixture(found.expand((1, 2)), torch.zeros(1)).probs[:, 1]
    torch.testing.assert_close(found.mean, probs, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.variance, probs * (1 - probs), rtol=0, atol=1e-6)


def test_gradients_are_those_of_quadrature():
    """By the moments of f, and by a parameter."""
    z, found = torch.linspace(-9, 9, 100_001), []
    for exact in (True, False):
        mean, variance, steepness = (torch.tensor(each, requires_grad=True) for each in ([[0.3]], [[0.8]], 60.0))
        conditional = Own(lambda f, s=steepness: dist.Normal((s * f[..., 0]).sigmoid(), 0.1, validate_args=False))
        components = conditional.components(Moments(mean, variance))
        if exact:
            rows = conditional.given(mean + variance.sqrt() * z.reshape(-1, 1, 1)).base_dist
            weight = torch.softmax(-0.5 * z.square(), 0)[:, None]
            first = (weight * rows.mean).sum(0)
            figures = first, (weight * (rows.variance + rows.mean.square())).sum(0) - first.square()
        else:
            figures = components.mean, components.variance
        for figure in figures:
            slopes = torch.autograd.grad(figure.sum(), (mean, variance, steepness), retain_graph=True)
            found.append(torch.cat([figure.detach(), *(slope.flatten() for slope in slopes)]))
    torch.testing.assert_close(found[2:], found[:2], rtol=2e-3, atol=2e-5)


def circle(f):
    """A point of a circle, with correlated noise."""
    loc = torch.stack([torch.sin(6 * f[..., 0]), torch.cos(6 * f[..., 0])], -1)
    return dist.MultivariateNormal(loc, scale_tril=torch.tensor([[0.1, 0.0], [0.05, 0.2]]), validate_args=False)


def test_covariances_of_a_row_are_those_of_the_closed_form():
    found = Own(circle).components(moments([0.4, -0.1], 1.4))
    noise = torch.tensor([[0.01, 0.005], [0.005, 0.0425]])
    expected = (0.5 * torch.eye(2) + noise).expand(2, 2, 2)  # the angle has gone round many times
    torch.testing.assert_close(found.mean, torch.zeros(2, 2), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.covariance_matrix, expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(found.variance, expected.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-5)


def test_outputs_that_are_independent_given_f_have_moments_of_their_own():
    conditional = Own(lambda f: dist.Normal((torch.tensor([6.0, 1.0]) * f).sin(), 0.05, validate_args=False), 2)
    found = conditional.components(moments([0.4, -0.1], 1.4, 2))
    near, wide = of_waves(torch.tensor([0.4, -0.1]), 1.4), of_waves(torch.tensor([0.4, -0.1]) / 6, 1.4 / 6)
    for figure, *expected in zip((found.mean, found.variance), near, wide, strict=True):
        torch.testing.assert_close(figure, torch.stack(expected, -1), rtol=0, atol=2e-4)


@pytest.mark.parametrize("sd", [1.0, 2.0, 3.0])
def test_mass_beyond_the_nodes_counts(sd):
    """The variance of a rate exp f has its mass at two variances of f above the mean."""
    found = Own(lambda f: dist.Poisson(f[..., 0].exp(), validate_args=False)).components(moments([0.2], sd))
    mean = math.exp(0.2 + sd**2 / 2)
    assert float(found.mean) == pytest.approx(mean, rel=1e-4)
    assert float(found.variance) == pytest.approx(mean + mean**2 * math.expm1(sd**2), rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "mean", "variance"),
    [
        ("pareto 0.8", math.inf, None),
        ("pareto 1.5", 3 * math.exp(0.2 + 0.98), math.inf),
        ("student 0.5", math.nan, math.nan),
        ("student 1.5", 0.0, math.inf),
    ],
)
def test_moments_that_are_infinite_or_none_are_not_refused(kind, mean, variance):
    name, number = kind.split()

    def make(f):
        shape = torch.full(f.shape[:-1], float(number))
        if name == "pareto":
            return dist.Pareto(f[..., 0].exp(), shape, validate_args=False)
        return dist.StudentT(shape, torch.sin(6 * f[..., 0]), 0.1, validate_args=False)

    found = Own(make).components(moments([0.2], 1.4))
    assert float(found.mean) == pytest.approx(mean, nan_ok=True, abs=1e-4)
    assert variance is None or float(found.variance) == pytest.approx(variance, nan_ok=True)
    assert not bool(found.variance.isfinite())


def test_moments_that_diverge_over_f_are_infinite():
    found = Own(lambda f: dist.LogNormal(f[..., 0].square(), 0.1, validate_args=False)).components(moments([0.0], 2.0))
    assert float(found.mean) == math.inf


def comb(f):
    return dist.Normal(1e6 * f[..., 0].mul(1e5).sin(), 1.0, validate_args=False)


def test_what_is_not_resolved_is_refused_and_still_drawn():
    found = Own(comb).components(moments([0.3, 0.1], 0.9))
    for figure in ("mean", "variance"):
        with pytest.raises(
            ValueError, match=r"the mean of p\(y \| f\) over f is not resolved in 2 rows, .*take sample"
        ):
            getattr(found, figure)
    assert found.sample((5,)).shape == (5, 2)


def test_moments_that_the_nodes_resolve_are_theirs():
    conditional, f = Own(lambda f: dist.Gamma(2.0, f[..., 0].exp(), validate_args=False)), moments([0.2, 0.4], 0.6)
    found = conditional.components(f)
    at, log_weights = conditional.nodes(f)
    inner, weights = conditional.given(at).base_dist, log_weights.exp()[:, None]
    mean = (weights * inner.mean).sum(0)
    assert torch.equal(found.mean, mean)
    assert torch.equal(found.variance, (weights * (inner.variance + (inner.mean - mean).square())).sum(0))


@pytest.mark.parametrize(("sd", "failures"), [(0.05, 0), (1.4, 2)])
def test_a_recorded_function_reports_means_that_its_nodes_do_not_resolve(sd, failures):
    with reports() as found:
        _ = Own(lambda f: dist.Normal(torch.sin(50 * f[..., 0]), 0.05)).components(moments([0.4, 0.1], sd)).mean
    assert sum(int(count) for count in found) == failures


def test_single_precision():
    f = Moments(*(each.float() for each in moments([0.4, -0.1], 1.4)))
    found = Own(waves).components(f)
    assert found.mean.dtype == torch.float32
    torch.testing.assert_close(found.mean, torch.zeros(2, dtype=torch.float32), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.variance, torch.full((2,), 0.5025, dtype=torch.float32), rtol=0, atol=1e-3)
