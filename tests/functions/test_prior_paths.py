"""Draws from priors: their covariances over draws are those of the kernel, by type of kernel."""

from dataclasses import dataclass

import gpytorch
import pytest
import torch

from pyro_dgp import (
    RBF,
    ActiveDims,
    ArcCosine,
    Constant,
    Covariance,
    FromGPyTorch,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Scaled,
    White,
)
from pyro_dgp.functions.joint_path import MOST_POINTS, JointPath
from pyro_dgp.functions.paths import PathRequest
from pyro_dgp.functions.prior_paths import draw_path

KERNELS = {
    "RBF": lambda: RBF(2, variance=1.5),
    "Matern12": lambda: Matern12(2),
    "Matern32": lambda: Matern32(2),
    "Matern52": lambda: Matern52(2),
    "RationalQuadratic": lambda: RationalQuadratic(2, alpha=0.7),
    "Periodic": lambda: Periodic(period=1.3),
    "Linear": lambda: Linear(2),
    "Constant": lambda: Constant(variance=2.0),
    "ArcCosine 0": lambda: ArcCosine(0),
    "ArcCosine 1": lambda: ArcCosine(1),
    "ArcCosine 2": lambda: ArcCosine(2),
    "Scaled": lambda: Scaled(Matern32(), variance=3.0),
    "ActiveDims": lambda: ActiveDims(Linear(1), [1]),
    "Sum": lambda: RBF() + Linear() + Constant(),
    "Product": lambda: (
        RBF(lengthscale=2.0) * Scaled(ActiveDims(Matern12(1), [1]), variance=2.0) * Constant(variance=0.5)
    ),
    "Product of sums": lambda: (RBF() + Constant(variance=0.3)) * (Periodic() + Matern52()),
    "FromGPyTorch": lambda: FromGPyTorch(gpytorch.kernels.MaternKernel(nu=2.5)),
    "product with Linear": lambda: RBF() * Linear(),
}
DRAWN_JOINTLY = {"FromGPyTorch", "product with Linear"}


def request(covariance, draws, outputs=1, name="f"):
    like = torch.zeros(1, 1, 2)
    return PathRequest(name, like, draws, outputs, covariance.diagonal(like).shape[-2], 40)


def points():
    torch.manual_seed(3)
    return torch.rand(5, 2) * 2 - 1


def worst(values, expected):
    """Largest distance of a covariance over draws from the true one, in standard errors; values ``(K, N)``."""
    products = values.unsqueeze(-1) * values.unsqueeze(-2)
    return ((products.mean(0) - expected).abs() / (products.std(0) / len(values) ** 0.5)).max().item()


@pytest.mark.parametrize("name", KERNELS)
def test_covariances_over_draws_are_those_of_the_kernel(name):
    covariance, x = KERNELS[name](), points()
    with torch.no_grad():
        covariance = covariance()
        path = draw_path(covariance, request(covariance, 4000))
        values = path(x[None, None])[:, 0]
        expected = covariance.matrix(x[None])[0]
    assert worst(values, expected) < 4
    moved = expected + 0.2 * expected.diagonal().mean()
    assert worst(values, moved) > 4  # the test sees a fifth of the variance
    assert isinstance(path, JointPath) == (name in DRAWN_JOINTLY)


@pytest.mark.parametrize("outputs", [None, 2])
def test_outputs_are_independent_and_have_kernels_of_their_own(outputs):
    kernel, x = Matern52(2, outputs) + Linear(2, outputs), points()
    if outputs:
        kernel.parts[0].lengthscale = torch.tensor([[0.5, 0.5], [2.0, 3.0]])
        kernel.parts[1].variance = torch.tensor([[0.1, 0.5], [2.0, 3.0]])
    with torch.no_grad():
        covariance = kernel()
        values = draw_path(covariance, request(covariance, 4000, 2))(x[None, None])
        matrices = covariance.matrix(x[None]).expand(2, -1, -1)
    expected = torch.block_diag(*matrices)
    assert worst(values.flatten(1), expected) < 4.5


def test_each_value_is_normal_whatever_the_number_of_frequencies():
    covariance = RBF()()
    few = PathRequest("f", torch.zeros(1, 1, 2), 20_000, 1, 1, 2)
    values = draw_path(covariance, few)(points()[None, None])[:, 0].detach()
    fourth = values.square().square()
    assert ((fourth.mean(0) - 3).abs() / (fourth.std(0) / len(fourth) ** 0.5)).max() < 4


def test_white_noise_is_no_function():
    covariance = (RBF() + White())()
    with pytest.raises(ValueError, match="the kernel of 'h' holds White"):
        draw_path(covariance, request(covariance, 3, name="h"))


@dataclass(frozen=True)
class Nugget(Covariance):
    """A kernel of a user's own: no class that the library knows."""

    part: Covariance

    def matrix(self, x, z=None):
        return self.part.matrix(x, z)

    def diagonal(self, x):
        return self.part.diagonal(x)


class Own(Kernel):
    def __init__(self):
        super().__init__()
        self.part = Matern32()

    def forward(self):
        return Nugget(self.part())


def test_joint_draws_are_kept():
    covariance, x = Own()(), points()
    torch.manual_seed(0)
    with torch.no_grad():
        path = draw_path(covariance, request(covariance, 3, 2))
        values = path(x[None, None])
        again = torch.cat([path(x[None, None, i : i + 1]) for i in (4, 2, 0, 1, 3)], -1)
        torch.testing.assert_close(again, values[..., [4, 2, 0, 1, 3]], atol=1e-4, rtol=0)
        near = path(x[None, None] + 1e-4)
    assert 1e-6 < (near - values).abs().max() < 0.01
    assert path.free[..., :5].all() and not path.free[..., 5:10].any()


def test_joint_draws_made_in_pieces_have_the_covariances_of_the_kernel():
    covariance, x = Own()(), points()
    with torch.no_grad():
        path = draw_path(covariance, request(covariance, 4000))
        values = torch.cat([path(x[None, None, :2]), path(x[None, None, 2:])], -1)[:, 0]
        assert worst(values, covariance.matrix(x[None])[0]) < 4


def test_points_that_come_again_do_not_count_twice():
    covariance, x = Own()(), points()
    with torch.no_grad():
        path = draw_path(covariance, request(covariance, 4000))
        first = path(x[None, None, :3])
        path(x[None, None, :3])
        values = torch.cat([first, path(x[None, None, 3:])], -1)[:, 0]
        assert worst(values, covariance.matrix(x[None])[0]) < 4


def test_joint_draws_refuse_many_points_and_gradients():
    covariance = Own()()
    path = draw_path(covariance, request(covariance, 1, name="h"))
    with pytest.raises(
        ValueError, match="the kernel of 'h' has no random features, .* 2001 points for 1 draws are too many"
    ):
        path(torch.rand(1, 1, MOST_POINTS + 1, 2))
    with pytest.raises(ValueError, match="functions of 'h', .* have no gradient"):
        path(torch.rand(1, 1, 2, 2, requires_grad=True))
