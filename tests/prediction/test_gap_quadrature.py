"""The integrals of the inference gap against quadrature whose panels end at every component."""

import math

import numpy as np
import pytest
import torch
from pyro import distributions as dist
from torch import Tensor

from pyro_dgp import Gaussian, Mixture, Prediction, inference_gap
from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.processes import FunctionMarginal


def predicted(components, functions: tuple[Tensor, Tensor] | None = None) -> Prediction:
    """Equal weights of components ``(S, N)``; means and variances of f, ``(S, N)``, are those of y if not given."""
    mean, variance = (components.mean, components.variance) if functions is None else functions
    marginal = FunctionMarginal(mean[..., None], variance[..., None], torch.zeros(()), lambda: mean)
    observation = CollapsedObservation(Gaussian().conditional(), {"f": marginal}, mean.shape[1:])
    weights = torch.full((len(mean),), -math.log(len(mean)), dtype=mean.dtype)
    return Prediction(lambda rows: Mixture(components, weights, [observation]), mean.shape[1])


def pair(count, noise, dtype):
    """Means and standard deviations of a reference over a unit range, and of a prediction that is off by a part of the noise."""
    random, sd = np.random.default_rng(0), math.sqrt(noise)
    mean, moved, *scales = random.normal(size=(4, count, 1))
    parts = (mean, sd * (1 + 0.2 * np.tanh(scales[0]))), (mean + 0.3 * sd * moved, sd * (1 + 0.2 * np.tanh(scales[1])))
    return [[torch.as_tensor(each, dtype=dtype) for each in part] for part in parts]


def composite(edges, integrand):
    """20 Gauss-Legendre nodes between the edges, a few at a time."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    total = 0.0
    for chunk in np.array_split(np.arange(len(edges) - 1), 1 + len(edges) // 500):
        half = (edges[chunk + 1] - edges[chunk])[:, None] / 2
        total += float((half * weights * integrand(edges[chunk][:, None] + half * (1 + nodes))).sum())
    return total


def exact_divergence(p, q):
    """``KL(p || q)`` of normal mixtures, with panels between ``mean + z sd`` of all components of both."""
    both = [[np.asarray(part.double())[:, 0] for part in each] for each in (p, q)]
    z = np.array([-36, -18, -9, -6, -3, 0, 3, 6, 9, 18, 36.0])

    def integrand(y):
        logs = [
            np.logaddexp.reduce(-0.5 * ((y[..., None] - m) / s) ** 2 - np.log(s * len(m) * math.sqrt(2 * math.pi)), -1)
            for m, s in both
        ]
        return np.exp(logs[0]) * (logs[0] - logs[1])

    return composite(np.unique(np.concatenate([(m[:, None] + s[:, None] * z).ravel() for m, s in both])), integrand)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("count", "noise"), [(1, 1.0), (1, 1e-8), (7, 1e-2), (40, 1e-4), (40, 1e-8), (100, 1e-5)])
def test_the_divergence_of_mixtures_is_exact_however_narrow_their_components(count, noise, dtype):
    theirs, ours = pair(count, noise, dtype)
    gap = inference_gap(*(predicted(dist.Normal(*each)) for each in (ours, theirs)))
    assert gap.kl.dtype == dtype
    assert float(gap.kl) == pytest.approx(exact_divergence(theirs, ours), rel=1e-3)


def test_components_of_very_unequal_widths_and_heavy_tails_are_integrated():
    """The divergence of Student's t from a wider one: its tails lie far beyond the reach of a normal."""
    t, wide = (dist.StudentT(torch.tensor([[2.2]]), 0.3, scale) for scale in (1e-3, 1.0))
    gap = inference_gap(predicted(wide), predicted(t))
    z = np.sinh(np.linspace(-14, 14, 20_001))  # y in scales of the reference
    inner = np.log1p(z**2 / 2.2) * 1.6
    density = np.exp(math.lgamma(1.6) - math.lgamma(1.1) - inner) / math.sqrt(2.2 * math.pi)
    terms = (
        density
        * (math.log(1e3) - inner + np.log1p((z * 1e-3) ** 2 / 2.2) * 1.6)
        * np.cosh(np.linspace(-14, 14, 20_001))
    )
    assert float(gap.kl) == pytest.approx(float(terms.sum() * 28 / 20_000), rel=1e-4)


def test_the_distance_of_narrow_functions_is_their_shift():
    """Forty functions known to 1e-6, all moved by 1e-4, less than they are apart."""
    mean = torch.linspace(-1, 1, 40)[:, None]
    ours, theirs = (predicted(dist.Normal(each, torch.full_like(each, 1e-6))) for each in (mean + 1e-4, mean))
    expected = 1e-4 / float(mean.std(correction=0))
    assert float(inference_gap(ours, theirs).wasserstein) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_distance_is_exact_where_distribution_functions_cross(dtype):
    """Forty pairs of mixtures of eight normals, which cross up to seven times; the oracle is a sum over 200,000 points."""
    random = np.random.default_rng(0)
    parts = [(spread * random.normal(size=(8, 40)), random.uniform(0.1, 0.6, size=40)) for spread in (1.0, 1.2)]
    theirs, ours = (
        dist.Normal(torch.as_tensor(mean, dtype=dtype), torch.as_tensor(sd, dtype=dtype).expand(8, -1))
        for mean, sd in parts
    )
    found = inference_gap(predicted(ours), predicted(theirs)).wasserstein
    assert found.dtype == dtype
    t, crossings = torch.linspace(-12, 12, 200_001).double(), []
    for row in range(40):
        functions = [sum(dist.Normal(m, sd[row]).cdf(t) for m in mean[:, row]) / 8 for mean, sd in parts]
        difference = functions[0] - functions[1]
        inside = difference[difference.abs() > 1e-9]
        crossings.append(int((inside[1:].sign() != inside[:-1].sign()).sum()))
        sd = math.sqrt(parts[0][1][row] ** 2 + parts[0][0][:, row].var())
        assert float(found[row]) == pytest.approx(float(torch.trapezoid(difference.abs(), t)) / sd, rel=3e-4)
    assert max(crossings) >= 5 and min(crossings) <= 1


def test_the_divergence_of_counts_is_a_sum():
    """Small rates, of which an integral over real numbers would be far off."""
    theirs, ours = (torch.tensor([[0.05, 0.6], [0.4, 12.0]]) * factor for factor in (1.0, 1.5))
    gap = inference_gap(*(predicted(dist.Poisson(each)) for each in (ours, theirs)))
    k = torch.arange(80.0).reshape(-1, 1, 1)
    p, q = (dist.Poisson(each).log_prob(k).exp().mean(1) for each in (theirs, ours))
    torch.testing.assert_close(gap.kl, torch.where(p > 0, p * (p / q).log(), 0.0).sum(0), rtol=1e-6, atol=1e-9)
