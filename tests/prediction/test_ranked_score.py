"""The CRPS of targets that are neither normal nor discrete."""

import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scoringrules import crps_mixnorm

from pyro_dgp import Mixture
from pyro_dgp.prediction import ranked_score


def mixture(scale=1.0):
    """Two Cauchy components for each of four rows: no tails are heavier."""
    loc = torch.tensor([[-1.0, 0.0, 2.0, 5.0], [1.0, 0.1, -2.0, 5.0]])
    return Mixture(dist.Cauchy(loc, torch.tensor([[scale], [0.2 * scale]])), torch.tensor([0.3, 0.7]).log())


@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("far", [0.0, 0.5, 30.0, -1000.0])
def test_it_is_the_integral_of_the_squared_distance(scale, far):
    m, y = mixture(scale), torch.tensor([0.5, 0.0, 2.0, 4.0]) + far

    def of_row(row):
        """Integrals over pieces that end at the means and the target, and where the tails end."""

        def reached(t):
            parts = zip((0.3, 0.7), m.components.loc[:, row].tolist(), (scale, 0.2 * scale), strict=True)
            return sum(weight * stats.cauchy.cdf(t, loc, width) for weight, loc, width in parts)

        marks = {float(y[row])}
        for loc in m.components.loc[:, row].tolist():
            marks |= {loc + sign * scale * step for sign in (-1, 1) for step in (0, 0.1, 1, 10, 100, 1e3, 1e4, 1e5)}
        ends = sorted(marks)
        pieces = zip(ends[:-1], ends[1:], strict=True)
        return sum(quad(lambda t: (reached(t) - (t >= float(y[row]))) ** 2, a, b, limit=200)[0] for a, b in pieces)

    expected = torch.tensor([of_row(row) for row in range(4)])
    torch.testing.assert_close(m.crps(y), expected, rtol=1e-3, atol=0.0)
    single = Mixture(dist.Cauchy(m.components.loc.float(), m.components.scale.float()), m.log_weights.float())
    torch.testing.assert_close(single.crps(y.float()).double(), expected, rtol=2e-3, atol=0.0)


@pytest.mark.parametrize("place", [50.0, 1e5])
@pytest.mark.parametrize("weight", [0.02, 1e-3, 1e-5])
@pytest.mark.parametrize("count", [2, 60])
def test_a_rare_component_far_away_counts(place, weight, count):
    """Its share of the integral is about the square of its weight times its distance."""
    loc = torch.cat([torch.zeros(count - 1, 1), torch.tensor([[place]])])
    weights = torch.cat([torch.full((count - 1,), (1 - weight) / (count - 1)), torch.tensor([weight])])
    scale = torch.cat([torch.ones(count - 1, 1), torch.tensor([[0.01]])])
    m = Mixture(dist.Laplace(loc, scale), weights.log())

    def reached(t):
        return (1 - weight) * stats.laplace.cdf(t) + weight * stats.laplace.cdf(t, place, 0.01)

    ends = (-40.0, -1.0, 0.0, 0.3, 5.0, 40.0, place - 1, place - 0.1, place, place + 0.1, place + 1)
    pieces = zip(ends[:-1], ends[1:], strict=True)
    expected = sum(quad(lambda t: (reached(t) - (t >= 0.3)) ** 2, a, b, limit=200)[0] for a, b in pieces)
    assert float(m.crps(torch.tensor([0.3]))) == pytest.approx(expected, rel=2e-3)


def test_it_is_the_same_in_each_call_and_leaves_random_numbers_alone():
    m, y, before = mixture(), torch.zeros(4), torch.get_rng_state()
    first = m.crps(y)
    torch.rand(3)
    torch.testing.assert_close(m.crps(y), first, rtol=0.0, atol=0.0)
    torch.set_rng_state(before)
    m.crps(y)
    assert torch.equal(torch.get_rng_state(), before)


def test_targets_that_are_not_finite():
    score = mixture().crps(torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0]))
    assert score[0].isnan() and bool(score[1:3].isposinf().all()) and bool(score[3].isfinite())


def test_a_distribution_without_a_cdf_has_the_score_of_its_draws():
    m = Mixture(dist.StudentT(4.0, torch.zeros(1, 2), torch.ones(1, 2)), torch.zeros(1))
    with pytest.raises(NotImplementedError):
        m.cdf(torch.zeros(2))
    y = torch.tensor([0.0, 1.0])
    assert torch.equal(m.crps(y), m.crps(y))


@pytest.mark.parametrize("pairs", [2**17, 70, 1])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_normal_components_have_it_in_closed_form_whatever_is_in_memory_at_a_time(pairs, count, monkeypatch):
    """Pairs are taken in blocks of rows, and of components where one row has too many."""
    sizes, mean_distance = [], ranked_score._mean_distance

    def watched(mean, scale):
        sizes.append(mean.numel())
        return mean_distance(mean, scale)

    monkeypatch.setattr(ranked_score, "_PAIRS", pairs)
    monkeypatch.setattr(ranked_score, "_mean_distance", watched)
    loc, scale = torch.randn(count, 7, 2), torch.rand(count, 7, 2)
    weights, y = torch.rand(count).softmax(0), 3 * torch.randn(4, 7, 2)
    found = Mixture(dist.Normal(loc, scale), weights.log()).crps(y)
    each = [part.movedim(0, -1).expand(4, 7, 2, count).numpy() for part in (loc, scale)]
    expected = crps_mixnorm(y.numpy(), *each, weights.expand(4, 7, 2, count).numpy())
    torch.testing.assert_close(found, torch.as_tensor(expected))
    *of_pairs, of_targets = sizes
    assert of_targets == 4 * 14 * count
    assert max(of_pairs) <= max(pairs, count)


@pytest.mark.parametrize(
    "given", [{"value": torch.float64}, {"loc": torch.float64}, {"scale": torch.float64}, {"weights": torch.float64}]
)
def test_normal_components_and_targets_may_have_two_precisions(given):
    dtypes = {"loc": torch.float32, "scale": torch.float32, "weights": torch.float32, "value": torch.float32} | given
    loc, y = torch.randn(3, 5).double(), torch.randn(5).double()
    weights = torch.rand(3).double().softmax(0).log()
    m = Mixture(dist.Normal(loc.to(dtypes["loc"]), torch.ones(3, 5).to(dtypes["scale"])), weights.to(dtypes["weights"]))
    found = m.crps(y.to(dtypes["value"]))
    assert found.dtype == torch.float64
    expected = Mixture(dist.Normal(loc, torch.ones(3, 5).double()), weights).crps(y)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_no_rows_have_no_score_and_it_has_slopes():
    m = Mixture(dist.Normal(torch.zeros(2, 0), torch.ones(2, 0)), torch.full((2,), 0.5).log())
    assert m.crps(torch.zeros(0)).shape == (0,)
    loc, scale, y = (torch.rand(3, 4).double().requires_grad_() for _ in range(3))

    def score(loc, scale, y):
        return Mixture(dist.Normal(loc, 0.5 + scale), torch.full((3,), 1 / 3).double().log()).crps(y[0])

    assert torch.autograd.gradcheck(score, (loc, scale, y))
