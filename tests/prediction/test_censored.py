"""Predictions of distributions that have the end of their support with a probability of its own, as censored readings do."""

import numpy as np
import pytest
import torch
from pyro.distributions import TorchDistribution, constraints
from torch.special import log_ndtr, ndtr

from pyro_dgp import Conditional, Mixture, Prediction, RowObservation, coverage, pit
from pyro_dgp.likelihoods.moments import Moments

LOC = torch.tensor([[-0.4, 0.0, 0.9], [0.3, 1.0, -1.5]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.25, 0.75], dtype=torch.float64)


class AtLeastZero(TorchDistribution):
    """``max(z, 0)`` of a normal z."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.greater_than_eq(0.0)

    def __init__(self, loc, scale, validate_args=None):
        self.loc, self.scale = torch.broadcast_tensors(loc, torch.as_tensor(scale, dtype=loc.dtype))
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        return type(self)(self.loc.expand(batch_shape), self.scale.expand(batch_shape), validate_args=False)

    def log_prob(self, value):
        inside = torch.distributions.Normal(self.loc, self.scale).log_prob(value)
        return torch.where(value > 0, inside, log_ndtr(-self.loc / self.scale))

    def cdf(self, value):
        return ndtr((value - self.loc) / self.scale)

    def sample(self, sample_shape=()):
        return torch.distributions.Normal(self.loc, self.scale).sample(sample_shape).clamp_min(0)

    @property
    def mean(self):
        ratio = self.loc / self.scale
        return self.loc * ndtr(ratio) + self.scale * torch.exp(-0.5 * ratio**2) / (2 * np.pi) ** 0.5

    @property
    def variance(self):
        ratio = self.loc / self.scale
        square = (self.loc**2 + self.scale**2) * ndtr(ratio)
        return square + self.loc * self.scale * torch.exp(-0.5 * ratio**2) / (2 * np.pi) ** 0.5 - self.mean**2


class AtMostZero(AtLeastZero):
    """``min(z, 0)``."""

    support = constraints.interval(-torch.inf, 0.0)

    def log_prob(self, value):
        inside = torch.distributions.Normal(self.loc, self.scale).log_prob(value)
        return torch.where(value < 0, inside, log_ndtr(self.loc / self.scale))

    def sample(self, sample_shape=()):
        return torch.distributions.Normal(self.loc, self.scale).sample(sample_shape).clamp_max(0)

    @property
    def mean(self):
        return -AtLeastZero(-self.loc, self.scale).mean

    @property
    def variance(self):
        return AtLeastZero(-self.loc, self.scale).variance


class Integrated(Conditional):
    """The censored reading of a function with noise of variance 0.36."""

    def given(self, f):
        return RowObservation(AtLeastZero(f[..., 0], 0.6, validate_args=False), 1)


def mixture_of(kind):
    return Mixture(kind(LOC, 1.0), WEIGHTS.log())


MADE = {
    "plain": lambda: mixture_of(AtLeastZero),
    "integrated": lambda: Mixture(
        Integrated().components(Moments(LOC.unsqueeze(-1), torch.full((2, 3, 1), 0.64, dtype=torch.float64))),
        WEIGHTS.log(),
    ),
}


@pytest.mark.parametrize("made", MADE)
def test_the_end_has_its_probability(made):
    """It was 0 at the end, and 0.5 just above it."""
    mixture, zero = MADE[made](), torch.zeros(3, dtype=torch.float64)
    expected = (WEIGHTS[:, None] * ndtr(-LOC)).sum(0)
    torch.testing.assert_close(mixture.cdf(zero), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(mixture.cdf(zero - 1e-9), zero)
    above = 0.5 * (1 + expected)
    levels = torch.stack([0.5 * expected, above])
    for row in range(3):
        low, high = mixture.quantile(levels[:, row])[:, row]
        assert float(low) == 0.0
        assert float((WEIGHTS * ndtr(high - LOC[:, row])).sum()) == pytest.approx(float(above[row]), abs=2e-5)


def test_quantiles_up_to_an_upper_end():
    mixture = mixture_of(AtMostZero)
    below = (WEIGHTS[:, None] * ndtr(-LOC)).sum(0)
    levels = torch.stack([0.5 * below, 0.5 * (1 + below), torch.ones(3, dtype=torch.float64)])
    for row in range(3):
        low, *ends = mixture.quantile(levels[:, row])[:, row]
        assert float((WEIGHTS * ndtr(low - LOC[:, row])).sum()) == pytest.approx(float(levels[0, row]), abs=1e-9)
        assert ends == [0.0, 0.0]


def test_a_quantile_at_an_end_stands_still():
    """Its derivative was that of a quantile inside."""
    loc = torch.tensor([[-0.4, 0.9]], dtype=torch.float64, requires_grad=True)
    mixture = Mixture(AtLeastZero(loc, 1.0), torch.zeros(1, dtype=torch.float64))
    found = mixture.quantile(torch.tensor([0.2], dtype=torch.float64))[0]
    (slope,) = torch.autograd.grad(found.sum(), loc)
    assert found.detach().tolist()[0] == 0.0 < found.detach().tolist()[1]
    torch.testing.assert_close(slope, torch.tensor([[0.0, 1.0]], dtype=torch.float64))


@pytest.mark.parametrize("made", MADE)
def test_the_score_is_that_of_draws(made):
    mixture, y = MADE[made](), torch.tensor([0.0, 0.0, 1.2], dtype=torch.float64)
    torch.manual_seed(0)
    one, other = mixture.sample(100_000), mixture.sample(100_000)
    expected = (one - y).abs().mean(0) - 0.5 * (one - other).abs().mean(0)
    torch.testing.assert_close(mixture.crps(y), expected, rtol=0, atol=0.01)


@pytest.mark.parametrize("kind", [AtLeastZero, AtMostZero])
def test_its_own_draws_are_calibrated(kind):
    """The transform was 0 at the lower end, or 1 at the upper one, for half of the rows."""
    rows, loc = 4000, LOC[:, 0]
    torch.manual_seed(1)

    def evaluate(part):
        return Mixture(kind(loc[:, None].expand(2, part.stop - part.start), 1.0), WEIGHTS.log())

    prediction = Prediction(evaluate, rows)
    y = prediction.sample()
    assert 0.3 < float((y == 0).double().mean()) < 0.7
    reached = pit(prediction, y).sort().values
    assert (
        float((reached - torch.linspace(0, 1, rows)).abs().max()) < 1.63 / rows**0.5
    )  # Kolmogorov and Smirnov, 1 percent
    levels = torch.tensor([0.3, 0.5, 0.9])
    torch.testing.assert_close(coverage(prediction, y, levels), levels.double(), rtol=0, atol=0.03)
