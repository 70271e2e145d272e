"""Gradients of processes whose matrices are nearly singular: the jitter follows the kernel's variance."""

import pytest
import torch

from pyro_dgp import RBF, GaussianProcess, module_local_parameters
from pyro_dgp.processes import AmortizedInducingPoints, InducingPoints, Orthogonal

FAMILIES = [
    *[InducingPoints(20, covariance=form) for form in ("full", "diagonal", "delta", "prior")],
    InducingPoints(20, per_output=True),
    AmortizedInducingPoints(8),
    Orthogonal(InducingPoints(10), InducingPoints(10)),
]


@pytest.mark.parametrize("jitter", [None, 1e-4])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_gradients_in_variance_and_lengthscale_are_differences(family, jitter):
    """At long lengthscales the jitter decides what the points explain, and a larger variance brings more of it."""
    x = torch.linspace(-1, 1, 25)[:, None]
    kernel = RBF(lengthscale=6.0, variance=1.5)
    gp = GaussianProcess(kernel, num_outputs=2, jitter=jitter)

    def value():
        q = process(gp(x))
        return (q.mean * weights[0]).sum() + (q.variance * weights[1]).sum() + q.regularizer

    with module_local_parameters(gp):
        process = family.create(gp(x), hidden=False)
        weights = torch.randn(2, 25, 2)
        for name, parameter in process.named_parameters():
            if "mean" in name:
                parameter.data.add_(torch.randn_like(parameter))
        parameters = [parameter for parameter in kernel.parameters() if parameter.requires_grad]
        assert len(parameters) == 2
        for parameter, found in zip(parameters, torch.autograd.grad(value(), parameters), strict=True):
            ends = []
            for step in (-1e-4, 2e-4):
                parameter.data.add_(step)
                ends.append(float(value().detach()))
            assert float(found) == pytest.approx((ends[1] - ends[0]) / 2e-4, rel=1e-4, abs=1e-4)
