"""What generated cases found, each as small as it can be."""

import math

import pyro.contrib.gp.kernels as contrib
import pytest
import torch
from pyro import distributions as dist

from pyro_dgp import (
    ELBO,
    FromFunction,
    FromPyroContrib,
    Gaussian,
    HeteroscedasticGaussian,
    InducingPoints,
    MarginalLikelihood,
    MissingOutputs,
    Mixture,
    MonteCarlo,
    Prediction,
    Variational,
    predict,
    scores,
)
from pyro_dgp.likelihoods.moments import Moments
from tests.examples import OneLayer
from tests.generated.parts import squared_exponential


@pytest.mark.parametrize("kernel", [FromFunction(squared_exponential), FromPyroContrib(contrib.Matern32(2))])
def test_kernels_of_others_take_no_rows(kernel):
    """As a joint draw of functions does that has seen no point so far."""
    covariance, x, none = kernel(), torch.randn(1, 3, 2), torch.zeros(4, 1, 0, 2)
    assert covariance.matrix(none, x).shape == (4, 1, 0, 3) and covariance.matrix(none).shape == (4, 1, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("wide", [1e12, 1e18])
def test_quantiles_of_a_mixture_with_one_wide_component(wide, dtype):
    """``0.5 Phi(q) + 0.5 Phi(q / wide)`` is 0.3 where ``Phi(q)`` is 0.1."""
    scale = torch.tensor([[1.0], [wide]], dtype=dtype)
    weights = torch.tensor([0.5, 0.5], dtype=dtype).log()
    found = Mixture(dist.Normal(torch.zeros(2, 1, dtype=dtype), scale), weights).quantile(
        torch.tensor([0.3], dtype=dtype)
    )
    assert float(found) == pytest.approx(float(dist.Normal(0.0, 1.0).icdf(torch.tensor(0.1))), rel=1e-4)


def missing_in_groups():
    x, y = torch.randn(3, 6, 1), torch.randn(3, 6, 2)
    y[0, :2, 0] = y[2, 5, 1] = torch.nan
    model = OneLayer(likelihood=MissingOutputs(Gaussian(2)), outputs=2)
    guide = Variational(model, InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    return guide, x, y


@pytest.mark.usefixtures("local")
def test_densities_of_groups_with_missing_outputs():
    guide, x, y = missing_in_groups()
    prediction = predict(guide, x, batch_size=4)
    found = prediction.log_prob(y)
    each = dist.Normal(prediction.mean, prediction.variance.sqrt()).log_prob(y.nan_to_num())
    torch.testing.assert_close(found, each.where(~y.isnan(), 0.0).sum(-1))


def test_scores_leave_out_an_output_that_no_row_has():
    def components(rows):
        return Mixture(dist.Normal(torch.zeros(1, 4, 2), torch.ones(1, 4, 2)), torch.zeros(1))

    class Observed:
        takes_missing = True
        moments = Moments(torch.zeros(1, 4, 2), torch.ones(1, 4, 2))

    y = torch.tensor([[1.0, torch.nan]] * 4)
    mixture = components(None)
    mixture.component_log_prob = lambda value: mixture.components.log_prob(value.nan_to_num())[..., 0]
    figures = scores(Prediction(lambda rows: mixture, 4, torch.Size([2])), y, torch.tensor([10.0, 3.0]))
    assert figures["rmse"] == pytest.approx(1.0) and figures["rmse_original"] == pytest.approx(10.0)
    assert figures["crps"] > 0 and figures["crps_original"] == pytest.approx(10 * figures["crps"])
    assert figures["nll_original"] == pytest.approx(figures["nll"] + math.log(10))


@pytest.mark.parametrize("make", [lambda g: ELBO(3)(g.model, g), lambda g: MarginalLikelihood(g.model)])
@pytest.mark.usefixtures("local")
def test_one_row_of_one_data_set(make):
    """Targets ``(1, 1)`` are those of one row of each of one data set, and not of one row with an axis too many."""
    x, y = torch.randn(1, 3, 1), torch.randn(1, 3)
    guide = Variational(OneLayer(), InducingPoints(3), MonteCarlo(1))
    guide.initialize(x, y)
    objective = make(guide)
    found = [objective(x[:, row : row + 1], y[:, row : row + 1]).detach() for row in range(3)]
    if isinstance(objective, MarginalLikelihood):
        variance = float(guide.model.gp(x).variance[0, 0, 0].detach()) + 0.04
        wanted = -dist.Normal(0.0, variance**0.5).log_prob(y[0])
        torch.testing.assert_close(torch.stack(found).flatten(), wanted, rtol=1e-6, atol=1e-6)
    else:
        torch.testing.assert_close(sum(found) / 3, objective(x, y).detach())


@pytest.mark.parametrize("term", ["expected_log_prob", "log_expected_power"])
@pytest.mark.parametrize("noise", [1e-4, 0.1])
def test_noise_beyond_all_numbers_has_gradients(term, noise):
    likelihood = HeteroscedasticGaussian(variance=noise).float()
    mean = torch.tensor([[0.0, 60.0], [0.0, -60.0]], dtype=torch.float32, requires_grad=True)
    variance = torch.tensor([[1.0, 40.0]], dtype=torch.float32).expand(2, 2)
    y, f = torch.zeros(2, dtype=torch.float32), Moments(mean, variance)
    power = () if term == "expected_log_prob" else (0.5,)
    terms = getattr(likelihood.conditional(), term)(y, f, *power)
    terms.sum().backward()
    assert bool(torch.isfinite(terms).all() and torch.isfinite(mean.grad).all())
