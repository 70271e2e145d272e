"""The divergence of whitened coefficients from their prior, and its derivatives."""

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from pyro_dgp.processes.divergence import Divergence, plain_divergence


def values(kind, groups):
    torch.manual_seed(0)
    mean = torch.randn(*groups, 2, 4)
    if kind == "diagonal":
        return mean, torch.rand(*groups, 2, 4) + 0.2
    scale = torch.randn(*groups, 2, 4, 4).tril()
    scale.diagonal(dim1=-2, dim2=-1)[..., 1].abs_().neg_()  # factors may have entries below zero on the diagonal
    return mean, scale


@pytest.mark.parametrize("groups", [(), (3,), (2, 3)])
@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_it_is_the_divergence_of_torch(kind, groups):
    mean, scale = values(kind, groups)
    if kind == "diagonal":
        prior = Independent(Normal(torch.zeros_like(mean), 1.0), 1)
        expected = kl_divergence(Independent(Normal(mean, scale), 1), prior).sum(-1)
    else:
        white = MultivariateNormal(torch.zeros_like(mean), torch.eye(4))
        expected = kl_divergence(MultivariateNormal(mean, scale @ scale.mT), white).sum(-1)
    for divergence in (Divergence.apply, plain_divergence):
        torch.testing.assert_close(divergence(mean, scale), expected)


@pytest.mark.parametrize("groups", [(), (3,)])
@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_derivatives(kind, groups):
    inputs = [tensor.requires_grad_() for tensor in values(kind, groups)]
    if kind == "full":
        lower = torch.ones(4, 4).tril()
        divergence = lambda mean, scale: Divergence.apply(mean, scale * lower)
    else:
        divergence = Divergence.apply
    assert torch.autograd.gradcheck(divergence, inputs)
    assert torch.autograd.gradgradcheck(divergence, inputs)
