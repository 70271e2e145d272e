"""Likelihoods of one's own with several outputs of a row that read the same functions, against closed forms."""

import math
from dataclasses import dataclass

import pytest
import torch
from pyro import distributions as dist

from pyro_dgp import Conditional, InducingPoints, Likelihood, Mixture, MonteCarlo, RowObservation, Variational, predict
from pyro_dgp.internal.quadrature import gauss_hermite_product
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.units import Units
from pyro_dgp.prediction.mixture import join_rows, stack_mixtures
from pyro_dgp.prediction.scores import scores
from tests.examples import OneLayer

NOISE = 0.3
WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64).log()


@dataclass(frozen=True)
class Readings(Conditional):
    """``y_nd ~ N(sum_f a_df f_nf, noise)``: each output reads every function."""

    loadings: torch.Tensor

    def given(self, f):
        return RowObservation(dist.Normal(f @ self.loadings.mT, NOISE, validate_args=False), 2)


class OfMany(Readings):
    """The same with nodes of its own, as more than two functions need."""

    def nodes(self, f):
        z, log_weights = gauss_hermite_product(20, f.mean.shape[-1])
        return f.mean + f.variance.sqrt() * z.reshape(-1, *[1] * (f.mean.dim() - 1), z.shape[-1]), log_weights


class TwoReadings(Likelihood):
    """Two readings of one function."""

    def require_outputs(self, num_outputs):
        assert num_outputs == 1

    def target_outputs(self, num_outputs):
        return 2

    def conditional(self):
        return Readings(torch.ones(2, 1))


def of_functions(count, rows=4):
    """Moments of two components of rows, of so many functions, and the likelihood of two outputs."""
    torch.manual_seed(count)
    f = Moments(torch.randn(2, rows, count), (0.05 + 0.5 * torch.rand(2, rows, count)) / count**2)
    return f, (OfMany if count > 2 else Readings)(torch.randn(2, count))


def closed_form(conditional, f):
    a = conditional.loadings
    covariance = (a * f.variance.unsqueeze(-2)) @ a.mT + NOISE**2 * torch.eye(2)
    return dist.MultivariateNormal(f.mean @ a.mT, covariance)


def parts(f, conditional):
    """The same mixture whole, with its components one after another, and with its rows one after another."""
    whole = Mixture(conditional.components(f), WEIGHTS)
    each = [Mixture(conditional.components(Moments(*(v[s : s + 1] for v in f))), torch.zeros(1)) for s in range(2)]
    rows = [Mixture(conditional.components(Moments(*(v[:, n : n + 2] for v in f))), WEIGHTS) for n in (0, 2)]
    return whole, stack_mixtures(each), join_rows(rows)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_density_and_the_covariance_of_a_row_are_joint(count):
    """They were those of outputs that do not depend on each other, where draws did."""
    f, conditional = of_functions(count)
    exact = closed_form(conditional, f)
    y = exact.sample()[1]
    for mixture, weights in zip(parts(f, conditional), (WEIGHTS, torch.full((2,), 0.5).log(), WEIGHTS), strict=True):
        expected = torch.logsumexp(weights.unsqueeze(-1) + exact.log_prob(y), 0)
        torch.testing.assert_close(mixture.log_prob(y), expected, rtol=0, atol=5e-5)
        normals = Mixture(exact, weights)
        torch.testing.assert_close(mixture.covariance, normals.covariance, rtol=0, atol=1e-6)
        torch.testing.assert_close(mixture.variance, normals.variance)
        draws = mixture.sample(20_000)
        torch.testing.assert_close(torch.cov(draws[:, 1].mT), normals.covariance[1], rtol=0.06, atol=0.03)


@pytest.mark.parametrize("count", [1, 2])
def test_in_units(count):
    f, conditional = of_functions(count)
    y, units = torch.randn(4, 2), Units(torch.tensor([3.0, 0.0]), torch.tensor([10.0, 0.1]))
    plain = Mixture(conditional.components(f), WEIGHTS)
    image = Mixture(units.image(conditional.components(f)), WEIGHTS)
    torch.testing.assert_close(image.log_prob(units.restored(y)), plain.log_prob(y) - math.log(10 * 0.1))
    ratio = torch.tensor([10.0, 0.1])
    torch.testing.assert_close(image.covariance, plain.covariance * ratio * ratio.unsqueeze(-1))


class Waits(Conditional):
    """Two waiting times with one rate."""

    def given(self, f):
        return RowObservation(dist.Exponential(f.exp().expand(*f.shape[:-1], 2)), 2)


def test_a_value_outside_the_support_has_no_density():
    f = Moments(torch.zeros(1, 3, 1), torch.full((1, 3, 1), 0.2))
    mixture = Mixture(Waits().components(f), torch.zeros(1))
    y = torch.tensor([[-1.0, 0.5], [0.3, 0.5], [1.0, 2.0]])
    found = mixture.log_prob(y)
    assert found[0] == -torch.inf
    torch.testing.assert_close(found[1:], Waits().predictive_log_prob(y[1:], Moments(*(v[0, 1:] for v in f))))


@pytest.mark.usefixtures("local")
def test_a_prediction_and_its_scores_are_those_of_the_loss():
    x = torch.linspace(-1, 1, 12)[:, None]
    y = torch.sin(3 * x) + NOISE * torch.randn(12, 2)
    guide = Variational(OneLayer(likelihood=TwoReadings()), InducingPoints(6), MonteCarlo(1))
    guide.initialize(x, y)
    prediction = predict(guide, x)
    f = prediction.functions()
    exact = closed_form(Readings(torch.ones(2, 1)), Moments(f.mean, f.variance)).log_prob(y)
    torch.testing.assert_close(prediction.log_prob(y), exact, rtol=0, atol=5e-5)
    assert scores(prediction, y)["nll"] == pytest.approx(-float(exact.detach().mean()), abs=5e-5)
