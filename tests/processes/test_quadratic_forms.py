"""Quadratic forms in blocks of rows: held to the formula that keeps all matrices."""

import pytest
import torch

from pyro_dgp.processes import quadratic_forms as module
from pyro_dgp.processes.quadratic_forms import QuadraticForms, quadratic_forms


def numbers(kernels=1, outputs=1, rows=7, rank=3, points=4):
    shapes = (kernels, rows, rank, points), (kernels, rows, rank, points), (outputs, points, points)
    return tuple((0.5 * torch.randn(shape)).requires_grad_() for shape in shapes)


@pytest.mark.parametrize("block", [1, 32, 100, 2**17])
@pytest.mark.parametrize(("kernels", "outputs"), [(1, 1), (1, 3), (3, 3)])
def test_blocks_equal_the_formula_with_its_gradients(kernels, outputs, block, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", block)
    inputs = numbers(kernels, outputs)
    ours, plain = QuadraticForms.apply(*inputs), quadratic_forms(*inputs)
    torch.testing.assert_close(ours, plain)
    assert plain.shape == (outputs, 7)
    weights = torch.randn_like(plain)
    expected = torch.autograd.grad((plain * weights).sum(), inputs)
    for found, wanted in zip(torch.autograd.grad((ours * weights).sum(), inputs), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("kernels", "outputs"), [(1, 2), (2, 2)])
def test_first_and_second_derivatives(kernels, outputs):
    inputs = numbers(kernels, outputs, rows=3)
    assert torch.autograd.gradcheck(QuadraticForms.apply, inputs)
    assert torch.autograd.gradgradcheck(QuadraticForms.apply, inputs)


def test_no_rows_have_no_forms():
    inputs = numbers(rows=0, outputs=2)
    result = QuadraticForms.apply(*inputs)
    assert result.shape == (2, 0)
    assert all((grad == 0).all() for grad in torch.autograd.grad(result.sum(), inputs))
