"""Sums, products and numbers: each is the arithmetic of the matrices, and neutral numbers add nothing."""

import math

import gpytorch
import numpy as np
import pyro.contrib.gp.kernels as contrib
import pytest
import torch
from pyro import poutine
from pyro.distributions import LogNormal
from pyro.nn import PyroSample

from pyro_dgp import (
    RBF,
    ActiveDims,
    Constant,
    FromFunction,
    FromGPyTorch,
    FromPyroContrib,
    GaussianProcess,
    Linear,
    Matern32,
    Product,
    Scaled,
    Sum,
    White,
)

D = 3
PARTS = {
    "plain": lambda: RBF(D, lengthscale=0.8, variance=1.3),
    "per output": lambda: RBF(D, 2, lengthscale=0.8, variance=1.3),
    "sum": lambda: RBF(D) + Linear(D),
    "product of sums": lambda: (RBF(D) + White()) * (Linear(D) + Matern32(D)),
    "active dims": lambda: ActiveDims(RBF(2), [0, 2]),
    "scaled": lambda: Scaled(RBF(D, 2), 2, 3.0),
    "gpytorch": lambda: FromGPyTorch(gpytorch.kernels.RBFKernel(ard_num_dims=D)),
    "contrib": lambda: FromPyroContrib(contrib.RBF(D)),
    "function": lambda: FromFunction(lambda x, z: x @ z.mT),
}
# What is written, and what it does to the entries of a matrix.
WRITTEN = {
    "2 * k": (lambda k: 2 * k, lambda m: 2 * m),
    "k * 2.0": (lambda k: k * 2.0, lambda m: 2 * m),
    "numpy * k": (lambda k: np.float64(2.0) * k, lambda m: 2 * m),
    "k + 0.5": (lambda k: k + 0.5, lambda m: m + 0.5),
    "0.5 + k": (lambda k: 0.5 + k, lambda m: m + 0.5),
    "numpy + k": (lambda k: np.float32(0.5) + k, lambda m: m + 0.5),
    "nested": (lambda k: 3 * (2 * k + 0.5) * Constant(variance=2.0) + 1, lambda m: 6 * (2 * m + 0.5) + 1),
}


@pytest.fixture(autouse=True)
def _several_kernels_of_one_name(local):
    yield


def matrices(kernel, x, z):
    covariance = kernel()
    return covariance.matrix(x), covariance.matrix(x, z), covariance.diagonal(x)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("written", WRITTEN)
def test_a_number_does_to_a_kernel_what_it_does_to_its_matrices(part, written):
    kernel = PARTS[part]()
    make, arithmetic = WRITTEN[written]
    x, z = torch.randn(4, 1, 6, D), torch.randn(1, 5, D)
    before, after = matrices(kernel, x, z), matrices(make(kernel), x, z)
    for plain, changed in zip(before, after, strict=True):
        torch.testing.assert_close(changed, arithmetic(plain))


def test_a_number_is_one_learned_variance_that_starts_there():
    kernel = 2 * RBF(outputs=3)
    assert isinstance(kernel, Scaled) and kernel.variance.shape == ()
    kernel().matrix(torch.randn(1, 4, 1)).sum().backward()
    assert kernel.variance_unconstrained.grad.abs() > 0
    offset = RBF() + 0.5
    assert isinstance(offset, Sum) and isinstance(offset.parts[1], Constant)
    assert torch.isclose(offset.parts[1].variance, torch.tensor(0.5))
    offset().matrix(torch.randn(1, 4, 1)).sum().backward()
    assert offset.parts[1].variance_unconstrained.grad.abs() > 0


def test_zero_plus_and_one_times_add_nothing():
    kernel = RBF()
    for same in (0 + kernel, kernel + 0, 0.0 + kernel, 1 * kernel, kernel * 1, np.float64(1.0) * kernel):
        assert same is kernel
    assert sum([kernel]) is kernel and math.prod([kernel]) is kernel


def test_sum_and_prod_of_a_list():
    parts = [RBF(D), Linear(D), Matern32(D)]
    x = torch.randn(1, 5, D)
    expected = [part().matrix(x) for part in parts]
    total, product = sum(parts), math.prod(parts)
    assert isinstance(total, Sum) and isinstance(product, Product)
    assert len(list(total.parameters())) == len(list(product.parameters())) == 5
    torch.testing.assert_close(total().matrix(x), expected[0] + expected[1] + expected[2])
    torch.testing.assert_close(product().matrix(x), expected[0] * expected[1] * expected[2])


def test_a_scaled_kernel_per_output_stands_in_a_gaussian_process():
    gp = GaussianProcess(2 * (RBF(D, outputs=2) + 0.5), num_outputs=2)
    assert gp(torch.randn(5, D)).covariance_matrix.shape == (2, 5, 5)


def test_a_prior_on_the_number_is_one_site():
    kernel = 2 * RBF()
    kernel.variance = PyroSample(LogNormal(0.0, 1.0))
    with poutine.trace() as trace:
        covariance = kernel()
    drawn = trace.trace.nodes["variance"]["value"]
    x = torch.randn(1, 4, 1)
    torch.testing.assert_close(covariance.matrix(x), drawn * kernel.part().matrix(x))


@pytest.mark.parametrize("number", [-2, 0, -0.5, math.inf, math.nan, np.float64(-1.0)])
def test_numbers_that_are_no_variance_are_refused(number):
    for combine in (lambda k: number * k, lambda k: k * number):
        with pytest.raises(ValueError, match=f"a kernel times a number needs a positive one, a variance, not {number}"):
            combine(RBF())
    if number != 0:
        for combine in (lambda k: number + k, lambda k: k + number):
            with pytest.raises(ValueError, match="a kernel plus a number needs a positive one, a variance, not"):
                combine(RBF())


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (torch.tensor(2.0), "not a tensor: for a scale give a number, and for a prior on it assign a PyroSample"),
        (np.ones(2), "not ndarray: give one, such as RBF()"),
        ("two", "not str: give one"),
        (RBF, r"not the class RBF: make one, RBF\(\.\.\.\)"),
        (gpytorch.kernels.RBFKernel(), r"not a kernel of GPyTorch: wrap it, FromGPyTorch\(kernel\)"),
        (contrib.RBF(1), r"not a kernel of pyro.contrib.gp: wrap it, FromPyroContrib\(kernel\)"),
        (torch.nn.Linear(1, 1), r"not Linear: wrap a function k\(x, z\), FromFunction\(function\)"),
        (lambda x, z: x @ z.mT, r"not function: wrap a function k\(x, z\), FromFunction\(function\)"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.usefixtures("unannotated")
def test_anything_else_is_refused_with_its_remedy(other, sentence):
    for use in (
        lambda: RBF() * other,
        lambda: RBF() + other,
        lambda: Sum(RBF(), other),
        lambda: Scaled(other),
        lambda: ActiveDims(other, [0]),
        lambda: GaussianProcess(other),
        lambda: setattr(GaussianProcess(RBF()), "kernel", other),
        lambda: setattr(2 * RBF(), "part", other),
    ):
        with pytest.raises(TypeError, match=f"a kernel of pyro_dgp is wanted, {sentence}"):
            use()


@pytest.mark.parametrize("other", [torch.tensor(2.0), np.ones(2), "two"], ids=lambda value: type(value).__name__)
def test_what_stands_before_a_kernel_is_refused_too(other):
    for use in (lambda: other * RBF(), lambda: other + RBF()):
        with pytest.raises(TypeError, match="a kernel of pyro_dgp is wanted"):
            use()


@pytest.mark.usefixtures("unannotated")
def test_a_covariance_function_is_no_kernel():
    with pytest.raises(TypeError, match=r"not a covariance function: give the kernel itself, not kernel\(\)"):
        GaussianProcess(RBF()())
