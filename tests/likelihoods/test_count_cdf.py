"""The distribution function of counts whose log mean is normal, beside sums of probabilities and dense quadrature."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import special

from pyro_dgp import NegativeBinomial, Poisson
from pyro_dgp.internal.views import Flattened, Joined
from pyro_dgp.likelihoods.count_cdf import count_cdf
from pyro_dgp.likelihoods.moments import Moments

#: Means and standard deviations of the log mean, and counts.
MEANS, SCALES = (-5.0, 0.0, 5.0, 12.0), (1e-4, 1e-2, 0.1, 0.3, 1.0, 3.0)
COUNTS = (0.0, 1.0, 2.0, 7.0, 20.0, 148.0, 1e3, 1e4, 162754.0, 1e6)


def quadrature(k, mean, scale, size):
    """``int P(y <= k | t) N(t) dt`` by panels around the mean of t, and around the t at which P(y <= k | t) falls."""
    narrow = (1 / (k + 1) + (1 / size if size else 0.0)) ** 0.5
    ends = mean - 10 * scale, mean + 10 * scale
    around = {*np.linspace(*ends, 81), *(math.log(k + 1) + narrow * np.linspace(-40, 40, 161))}
    points = np.array(sorted(point for point in around if ends[0] <= point <= ends[1]))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    length = np.diff(points)[:, None]
    t = points[:-1, None] + length * (1 + nodes) / 2
    rate = np.exp(t)
    below = special.betainc(size, k + 1, size / (size + rate)) if size else special.gammaincc(k + 1, rate)
    return (
        float((length * weights / 2 * below * np.exp(-0.5 * ((t - mean) / scale) ** 2)).sum())
        / scale
        / math.sqrt(2 * math.pi)
    )


@pytest.mark.parametrize("size", [None, 0.02, 0.5, 20.0, 1e5])
def test_it_is_exact_where_either_factor_is_narrow(size):
    grid = list(itertools.product(COUNTS, MEANS, SCALES))
    k, mean, scale = (torch.tensor(column, dtype=torch.float64) for column in zip(*grid, strict=True))
    wanted = torch.tensor([quadrature(*each, size) for each in grid], dtype=torch.float64)
    r = None if size is None else torch.tensor(size, dtype=torch.float64)
    torch.testing.assert_close(count_cdf(k, mean, scale.square(), r), wanted, rtol=0, atol=1e-9)
    single = count_cdf(k.float(), mean.float(), scale.float().square(), None if r is None else r.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("mean", "variance", "size"), [(-11.34, 128.05, 0.002868), (-5.2, 25.19, 0.00121)])
def test_it_is_exact_where_both_factors_are_very_wide(mean, variance, size):
    z = torch.linspace(-8.5, 8.5, 60_001, dtype=torch.float64)
    none = (1 + torch.exp(mean + math.sqrt(variance) * z) / size) ** -size
    wanted = float(torch.trapezoid(none * torch.exp(-0.5 * z**2), z)) / math.sqrt(2 * math.pi)
    found = count_cdf(*(torch.tensor(each, dtype=torch.float64) for each in (0.0, mean, variance, size)))
    assert abs(float(found) - wanted) < 1e-9


@pytest.mark.parametrize("size", [None, 2.0])
def test_far_counts_and_ends_of_the_range(size):
    r = None if size is None else torch.tensor(size)
    k = torch.tensor([-1.0, -0.5, 0.0, 0.9, 1e12, 1e15, math.inf, math.nan])
    found = count_cdf(k, torch.full((8,), 27.0), torch.full((8,), 1.0), r)
    assert found[0] == found[1] == 0 and found[2] == found[3] < 1e-9 and found[6] == 1 and bool(found[7].isnan())
    z = torch.linspace(-8, 8, 4001)  # a count so large is its mean, or that times a gamma variable
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    for at, each in zip(k[4:6], found[4:6], strict=True):
        below = torch.special.gammainc(torch.tensor(2.0), 2 * at * torch.exp(-27 - z))
        exact = torch.special.ndtr(at.log() - 27) if size is None else torch.trapezoid(below * density, z)
        torch.testing.assert_close(each, exact, rtol=1e-9, atol=1e-9)
    assert bool(count_cdf(k[2:3], torch.tensor([math.nan]), torch.ones(1), r).isnan())
    known = count_cdf(torch.tensor([3.0]), torch.tensor([1.0]), torch.zeros(1), r)
    exact = special.gammaincc(4, math.e) if size is None else special.betainc(size, 4, size / (size + math.e))
    assert float(known) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("size", [None, 2.0])
def test_its_derivatives_are_those_of_finite_differences(size):
    k = torch.tensor([0.0, 3.0, 40.0])
    mean, variance = (
        torch.tensor([0.3, 1.0, 3.5], requires_grad=True),
        torch.tensor([1.5, 0.01, 0.3], requires_grad=True),
    )
    inputs = (mean, variance) if size is None else (mean, variance, torch.tensor(size, requires_grad=True))
    assert torch.autograd.gradcheck(lambda *each: count_cdf(k, *each), inputs, eps=1e-4, atol=1e-5)


def mixture(likelihood, exposure, *shape):
    f = Moments(torch.randn(*shape, 1), torch.rand(*shape, 1))
    return likelihood.requires_grad_(False).conditional(exposure).components(f)


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(0.4)])
def test_mixtures_and_views_of_them_have_it(likelihood):
    values = torch.arange(40.0)
    exposure = 0.5 + torch.rand(4)
    plain = mixture(likelihood, exposure, 3, 4)
    sums = plain.log_prob(values[:, None, None]).exp().cumsum(0)
    torch.testing.assert_close(plain.cdf(values[:, None, None]), sums, rtol=0, atol=1e-5)
    grouped = mixture(likelihood, None, 3, 2, 4)
    at = values[:5, None, None]
    for parts, axis in (([plain, mixture(likelihood, None, 2, 4)], 0), ([plain, mixture(likelihood, None, 3, 2)], 1)):
        torch.testing.assert_close(Joined(parts, axis).cdf(at), torch.cat([part.cdf(at) for part in parts], 1 + axis))
    flat = Flattened(grouped, 1, 3)
    torch.testing.assert_close(flat.cdf(at), grouped.cdf(at.unsqueeze(-1)).flatten(2))
    for each in (plain, flat, Joined([plain, plain], 0)):
        wider = each.expand((2, *each.batch_shape))
        assert wider.batch_shape == (2, *each.batch_shape)
        torch.testing.assert_close(wider.cdf(values[3]), each.cdf(values[3]).expand(wider.batch_shape))
        torch.testing.assert_close(wider.variance, each.variance.expand(wider.batch_shape))
        draws = wider.sample((3,))
        assert draws.shape == (3, *wider.batch_shape) and not draws[:, 0].equal(draws[:, 1])
