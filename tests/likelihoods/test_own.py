"""A likelihood of one's own: p(y | f) alone, of one, two or more functions."""

import math

import numpy as np
import pytest
import torch
from pyro import distributions as dist
from scipy import stats

from pyro_dgp import (
    ELBO,
    Conditional,
    DeepGP,
    GammaDivergence,
    Gaussian,
    InducingPoints,
    Likelihood,
    MonteCarlo,
    PredictiveLogLikelihood,
    RowObservation,
    Variational,
    fit,
    predict,
)
from pyro_dgp.likelihoods.gaussian import GaussianConditional
from pyro_dgp.likelihoods.moments import Moments


class BetaConditional(Conditional):
    """Shares of a whole: Beta distributions whose two parameters are the exponentials of two functions."""

    def given(self, f):
        return RowObservation(dist.Beta(f[..., 0].exp(), f[..., 1].exp(), validate_args=False), 1)


class Shares(Likelihood):
    def target_outputs(self, outputs):
        return 1

    def conditional(self):
        return BetaConditional()


def test_two_functions_are_integrated_by_a_product_of_nodes():
    conditional, y = BetaConditional(), 0.3
    means, variances = (0.4, 0.9), (0.2, 0.3)
    z, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = np.outer(weights, weights) / (2 * math.pi)
    a, b = (np.exp(m + math.sqrt(v) * z) for m, v in zip(means, variances, strict=True))

    def mean_of(term):
        return float((weights * term(stats.beta(a[:, None], b[None, :]))).sum())

    f, target = Moments(torch.tensor([means] * 3), torch.tensor([variances] * 3)), torch.full((3,), y)
    expected, predictive = conditional.expected_log_prob(target, f), conditional.predictive_log_prob(target, f)
    assert expected.shape == predictive.shape == (3,)  # a term for each row: outputs are those of y, not of f
    assert float(expected[0]) == pytest.approx(mean_of(lambda p: p.logpdf(y)), abs=1e-6)
    assert float(predictive[0]) == pytest.approx(math.log(mean_of(lambda p: p.pdf(y))), abs=1e-6)
    power = conditional.log_expected_power(target, f, 0.5)
    assert float(power[0]) == pytest.approx(math.log(mean_of(lambda p: p.pdf(y) ** 0.5)), abs=1e-6)
    components = conditional.components(f)
    torch.testing.assert_close(components.log_prob(target), predictive)
    assert float(components.mean[0]) == pytest.approx(mean_of(lambda p: p.mean()), abs=1e-6)
    assert float(components.variance[0]) == pytest.approx(
        mean_of(lambda p: p.var() + p.mean() ** 2) - mean_of(lambda p: p.mean()) ** 2, abs=1e-6
    )


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(("layers", "steps", "error"), [(1, 150, 0.06), (2, 10, 0.4)])
@pytest.mark.parametrize("loss", [ELBO, PredictiveLogLikelihood])
def test_it_is_fitted_and_predicts(layers, steps, error, loss):
    x = torch.linspace(-1, 1, 80)[:, None]
    share = torch.sigmoid(2 * torch.sin(3 * x[:, 0]))
    y = dist.Beta(20 * share, 20 * (1 - share)).sample()
    model = DeepGP(x, layers=layers, width=1, likelihood=Shares(), outputs=2)
    guide = Variational(model, InducingPoints(10), MonteCarlo(3))
    guide.initialize(x, y)
    fit(loss(80)(model, guide), x, y, steps=steps, learning_rate=0.05)
    prediction = predict(guide, x)
    assert float((prediction.mean - share).abs().mean()) < error
    assert prediction.sample((50,)).shape == (50, 80) and prediction.log_prob(y).shape == (80,)
    with pytest.raises(ValueError, match="needs the integral of Beta's density to the power gamma"):
        GammaDivergence(80)(model, guide)(x, y)


@pytest.mark.usefixtures("local")
def test_more_functions_than_nodes_serve_are_refused():
    x, y = torch.randn(6, 1), torch.rand(6)
    model = DeepGP(x, layers=1, likelihood=Shares(), outputs=3)
    guide = Variational(model, InducingPoints(4), MonteCarlo(1))
    guide.initialize(x, y)
    with pytest.raises(
        ValueError,
        match="BetaConditional has 3 functions, and Gauss-Hermite nodes serve 2 at most: give it nodes of its own",
    ):
        ELBO()(model, guide)(x, y)


def test_a_given_that_no_integral_would_ask_is_refused():
    """Both were called in no closed form: the variance was that of a function half as large."""
    with pytest.raises(TypeError, match="Louder overrides given, which the integrals of a likelihood do not ask"):

        class Louder(Gaussian):
            def given(self, f):
                return super().given(2 * f)

    with pytest.raises(TypeError, match="inherits components, expected_log_prob, predictive_log_prob of GaussianCond"):

        class LouderConditional(GaussianConditional):
            def given(self, f):
                return super().given(2 * f)

    class Complete(GaussianConditional):
        """One with its integrals, which may come from the base."""

        expected_log_prob = Conditional.expected_log_prob
        predictive_log_prob = Conditional.predictive_log_prob
        components = Conditional.components

        def given(self, f):
            return super().given(2 * f)

    assert Complete(torch.ones(1)).given(torch.ones(3, 1)).mean.tolist() == [2.0, 2.0, 2.0]
