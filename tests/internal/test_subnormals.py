"""Numbers below the range of single precision are zero while a model in it trains."""

import pytest
import torch

from pyro_dgp import ELBO, RBF, DeepGP, InducingPoints, Matern32, Variational, fit
from pyro_dgp.internal.subnormals import are_zero, subnormals_as_zero


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_zero_during_a_fit_in_single_precision_alone(dtype):
    x = torch.linspace(-1, 1, 8, dtype=dtype)[:, None]
    guide = Variational(DeepGP(x, layers=1).to(dtype), InducingPoints(4))
    guide.initialize(x, x[:, 0])
    seen = []
    fit(ELBO()(guide.model, guide), x, x[:, 0], steps=2, callback=lambda step, loss: seen.append(are_zero()))
    assert seen == 2 * [dtype is torch.float32] and not are_zero()


def test_a_scope_leaves_the_setting_as_it_was():
    module = torch.nn.Linear(1, 1, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="stop"), subnormals_as_zero(module):
        raise RuntimeError("stop")
    assert not are_zero()
    torch.set_flush_denormal(True)
    try:
        with subnormals_as_zero(module):
            assert are_zero()
        assert are_zero()
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("kernel", [RBF, Matern32])
def test_covariances_far_below_the_precision_are_zero_in_single_precision(kernel):
    """So that their products are no such numbers. Those of double precision stay as they are."""
    z = torch.tensor([[0.0], [1.0], [7.0], [9.0], [13.5], [25.0]])
    found = {}
    for dtype in (torch.float32, torch.float64):
        at = z.to(dtype).unsqueeze(0).requires_grad_()
        matrix = kernel().to(dtype)().matrix(at[:, :1].detach(), at)
        (slope,) = torch.autograd.grad(matrix.sum(), at)
        found[dtype] = matrix.flatten().detach(), slope.flatten()
    exact = found[torch.float64][0]
    assert (exact > 0).all()
    for single, double in zip(found[torch.float32], found[torch.float64], strict=True):
        torch.testing.assert_close(single.double(), torch.where(exact < 1.4e-14, 0.0, double), rtol=1e-4, atol=0.0)
    assert (found[torch.float32][0] == 0).sum() >= 1
