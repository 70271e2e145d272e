"""log Phi far below zero."""

import math

import pytest
import torch
from scipy.stats import norm

from pyro_dgp import Bernoulli, Ordinal
from pyro_dgp.internal.normal_cdf import log_ndtr


def test_it_is_that_of_scipy():
    z = torch.tensor([-1e4, -60.0, -10.5, -10.0, -9.5, -1.0, 0.0, 3.0, 40.0])
    torch.testing.assert_close(log_ndtr(z), torch.as_tensor(norm.logcdf(z.numpy())), rtol=1e-13, atol=0)


def test_it_has_its_derivatives():
    z = torch.tensor([-30.0, -11.0, -9.0, 0.5], requires_grad=True)
    assert torch.autograd.gradcheck(log_ndtr, z) and torch.autograd.gradgradcheck(log_ndtr, z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("z", [-1e4, -1e6, -1e9])
def test_the_slope_far_below_zero_is_minus_z(z, dtype):
    at = torch.tensor(z, dtype=dtype, requires_grad=True)
    log_ndtr(at).backward()
    assert math.isclose(float(at.grad), -z, rel_tol=1e-5)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Ordinal(3)], ids=["probit", "ordinal"])
def test_wrong_classes_of_large_functions_have_finite_gradients(likelihood):
    f = torch.tensor([[-1e6], [1e6]], dtype=torch.float32, requires_grad=True)
    likelihood.float().given(f).log_prob(torch.tensor([1.0, 0.0])).sum().backward()
    assert bool(torch.isfinite(f.grad).all())
    if isinstance(likelihood, Bernoulli):
        torch.testing.assert_close(f.grad, torch.tensor([[1e6], [-1e6]], dtype=torch.float32))
