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
        torch.testing.assert_close(divergence(mean, scale, kind == "full"), expected)


@pytest.mark.parametrize("groups", [(), (3,), (2,)])
@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_derivatives(kind, groups):
    """With means for each of some components, which share the scales, too."""
    mean, scale = values(kind, groups)
    lower = torch.ones(4, 4).tril() if kind == "full" else 1.0
    divergence = lambda mean, scale: Divergence.apply(mean, scale * lower, kind == "full")
    several = torch.randn(2, *mean.shape)
    torch.testing.assert_close(divergence(several, scale), torch.stack([divergence(each, scale) for each in several]))
    for means in (mean, several):
        inputs = [means.requires_grad_(), scale.requires_grad_()]
        assert torch.autograd.gradcheck(divergence, inputs)
        assert torch.autograd.gradgradcheck(divergence, inputs)
