"""Distribution functions, quantiles and scores where the support of p(y | f) moves with f, against closed forms over a normal f."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from pyro import distributions as dist
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from torch.distributions.transforms import AffineTransform

from pyro_dgp import Conditional, Mixture, RowObservation
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.supports import bounds, cdf_within

MEANS, SDS, WEIGHTS = ((0.2, -0.4), (1.1, 0.3)), ((0.9, 0.5), (0.4, 1.3)), (0.3, 0.7)


def moved(loc, sign=1.0, **kwargs):
    """An exponential of rate 2 that begins, or ends, at a place."""
    return dist.TransformedDistribution(dist.Exponential(torch.full_like(loc, 2.0)), [AffineTransform(loc, sign)])


KINDS: dict[str, Any] = {
    "uniform": lambda f: dist.Uniform(f - 0.5, f + 0.5, validate_args=False),
    "pareto": lambda f: dist.Pareto(f.exp(), torch.full_like(f, 3.0), validate_args=False),
    "checked pareto": lambda f: dist.Pareto(f.exp(), torch.full_like(f, 3.0), validate_args=True),
    "from f on": moved,
    "up to f": lambda f: moved(f, -1.0),
}


@dataclass(frozen=True)
class Own(Conditional):
    kind: str

    def given(self, f):
        return RowObservation(KINDS[self.kind](f[..., 0]), 1)


class Fixed(Own):
    """The same, whose nodes are not checked."""

    width = 0.02


def density(z):
    return math.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)


def closed(kind, y, m, s):
    """``P(y' <= y)`` for f of a normal with mean m and standard deviation s."""
    if kind == "uniform":
        high, low = ((end - m) * ndtr((end - m) / s) + s * density((end - m) / s) for end in (y + 0.5, y - 0.5))
        return high - low
    if "pareto" in kind:
        a = (math.log(y) - m) / s if y > 0 else -math.inf
        return ndtr(a) - (math.exp(3 * m + 4.5 * s**2) / y**3 * ndtr(a - 3 * s) if y > 0 else 0.0)
    if kind == "up to f":
        return 1 - closed("from f on", -y, -m, s)
    a = (y - m) / s
    return ndtr(a) - math.exp(2 * (m - y) + 2 * s**2 + log_ndtr(a - 2 * s))


def mixed(kind, y, row):
    return sum(w * closed(kind, y, MEANS[k][row], SDS[k][row]) for k, w in enumerate(WEIGHTS))


def mixture(kind, own=Own):
    f = Moments(torch.tensor(MEANS).unsqueeze(-1), torch.tensor(SDS).square().unsqueeze(-1))
    return Mixture(own(kind).components(f), torch.tensor(WEIGHTS).log())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own", [Own, Fixed])
def test_a_cdf_is_that_of_the_closed_form(kind, own):
    m = mixture(kind, own)
    for y in (-30.0, -1.0, 0.0, 0.3, 0.9, 2.5, 400.0):
        expected = [mixed(kind, y, row) for row in range(2)]
        assert m.cdf(torch.full((2,), y)).tolist() == pytest.approx(expected, abs=2e-5 if own is Own else 2e-3), y


@pytest.mark.parametrize("kind", ["uniform", "pareto"])
def test_quantiles_and_scores_are_those_of_the_closed_form(kind):
    m, levels = mixture(kind), [0.05, 0.95]
    low, high = (1e-6, 1e4) if kind == "pareto" else (-60.0, 60.0)
    expected = [[brentq(lambda y, r=r, p=p: mixed(kind, y, r) - p, low, high) for r in range(2)] for p in levels]
    np.testing.assert_allclose(m.quantile(torch.tensor(levels)), expected, atol=3e-4, rtol=3e-4)
    target, ends = 0.9, [1e-9 if kind == "pareto" else -40.0, 0.9, 3.0, 12.0, 400.0]
    for row, found in enumerate(m.crps(torch.full((2,), target)).tolist()):
        pieces = zip(ends, ends[1:], strict=False)
        score = sum(quad(lambda t: (mixed(kind, t, row) - (t >= target)) ** 2, a, b, limit=200)[0] for a, b in pieces)
        assert found == pytest.approx(score, rel=5e-3)


def test_a_cdf_of_a_moving_support_has_the_gradient_of_the_closed_form():
    mean = torch.tensor([[0.2]], requires_grad=True)
    m = Mixture(Own("pareto").components(Moments(mean[None], torch.full((1, 1, 1), 0.81))), torch.zeros(1))
    (slope,) = torch.autograd.grad(m.cdf(torch.tensor([1.7])).sum(), mean)
    expected = (closed("pareto", 1.7, 0.2 + 1e-5, 0.9) - closed("pareto", 1.7, 0.2 - 1e-5, 0.9)) / 2e-5
    assert float(slope) == pytest.approx(expected, rel=1e-3)


SUPPORTS: dict[str, tuple[Any, float, float]] = {
    "moving": (lambda f: dist.Uniform(f - 0.5, f + 0.5), -math.inf, math.inf),
    "open above": (lambda f: dist.Uniform(torch.zeros_like(f), f.exp()), 0.0, math.inf),
    "fixed": (lambda f: dist.Uniform(torch.full_like(f, -1.0), torch.full_like(f, 2.0)), -1.0, 2.0),
    "positive": (lambda f: dist.Gamma(f.exp(), f.exp()), 0.0, math.inf),
    "unit interval": (lambda f: dist.Beta(f.exp(), f.exp()), 0.0, 1.0),
    "count": (lambda f: dist.Poisson(f.exp()), 0.0, math.inf),
    "from f on": (moved, -math.inf, math.inf),
    "from 3 on": (lambda f: moved(torch.full_like(f, 3.0)), 3.0, math.inf),
    "up to 3": (lambda f: moved(torch.full_like(f, 3.0), -2.0), -math.inf, 3.0),
    "exp": (
        lambda f: dist.TransformedDistribution(dist.Normal(f, 1.0), [dist.transforms.ExpTransform()]),
        0.0,
        math.inf,
    ),
    "real": (lambda f: dist.Normal(f, 1.0), -math.inf, math.inf),
}


@pytest.mark.parametrize("kind", SUPPORTS)
@pytest.mark.parametrize("own", [Own, Fixed])
def test_only_ends_that_move_are_dropped(kind, own, monkeypatch):
    make, low, high = SUPPORTS[kind]
    monkeypatch.setitem(KINDS, kind, make)
    found = bounds(mixture(kind, own).components)
    assert [end.expand(2, 2).unique().tolist() for end in found] == [[low], [high]]


def test_a_distribution_function_outside_a_support_is_zero_or_one():
    scale = torch.tensor([0.5, 2.0, 4.0])
    pareto = dist.Pareto(scale, torch.full((3,), 3.0))
    assert cdf_within(pareto, torch.tensor([-1.0, 1.0, 8.0])).tolist() == [0.0, 0.0, 0.875]
    two = dist.MixtureSameFamily(
        dist.Categorical(torch.tensor([0.25, 0.75])), dist.Pareto(scale[1:], torch.full((2,), 3.0)), validate_args=False
    )
    assert cdf_within(two, torch.tensor([0.0, 3.0])).tolist() == pytest.approx([0.0, 0.25 * (1 - (2 / 3) ** 3)])
    ends = moved(torch.zeros(3), -1.0)
    assert cdf_within(ends, torch.tensor([-math.inf, 0.5, math.inf])).tolist() == [0.0, 1.0, 1.0]


def test_a_target_outside_the_support_of_some_components_has_the_density_of_the_others():
    """Checked uniform distributions raised torch's error; one value that no component can have is still refused."""
    low = torch.tensor([[0.0, 0.0], [1.0, 5.0]]).double()
    mixture = Mixture(dist.Uniform(low, low + 2.0, validate_args=True), torch.tensor([0.25, 0.75]).double().log())
    found = mixture.log_prob(torch.tensor([0.5, 6.0]).double())
    torch.testing.assert_close(found, torch.tensor([0.25 / 2, 0.75 / 2]).double().log())
    with pytest.raises(ValueError, match="to be within the support"):
        mixture.log_prob(torch.tensor([0.5, 4.0]).double())
