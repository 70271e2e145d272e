import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroSample
from torch.distributions import biject_to, kl_divergence

from pyro_dgp import RBF, FromFunction, GaussianProcess, InducingPoints, LinearMean, Projection, module_local_parameters
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.kernels.stationary import StationaryCovariance
from tests.examples import OneLayer, TwoSites


def prior(outputs=1, per_output=False, rows=6, batch=()):
    kernel = RBF(2, outputs if per_output else None, lengthscale=0.8)
    gp = GaussianProcess(kernel, LinearMean(2, outputs), outputs, jitter=1e-10)
    with module_local_parameters(gp):
        return gp(torch.randn(*batch, rows, 2))


@pytest.mark.parametrize("per_output", [False, True])
def test_log_prob_is_that_of_the_multivariate_normal(per_output):
    p = prior(3, per_output)
    f = torch.randn(6, 3)
    k = p.covariance_matrix.expand(3, 6, 6) + 1e-10 * torch.eye(6)
    expected = sum(dist.MultivariateNormal(p.mean[:, d], k[d]).log_prob(f[:, d]) for d in range(3))
    torch.testing.assert_close(p.log_prob(f), expected)


def test_shapes_over_batches_and_samples():
    p = prior(2, batch=(4, 5))
    assert p.batch_shape == (4, 5) and p.event_shape == (6, 2)
    draws = p.rsample((3,))
    assert draws.shape == (3, 4, 5, 6, 2)
    assert p.log_prob(draws).shape == (3, 4, 5)
    assert p.variance.shape == p.mean.shape == (4, 5, 6, 2)


def test_draws_have_the_mean_and_covariance():
    p = prior(2, True, rows=3)
    draws = p.rsample((40_000,)) - p.mean
    for d in range(2):
        sample = draws[:, :, d].T @ draws[:, :, d] / len(draws)
        torch.testing.assert_close(sample, p.covariance_matrix[d], atol=0.04, rtol=0)


def test_expanding_keeps_the_type_and_the_covariance_is_not_built_for_nothing(monkeypatch):
    calls = []
    monkeypatch.setattr(StationaryCovariance, "matrix", lambda self, x, z=None: calls.append(1))
    p = prior()
    wide = p.expand((4,))
    assert isinstance(wide, FunctionPrior) and wide.batch_shape == (4,)
    assert p.mean.shape == (6, 1) and p.variance.shape == (6, 1)
    assert calls == []


def test_a_registered_kl_survives_plates():
    p = prior()
    q = InducingPoints(4).create(p, hidden=False)(p)
    with pyro.plate("copies", 3):
        pass
    assert kl_divergence(q.expand((3,)), p.expand((3,))).shape == (3,)
    torch.testing.assert_close(kl_divergence(q.expand((3,)), p.expand((3,)))[1], q.regularizer)


def test_whitening_is_a_bijection_with_its_jacobian():
    p = prior(2, True)
    eps = torch.randn(6, 2)
    f = p.unwhiten(eps)
    torch.testing.assert_close(p.whiten(f), eps)
    transform = biject_to(p.support)
    torch.testing.assert_close(transform(eps), f)
    normal = dist.Normal(0.0, 1.0).expand([6, 2]).to_event(2)
    density = normal.log_prob(eps) - transform.log_abs_det_jacobian(eps, f)
    torch.testing.assert_close(density, p.log_prob(f))


def test_parameters_are_read_at_the_call_and_the_same_state_scores_the_same():
    gp = GaussianProcess(RBF())
    gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    p = gp(torch.randn(4, 1))
    f = torch.randn(4, 1)
    torch.testing.assert_close(p.log_prob(f), p.log_prob(f))
    torch.testing.assert_close(p.log_prob(f), p.expand((1,)).log_prob(f)[0])


@pytest.mark.parametrize("make", [OneLayer, TwoSites])
def test_works_without_targets_and_with_another_number_of_rows(make):
    model = make()
    assert model(torch.randn(5, 1)).shape == (5,)
    assert model(torch.randn(9, 1)).shape == (9,)


def test_bad_inputs_are_one_sentence():
    gp = GaussianProcess(RBF())
    with pytest.raises(ValueError, match=r"shape \(\.\.\., N, D\), got \(5,\)"):
        gp(torch.randn(5))
    with pytest.raises(TypeError, match="float32 and the parameters of the Gaussian process are float64"):
        gp(torch.randn(5, 1, dtype=torch.float32))
    with pytest.raises(TypeError, match="are real numbers, not int64: pass x.to"):
        gp(torch.arange(5)[:, None])
    without_parameters = GaussianProcess(FromFunction(lambda a, b: a @ b.mT), Projection(torch.eye(1)))
    with pytest.raises(TypeError, match="float32 and the parameters of the Gaussian process are float64"):
        without_parameters(torch.randn(5, 1, dtype=torch.float32))
    x = torch.zeros(3, 1)
    with pytest.raises(RuntimeError, match="has no Cholesky factor .* since rows 0 and 1 of the inputs coincide"):
        GaussianProcess(RBF(), jitter=1e-20)(x).rsample()
    x[0] = torch.nan
    with pytest.raises(RuntimeError, match="NaN or infinity"):
        gp(x).rsample()


def test_arrays_are_refused_with_the_remedy():
    model = OneLayer()
    x = torch.randn(4, 1)
    with pytest.raises(TypeError, match=r"not ndarray: use torch.as_tensor\(x\)"):
        model(x.numpy())
    with pytest.raises(TypeError, match=r"y is ndarray, not a tensor"):
        pyro.poutine.trace(model).get_trace(x, x[:, 0].numpy()).log_prob_sum()
