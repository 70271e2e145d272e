"""Exact regression trains only what can be predicted from its data in closed form."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import (
    RBF,
    Gaussian,
    GaussianProcess,
    LinearCoregionalization,
    MarginalLikelihood,
    PosteriorDraws,
    fit,
    predict,
)
from tests.examples import OneLayer, regression


class NormalOfAllRows(PyroModule):
    """One multivariate normal in the place of a Gaussian process."""

    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF())

    def forward(self, x, y=None):
        covariance = self.gp(x).covariance_matrix.squeeze(0) + 0.1 * torch.eye(len(x))
        return pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), covariance), obs=y)


class NormalOfOutputs(PyroModule):
    """Correlated outputs of each row by itself."""

    def forward(self, x, y=None):
        spread = dist.MultivariateNormal(torch.zeros(2), torch.eye(2) + 0.5).expand([len(x)])
        return pyro.sample("y", spread.to_event(1), obs=y)


class Mixed(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp = GaussianProcess(RBF(), num_outputs=2)
        self.likelihood = LinearCoregionalization(2, 2)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


def test_a_likelihood_without_exact_predictions_is_refused_before_training(local):
    x, y = regression(12)
    both = torch.stack([y, -y], -1)
    message = "exact predictions of 'y' need Gaussian noise around each function"
    model = Mixed()
    for use in (
        lambda: MarginalLikelihood(model)(x, both),
        lambda: fit(MarginalLikelihood(model), x, both, steps=1),
        lambda: predict(PosteriorDraws(model, {}, (x, both)), x),
    ):
        with pytest.raises(ValueError, match=message):
            use()


def test_one_normal_of_all_rows_is_refused_where_its_prediction_would_be_the_prior(local):
    x, y = regression(12)
    model = NormalOfAllRows()
    for use in (lambda: MarginalLikelihood(model)(x, y), lambda: predict(PosteriorDraws(model, {}, (x, y)), x)):
        with pytest.raises(ValueError, match="the site 'y' has one MultivariateNormal of all 12 rows"):
            use()


def test_correlated_outputs_of_separate_rows_are_trained_and_predicted(local):
    x, y = regression(12)
    both, model = torch.stack([y, -y], -1), NormalOfOutputs()
    exact = dist.MultivariateNormal(torch.zeros(2), torch.eye(2) + 0.5).log_prob(both).sum()
    torch.testing.assert_close(-MarginalLikelihood(model)(x, both), exact)
    assert predict(PosteriorDraws(model, {}, (x, both)), x[:5]).mean.shape == (5, 2)
    assert MarginalLikelihood(OneLayer(likelihood=Gaussian()))(x, y).isfinite()
