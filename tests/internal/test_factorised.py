"""Derivatives that are written out, against finite differences, torch's own factor and its normal density."""

import math

import pytest
import torch
from torch.autograd import forward_ad

from pyro_dgp.internal import linalg
from pyro_dgp.internal.factorised import Factorised, factorised, noisy_factorised
from pyro_dgp.internal.recording import reports

SHAPES = [(1, 2, ()), (2, 2, ()), (1, 3, (2,)), (3, 3, (2,)), (1, 1, ())]


def matrix_and_values(kernels, outputs, batch):
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(*batch, kernels, 4, 4, generator=generator, dtype=torch.float64)
    values = torch.randn(*batch, 4, outputs, generator=generator, dtype=torch.float64)
    return (root @ root.mT + 4 * torch.eye(4, dtype=torch.float64)).requires_grad_(), values.requires_grad_()


def symmetric(matrix):
    return 0.5 * (matrix + matrix.mT)


def product(matrix, values):
    return factorised(symmetric(matrix), 1e-2, "f").times(values)


def density(matrix, values):
    return factorised(symmetric(matrix), 1e-2, "f").log_density(values)


def noisy_density(matrix, values):
    return noisy_factorised(symmetric(matrix), None, "f").log_density(values)


def factor(matrix, values):
    return factorised(symmetric(matrix), 1e-2, "f").scale_tril


@pytest.mark.parametrize(("kernels", "outputs", "batch"), SHAPES)
@pytest.mark.parametrize("function", [product, density, noisy_density, factor])
def test_first_and_second_derivatives_are_those_of_finite_differences(function, kernels, outputs, batch):
    arguments = matrix_and_values(kernels, outputs, batch)
    assert torch.autograd.gradcheck(function, arguments)
    assert torch.autograd.gradgradcheck(function, arguments)


@pytest.mark.parametrize(("kernels", "outputs", "batch"), SHAPES)
def test_values_are_those_of_torch(kernels, outputs, batch):
    matrix, values = matrix_and_values(kernels, outputs, batch)
    with torch.no_grad():
        level = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        jittered = symmetric(matrix) + 1e-2 * level * torch.eye(4)
        plain = torch.linalg.cholesky(jittered)
        normal = torch.distributions.MultivariateNormal(torch.zeros(4), jittered.expand(*batch, outputs, 4, 4))
        expected = normal.log_prob(values.mT).sum(-1)
    torch.testing.assert_close(product(matrix, values), linalg.apply_factor(plain, values))
    torch.testing.assert_close(density(matrix, values), expected)
    torch.testing.assert_close(density(matrix.detach(), values), expected)


def test_values_with_a_batch_that_the_matrix_lacks_have_the_same_gradients():
    matrix, _ = matrix_and_values(1, 2, ())
    values = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1))
    for function in (product, density):
        together = torch.autograd.grad(function(matrix, values).sum(), matrix)[0]
        each = [torch.autograd.grad(function(matrix, one).sum(), matrix)[0] for one in values]
        torch.testing.assert_close(together, torch.stack(each).sum(0))


MATRIX, VALUES = (part.detach() for part in matrix_and_values(1, 2, ()))


def at(scale):
    with reports():  # a mapped function cannot branch where a matrix has no factor
        return density(scale * MATRIX, VALUES) + product(scale * MATRIX, VALUES).square().sum()


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torch_func_differentiates_them():
    """Backwards, forwards, twice and over a batch."""
    scales = torch.tensor([0.5, 1.0, 2.0])
    first = torch.stack([(at(scale + 1e-5) - at(scale - 1e-5)) / 2e-5 for scale in scales])
    second = torch.stack([(at(scale + 1e-4) - 2 * at(scale) + at(scale - 1e-4)) / 1e-8 for scale in scales])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(at))(scales), first, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(torch.func.vmap(torch.func.jacfwd(at))(scales), first, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(torch.func.vmap(torch.func.hessian(at))(scales), second, rtol=1e-5, atol=1e-5)
    total = torch.func.grad(lambda each: torch.func.vmap(at)(each).sum())(scales)
    torch.testing.assert_close(total, first, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_forward_mode_differentiates_them():
    scale = torch.tensor(1.5, requires_grad=True)
    slope = (at(scale.detach() + 1e-5) - at(scale.detach() - 1e-5)) / 2e-5
    for given in (scale, scale.detach()):
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(at(forward_ad.make_dual(given, torch.tensor(1.0)))).tangent
            torch.testing.assert_close(tangent, slope, rtol=1e-6, atol=1e-6)


def test_a_covariance_with_noise_has_jitter_only_where_it_needs_some():
    singular = torch.ones(1, 3, 3).requires_grad_()
    sound = (torch.ones(1, 3, 3) + torch.eye(3)).requires_grad_()
    assert noisy_factorised(sound, None, "f").matrix is sound
    found = noisy_factorised(singular, None, "f")
    assert isinstance(found, Factorised) and found.matrix[0, 0, 0].item() > 1
    with pytest.raises(linalg.NotPositiveDefiniteError, match="'f'"):
        factorised(torch.full((1, 3, 3), math.nan), None, "f")
