"""Figures of counts with a distribution function, however large: beside sums over all values, and by few evaluations."""

import itertools
import math
from unittest import mock

import numpy as np
import pytest
import torch
from pyro import distributions as dist
from pyro.distributions import TorchDistribution, constraints
from scipy.stats import norm, poisson

from pyro_dgp import (
    DeepGP,
    InducingPoints,
    MissingOutputs,
    Mixture,
    NegativeBinomial,
    Poisson,
    Variational,
    predict,
    scores,
)
from pyro_dgp.likelihoods import counts
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.prediction.count_panels import CountPanels
from pyro_dgp.prediction.count_search import least_reaching
from pyro_dgp.prediction.gap import _divergence
from pyro_dgp.prediction.prediction import Prediction

LIKELIHOODS = {"Poisson": Poisson, "NegativeBinomial": lambda: NegativeBinomial(0.5)}
#: Moments of the log mean of few counts, two components of each of four rows; and of counts of a million.
FEW = ([[-1.0, 2.0, 1.0, 5.5], [0.0, 2.2, 3.0, 5.0]], [[0.3, 0.1, 0.7, 0.02], [0.01, 0.5, 0.5, 0.05]])
MANY = ([[2.0, 12.0, 9.0, 10.0]], [[3.0, 2.0, 0.5, 0.01]])


def mixed(likelihood, moments, dtype=torch.float64):
    mean, scale = (torch.tensor(each, dtype=dtype).unsqueeze(-1) for each in moments)
    components = likelihood.to(dtype).requires_grad_(False).conditional().components(Moments(mean, scale.square()))
    return Mixture(components, torch.full((len(mean),), -math.log(len(mean)), dtype=dtype))


@pytest.fixture
def evaluations():
    """Evaluations of the integral over f, in numbers for each row and component."""
    found, function = [], counts.count_cdf

    def counted(count, mean, *others):
        found.append(torch.broadcast_shapes(count.shape, mean.shape).numel() / mean.numel())
        return function(count, mean, *others)

    with mock.patch.object(counts, "count_cdf", counted):
        yield found


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_figures_of_few_counts_are_those_of_sums(name):
    m, y = mixed(LIKELIHOODS[name](), FEW), torch.tensor([0.0, 7.0, 300.0, 200.0])
    values = torch.arange(4000.0)
    reached = (0.5 * m.components.log_prob(values[:, None, None]).exp()).sum(1).cumsum(0)
    torch.testing.assert_close(m.cdf(y), reached[y.long(), torch.arange(4)], atol=1e-7, rtol=0)
    score = (reached - (values[:, None] >= y).double()).square().sum(0)
    torch.testing.assert_close(m.crps(y), score, rtol=1e-6, atol=1e-6)
    levels = torch.tensor([0.001, 0.05, 0.5, 0.95, 0.999])
    expected = torch.stack([(reached < level).sum(0) for level in levels]).double()
    assert m.quantile(levels).equal(expected)


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_figures_of_many_counts_take_few_evaluations(name, dtype, evaluations):
    m = mixed(LIKELIHOODS[name](), MANY, dtype)
    levels, y = torch.tensor([0.05, 0.5, 0.999], dtype=dtype), torch.tensor([10.0, 1e5, 2e4, 22026.0], dtype=dtype)
    found = m.quantile(levels)
    assert sum(evaluations) < 150 and found.dtype == dtype
    assert float(found.max()) > 1e7
    if dtype == torch.float64:
        for level, each in zip(levels, found, strict=True):
            assert bool((m.cdf(each) >= level - 1e-14).all()) and bool((m.cdf(each - 1) < level).all())
    evaluations.clear()
    score = m.crps(y)
    assert sum(evaluations) < 900 and score.dtype == dtype
    for row in (1, 2, 3):  # an integral over the log of k, since large counts are next to continuous
        width = 8 * (MANY[1][0][row] + (0.007 if name == "Poisson" else 1.5))
        ends = MANY[0][0][row] - width, math.log(float(y[row])), MANY[0][0][row] + width
        log_k = [torch.linspace(*each, 4001, dtype=torch.float64) for each in itertools.pairwise(ends)]
        k = torch.stack(log_k).exp()
        reached = m.components.cdf(k.to(dtype)[..., None, None].expand(-1, -1, 1, 4))[..., 0, row].double()
        terms = torch.stack([reached[0], 1 - reached[1]]).square() * k
        wanted = sum(torch.trapezoid(*each) for each in zip(terms, log_k, strict=True))
        assert float(score[row]) == pytest.approx(float(wanted), rel=2e-4)


def test_the_score_of_wide_counts_is_that_of_a_sum_over_all(evaluations):
    m, y = mixed(Poisson(), ([[3.0, 8.0]], [[1.5, 0.002]])), torch.tensor([4.0, 3000.0])
    values = torch.arange(100_000.0)
    reached = torch.cat([m.components.cdf(part[:, None, None])[:, 0] for part in values.split(10_000)])
    wanted = (reached - (values[:, None] >= y).double()).square().sum(0)
    evaluations.clear()
    torch.testing.assert_close(m.crps(y), wanted, rtol=1e-7, atol=1e-7)
    assert sum(evaluations) < 800


def test_gradients_pass_through_the_distribution_function_and_the_score():
    def figures(mean, variance):
        m = Mixture(Poisson().conditional().components(Moments(mean, variance)), torch.zeros(1))
        return m.cdf(torch.tensor([1.0, 20.0])), m.crps(torch.tensor([3.0, 20.0]))

    mean, variance = torch.tensor([[[0.5], [2.0]]]), torch.tensor([[[0.5], [0.1]]])
    inputs = (mean.requires_grad_(), variance.requires_grad_())
    assert torch.autograd.gradcheck(figures, inputs, eps=1e-4, atol=1e-4)


def test_the_divergence_of_wide_counts_is_that_of_their_log_means(evaluations):
    first, second = (mixed(Poisson(), ([[12.0, 1.0]], [[scale, 0.5]])) for scale in (2.0, 2.5))
    found = _divergence(Prediction(lambda rows: first, 2), Prediction(lambda rows: second, 2))
    assert float(found[0]) == pytest.approx(math.log(2.5 / 2) + 4 / (2 * 6.25) - 0.5, rel=1e-3)
    assert float(found[1]) == pytest.approx(0.0, abs=1e-9)
    assert sum(evaluations) < 900


@pytest.mark.parametrize("length", [5, 28, 29, 36, 1000, 4607])
def test_panels_sum_polynomials_exactly(length):
    panels = CountPanels(torch.tensor([0]), torch.tensor([7.0]), torch.tensor([float(length)]))
    fine, coarse = panels.weights()
    assert bool((fine >= 0).all())
    numbers = np.arange(7, 7 + length)
    for power in range(9):
        wanted = float(((numbers / (7 + length)) ** power).sum())
        terms = (panels.nodes() / (7 + length)) ** power
        assert float((fine * terms).sum()) == pytest.approx(wanted, rel=1e-11)
        if power < 5:
            assert float((coarse * terms).sum()) == pytest.approx(wanted, rel=1e-11)


def test_the_search_finds_the_first_number_of_any_step():
    steps = torch.tensor([[0.0, 1.0, 2.0, 9.0, 1e3, 123456789.0, 2.0**52]])
    calls = []

    def cdf(at):
        calls.append(at)
        return (at >= steps).double() * 0.75 + 0.25 * (1 - 1 / (at + 2))

    found = least_reaching(cdf, torch.zeros(7), torch.full((1, 7), 0.6))
    assert found.equal(steps) and len(calls) < 90
    unknown = least_reaching(lambda at: torch.full_like(at, torch.nan), torch.zeros(1), torch.full((1, 1), 0.5))
    assert bool(unknown.isnan().all())


class Die(TorchDistribution):
    """The numbers 1 to 6, with a distribution function of its own."""

    arg_constraints = {}
    support = constraints.integer_interval(1, 6)

    def __init__(self, shape):
        super().__init__(torch.Size(shape), validate_args=False)

    def log_prob(self, value):
        return torch.full(torch.broadcast_shapes(value.shape, self.batch_shape), -math.log(6.0))

    def cdf(self, value):
        return (value.floor() / 6).expand(torch.broadcast_shapes(value.shape, self.batch_shape))


def test_a_distribution_of_ones_own_is_asked_for_its_function():
    m = Mixture(Die((1, 4)), torch.zeros(1))
    y = torch.tensor([0.0, 1.0, 3.5, 9.0])
    torch.testing.assert_close(m.cdf(y), torch.tensor([0.0, 1 / 6, 0.5, 1.0]))
    assert m.quantile(torch.tensor([0.1, 0.5, 0.9])).equal(torch.tensor([[1.0], [3.0], [6.0]]).expand(-1, 4))
    reached = torch.arange(1, 7) / 6
    torch.testing.assert_close(
        m.crps(torch.full((4,), 3.0)), ((reached - (torch.arange(1, 7) >= 3).double()) ** 2).sum().expand(4)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rates_that_a_model_computes_have_the_function_of_poisson(dtype):
    rate = torch.tensor([[2.0, 1e8], [3.0, 2e8]], dtype=dtype, requires_grad=True)
    m = Mixture(dist.Poisson(rate), torch.tensor([0.5, 0.5], dtype=dtype).log())
    single = dtype == torch.float32
    found = m.quantile(torch.tensor([0.25, 0.75], dtype=dtype)).double()
    torch.testing.assert_close(found[:, 1], torch.tensor([1e8, 2e8]).double(), rtol=1e-6 if single else 1e-8, atol=0)
    score = m.crps(torch.tensor([2.0, 1e8], dtype=dtype)).detach()
    assert float(score[1]) == pytest.approx(0.25e8, rel=1e-3)  # between two points
    (slope,) = torch.autograd.grad(m.cdf(torch.tensor([2.0, 1e8], dtype=dtype))[0], rate)
    assert float(slope[0, 0]) == pytest.approx(-0.5 * 2 * math.exp(-2.0), rel=1e-5)


def test_sums_over_too_many_values_are_refused_at_once():
    m = Mixture(dist.Geometric(torch.full((1, 2), 1e-7)), torch.zeros(1))
    y = torch.full((2,), 5.0)
    sentence = "the counts reach .* values and more, whose probabilities are summed one by one, 100000 at most: give the likelihood"
    with mock.patch.object(dist.Geometric, "log_prob", side_effect=AssertionError("a sum was begun")):
        for figure in (lambda: m.crps(y), lambda: m.quantile(torch.tensor([0.9])), lambda: m.cdf(1e6 * y)):
            with pytest.raises(ValueError, match=sentence):
                figure()
    assert m.cdf(y) == pytest.approx(torch.full((2,), 6e-7), rel=1e-5)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_moments_that_are_not_finite_are_refused(name):
    largest = mixed(LIKELIHOODS[name](), ([[1e6, 1.0]], [[1.0, 1.0]]))  # the mean of y overflows
    assert largest.cdf(torch.ones(2)).isfinite().all() and largest.mean.tolist()[0] == math.inf
    m = mixed(Poisson(), ([[1.0, 1.0]], [[1.0, 1.0]]))
    m.components.f.mean[0, 0] = math.nan
    with pytest.raises(ValueError, match="a mean or a variance that is not finite"):
        m.crps(torch.ones(2))
    assert m.quantile(torch.tensor([0.5])).isnan().tolist() == [[True, False]]


@pytest.mark.parametrize("kind", [dist.Poisson, lambda rate: dist.Binomial(9, torch.sigmoid(rate))])
def test_targets_that_are_missing_have_no_score_and_leave_the_others_theirs(kind):
    def mixture(rows=None):
        return Mixture(kind(torch.tensor([[1.0, 2.0, 3.0]])), torch.zeros(1))

    y = torch.tensor([2.0, math.nan, math.inf])
    whole = mixture().crps(torch.tensor([2.0, 0.0, 0.0]))
    score = mixture().crps(y)
    assert score[0] == whole[0] and score[1].isnan() and score[2] == math.inf
    assert mixture().cdf(y).isnan().tolist() == [False, True, False]
    missing = torch.tensor([2.0, math.nan, 4.0])
    assert mixture().crps(missing)[2] == mixture().crps(torch.tensor([2.0, 0.0, 4.0]))[2]


def test_scores_leave_out_counts_that_were_not_observed():
    x = torch.linspace(-1, 1, 12).unsqueeze(-1)
    y = torch.arange(12.0).to(x)
    y[3] = math.nan
    guide = Variational(DeepGP(x, layers=1, likelihood=MissingOutputs(Poisson())), InducingPoints(4))
    guide.initialize(x, y)
    figures = scores(predict(guide, x), y)
    assert all(math.isfinite(figure) for figure in figures.values())


def test_weights_whose_rounded_logarithms_lose_some_of_one():
    log_weights = torch.full((3500,), -math.log(3500), dtype=torch.float32)
    assert log_weights.exp().sum() < 1 - 4 * torch.finfo(torch.float32).eps
    many = Mixture(dist.Poisson(torch.full((3500, 1), 3.0, dtype=torch.float32)), log_weights)
    one = Mixture(dist.Poisson(torch.full((1, 1), 3.0, dtype=torch.float32)), log_weights.new_zeros(1))
    y = log_weights.new_tensor([2.0])
    assert torch.allclose(many.crps(y), one.crps(y), rtol=1e-5)


@pytest.mark.parametrize(
    "kind", [dist.Poisson, lambda rate: dist.NegativeBinomial(rate, probs=torch.full_like(rate, 0.5))]
)
def test_low_quantiles_in_single_precision(kind):
    levels = torch.tensor([1e-7, 5e-7, 1e-6], dtype=torch.float64)
    single, double = (
        Mixture(kind(torch.full((1, 1), 200.0, dtype=dtype)), torch.zeros(1, dtype=dtype)).quantile(levels.to(dtype))
        for dtype in (torch.float32, torch.float64)
    )
    assert torch.allclose(single.double(), double, atol=1.0) and double.min() > 50


def test_several_values_of_each_row_are_no_components():
    mixture = Mixture(dist.Poisson(torch.tensor([[3.0, 5.0], [4.0, 6.0], [1.0, 2.0]])), torch.full((3,), -math.log(3)))
    values = torch.arange(6.0).reshape(3, 2).to(mixture.log_weights)
    assert torch.equal(mixture.cdf(values), torch.stack([mixture.cdf(each) for each in values]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("mean", "gate"), [(1000.0, 0.6), (30.0, 0.6), (1000.0, 0.98)])
def test_the_score_of_two_groups_of_values_is_that_of_both(mean, gate, dtype):
    """The sum stood still between zero and the values near the mean, and was taken for full: 0.32 where 157 is right."""
    counts = dist.ZeroInflatedPoisson(torch.tensor([[mean]], dtype=dtype), gate=torch.tensor([[gate]], dtype=dtype))
    mixture = Mixture(counts, torch.zeros(1, dtype=dtype))
    k = np.arange(int(mean + 12 * mean**0.5))
    below = gate + (1 - gate) * poisson.cdf(k, mean)
    for y in (0.0, 3.0):
        expected = np.square(below - (k >= y)).sum()
        assert float(mixture.crps(torch.tensor([y], dtype=dtype))) == pytest.approx(expected, rel=1e-3)


def test_the_divergence_of_two_groups_of_values_is_that_of_both():
    def of(mean):
        counts = dist.ZeroInflatedPoisson(torch.tensor([[mean]]), gate=torch.tensor([[0.6]]))
        return Prediction(lambda rows: Mixture(counts, torch.zeros(1)), 1)

    expected = 0.4 * (900 * math.log(900 / 1000) - 900 + 1000)
    assert float(_divergence(of(900.0), of(1000.0))) == pytest.approx(expected, rel=1e-3)


def test_the_lower_tail_of_a_normal_is_kept_in_single_precision():
    """It ended at -5.42 standard deviations, with a distribution function of zero below."""
    mixture = Mixture(dist.Normal(torch.zeros(1, 1).float(), torch.ones(1, 1).float()), torch.zeros(1).float())
    for level in (1e-7, 1e-9, 1e-12):
        found = float(mixture.quantile(torch.tensor(level).float()))
        assert found == pytest.approx(norm.ppf(level), rel=1e-4)
        assert float(mixture.cdf(torch.tensor([found]).float())) == pytest.approx(level, rel=1e-2)
