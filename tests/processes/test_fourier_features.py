"""Fourier features against inner products of the RKHS, exact conditionals and closed-form limits."""

import math

import numpy
import pytest
import torch

from pyro_dgp import (
    ELBO,
    RBF,
    ActiveDims,
    Constant,
    DeepGP,
    FourierFeatures,
    GaussianProcess,
    Matern12,
    Matern32,
    Matern52,
    MonteCarlo,
    Variational,
    White,
    fit,
    predict,
)
from pyro_dgp.processes.fourier_columns import FourierColumns
from pyro_dgp.processes.matern_terms import MaternTerm
from tests.examples import OneLayer

KERNELS = [Matern12, Matern32, Matern52]
A, B, RATE, VARIANCE = -0.4, 1.3, 2.7, 1.7


def columns(order, frequencies):
    term = MaternTerm(0, order, torch.tensor([RATE]), torch.tensor([VARIANCE]))
    return FourierColumns(term, torch.tensor([A, B]), frequencies)


def covariance(order):
    """The kernel with this rate as a covariance function, by the library's kernels, which have tests of their own."""
    kernel = KERNELS[order](lengthscale=math.sqrt(2 * order + 1) / RATE, variance=VARIANCE)()
    return lambda x, z: kernel.matrix(x[None, :, None], z[None, :, None])[0].detach()


def phi(x, frequencies):
    angles = 2 * math.pi / (B - A) * torch.arange(1, frequencies + 1)[:, None] * (x - A)
    return torch.cat([torch.ones(1, len(x)), torch.cos(angles), torch.sin(angles)])


def derivative(values, x):
    """Derivatives of rows, each a function of its own column of x."""
    return torch.stack([torch.autograd.grad(row.sum(), x, create_graph=True)[0] for row in values])


def kernel_of_lag(r, order):
    polynomial = {0: 1.0, 1: 1 + RATE * r, 2: 1 + RATE * r + (RATE * r) ** 2 / 3}[order]
    return VARIANCE * polynomial * torch.exp(-RATE * r)


def state_covariance(order, lag):
    """Covariances of ``f^(i)(x + lag)`` and ``f^(j)(x)``, ``(-1)^j k^(i + j)(lag)``, by automatic differentiation of the kernel."""
    r = torch.tensor(lag, requires_grad=True)
    derivatives = [kernel_of_lag(r, order)]
    for _ in range(2 * order):
        derivatives.append(torch.autograd.grad(derivatives[-1], r, create_graph=True)[0])
    rows = range(order + 1)
    return torch.tensor(
        [[(-1) ** j * float(derivatives[i + j].detach()) * (lag > 0 or (i + j) % 2 == 0) for j in rows] for i in rows]
    )


@pytest.mark.parametrize("order", [0, 1, 2])
def test_their_covariance_is_the_inner_product_of_the_rkhs_by_quadrature(order):
    """Eqs. 38, 41 and 44 of Hensman et al. 2018 in one formula: ``int L g L h / q + s_g(a)' P^-1 s_h(a)``."""
    frequencies = 3
    nodes, weights = (torch.as_tensor(v) for v in numpy.polynomial.legendre.leggauss(80))
    x = (A + (B - A) * (torch.cat([nodes, -torch.ones(1)]) + 1) / 2).requires_grad_()
    state = [phi(x, frequencies)]
    for _ in range(order + 1):
        state.append(derivative(state[-1], x))
    binomial = [math.comb(order + 1, j) * RATE ** (order + 1 - j) for j in range(order + 2)]
    applied = sum(c * s for c, s in zip(binomial, state, strict=True))[:, :-1].detach()
    at_a = torch.stack(state[: order + 1])[..., -1].detach()
    stationary = state_covariance(order, 0.0)
    intensity = {0: 2, 1: 4, 2: 16 / 3}[order] * RATE ** (2 * order + 1) * VARIANCE
    expected = (applied * weights * (B - A) / 2) @ applied.T / intensity
    expected = expected + at_a.T @ torch.linalg.solve(stationary, at_a)
    root = columns(order, frequencies).root()[0]
    torch.testing.assert_close(root @ root.T, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_their_covariances_are_those_of_functions_given_on_a_grid(order):
    """``<g, h> = lim g(X)' K(X, X)^-1 h(X)`` from below, and ``cov(u, f(z)) = lim k(z, X) K(X, X)^-1 phi(X)`` wherever z is."""
    k, features = covariance(order), columns(order, 2)
    root = features.root()[0]
    x = torch.linspace(A, B, {0: 1601, 1: 401, 2: 121}[order])
    near = torch.tensor([[], [1e-5, 1e-4, 1e-3], [5e-4, 1e-3, 4e-3]][order])  # the slopes at the ends
    x = torch.cat([x, A + near, B - near])
    weights = torch.linalg.solve(k(x, x), phi(x, 2).T)
    torch.testing.assert_close(phi(x, 2) @ weights, root @ root.T, rtol=0, atol=3e-3 * float((root @ root.T).max()))
    z = torch.tensor([A - 3.0, A - 0.5, A, A + 0.3, 0.5, B, B + 0.01, B + 1.2])
    torch.testing.assert_close(features.cross(z)[0].T, k(z, x) @ weights, rtol=0, atol=(2e-4, 2e-4, 2e-2)[order])


@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_residual_falls_to_what_periodic_functions_cannot_say(order):
    """Free are ``f^(j)(a) - f^(j)(b)`` for j up to the order: the residual falls to the variance that these explain."""
    x = torch.linspace(A, B, 61)
    k = covariance(order)
    rows = torch.stack([state_covariance(order, float(each - A))[0] for each in x])  # f(x) and the state at a
    free = (rows - (rows * torch.tensor([1.0, -1.0, 1.0])[: order + 1]).flip(0)).T  # by symmetry of a and b
    here, apart = state_covariance(order, 0.0), state_covariance(order, B - A)
    gram = 2 * here - apart - apart.T
    limit = (free * torch.linalg.solve(gram, free)).sum(0)
    distances = []
    for frequencies in (4, 16, 64, 256):
        a = columns(order, frequencies).whitened(x)[0]
        residual = k(x, x).diagonal() - a.square().sum(0)
        assert residual.min() > -1e-9
        distances.append(float((residual - limit).abs().max()))
    assert all(later < 0.6 * earlier for earlier, later in zip(distances, distances[1:], strict=False))
    assert distances[-1] < {0: 4e-3, 1: 2e-4, 2: 5e-4}[order]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_whitened_columns_are_those_of_the_root_and_have_derivatives(order):
    term = MaternTerm(0, order, torch.tensor([[2.0, 3.0]]), torch.tensor([[0.5, 2.0]]))
    features = FourierColumns(term, torch.tensor([A, B]), 3)
    x = torch.tensor([A - 0.7, 0.1, 0.9, B + 0.2])
    torch.testing.assert_close(features.root() @ features.whitened(x), features.cross(x).expand(1, 2, 7, 4))

    def whitened(x, rate, variance):
        return FourierColumns(MaternTerm(0, order, rate, variance), torch.tensor([A, B]), 3).whitened(x)

    inputs = [v.requires_grad_() for v in (x, torch.tensor([2.0, 3.0]), torch.tensor([0.5, 2.0]))]
    assert torch.autograd.gradcheck(whitened, inputs)


def additive(dims, kernel=Matern32, **named):
    return sum(ActiveDims(kernel(**named), [d]) for d in range(dims))


@pytest.mark.parametrize("outputs", [None, 2])
def test_a_sum_has_the_features_of_its_parts_and_those_of_a_constant(outputs):
    gp = GaussianProcess(2.0 * additive(2, outputs=outputs) + Constant(outputs, 0.3) + White(outputs), num_outputs=2)
    prior = gp(torch.randn(7, 2))
    process = FourierFeatures(40, margin=1.0).create(prior, hidden=False)
    a, kernel = process.basis.columns(prior), 2.0 * additive(2) + Constant(None, 0.3)
    assert a.shape == (1 if outputs is None else 2, 2 * 81 + 1, 7) and process.basis.size == 163
    torch.testing.assert_close(a.mT @ a, kernel().matrix(prior.x[None]).expand(a.shape[0], 7, 7), atol=0.02, rtol=0)
    root = process.basis.root(prior)
    assert root.shape == (a.shape[0], 163, 163)
    single = FourierFeatures(40, margin=1.0).create(gp(torch.randn(7, 2)), hidden=True)
    assert single.q.scale.max() == 0.01


def test_the_marginal_is_that_of_the_dense_formulas():
    gp = GaussianProcess(additive(2), num_outputs=2)
    prior = gp(torch.randn(3, 5, 2))
    process = FourierFeatures(4).create(gp(torch.randn(9, 2)), hidden=False)
    process.q.mean.data.normal_()
    process.q.scale.data.normal_()
    q, basis = process(prior), process.basis
    root = basis.root(prior)[0]
    kuu, scale = root @ root.T, process.q.scale.tril()
    cross = root @ basis.columns(prior)[:, 0]
    for d in range(2):
        weights = torch.linalg.solve(kuu, cross)
        mean = weights.mT @ (root @ process.q.mean[d])
        spread = root @ scale[d] @ scale[d].T @ root.T
        joint = prior.covariance_matrix[:, 0] - weights.mT @ (kuu - spread) @ weights
        torch.testing.assert_close(q.mean[..., d], mean)
        torch.testing.assert_close(q.covariance_matrix[:, d], joint)
        torch.testing.assert_close(q.variance[..., d], joint.diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_deep_model_learns_with_them_and_its_guide_is_restored(covariance):
    torch.manual_seed(0)
    x = torch.rand(80, 2) * 4 - 2
    y = torch.sign(x[:, 0]) + 0.5 * x[:, 1] + 0.05 * torch.randn(80)
    model = DeepGP(x, 2, 1)
    for gp in (model.hidden[0], model.top):
        gp.kernel = additive(2 if gp is model.hidden[0] else 1, lengthscale=1.0)
    guide = Variational(model, FourierFeatures(12, covariance), MonteCarlo(5))
    guide.initialize(x, y)
    fit(ELBO(80)(model, guide), x, y, steps=300, batch_size=80, learning_rate=0.05)
    prediction = predict(guide, x)
    assert (prediction.mean - y).square().mean().sqrt() < 0.45 * y.std()
    again = Variational(model, FourierFeatures(12, covariance), MonteCarlo(5))
    again.load_state_dict(guide.state_dict())
    torch.manual_seed(1)
    expected = predict(guide, x).mean
    torch.manual_seed(1)
    torch.testing.assert_close(predict(again, x).mean, expected)


@pytest.mark.parametrize(
    ("kernel", "dims", "message"),
    [
        (lambda: RBF(), 1, "smoothness 1/2, 3/2 and 5/2"),
        (lambda: Matern32(), 2, "a Matern kernel of 2 inputs"),
        (lambda: Matern32() * Matern32(), 1, "holds Product"),
        (lambda: White(), 1, "white noise"),
    ],
)
def test_another_kernel_is_refused_in_a_sentence(kernel, dims, message):
    with pytest.raises(ValueError, match=message):
        FourierFeatures().create(GaussianProcess(kernel())(torch.randn(4, dims)), hidden=False)


def test_bad_arguments_are_one_sentence():
    with pytest.raises(ValueError, match="one pair for all inputs"):
        FourierFeatures(3, interval=(-math.inf, 1.0))
    with pytest.raises(ValueError, match="a finite number of 0 or more, got nan"):
        FourierFeatures(3, margin=math.nan)
    for arguments, message in (
        (dict(num_frequencies=0), "whole number, 1 or more"),
        (dict(interval=(1.0, 1.0)), "from a finite number to a larger"),
        (dict(margin=-0.1), "share of the range"),
        (dict(covariance="none"), "'full', 'diagonal'"),
    ):
        with pytest.raises(ValueError, match=message):
            FourierFeatures(**arguments)
    gp = GaussianProcess(additive(2))
    process = FourierFeatures(3).create(gp(torch.randn(4, 2)), hidden=False)
    with pytest.raises(ValueError, match=r"inputs \[0, 1\], and its kernel has \[0\]: initialise"):
        process(GaussianProcess(additive(1))(torch.randn(4, 2)))


@pytest.mark.parametrize("columns", [1, 3])
def test_inputs_of_other_columns_are_refused(columns):
    x = torch.rand(10, 2)
    model = OneLayer(ActiveDims(Matern32(), [1]))
    guide = Variational(model, FourierFeatures(3), MonteCarlo(1))
    guide.initialize(x, torch.randn(10))
    with pytest.raises(ValueError, match=f"those of 2 inputs and it has {columns}: pass inputs of as many columns"):
        predict(guide, torch.rand(4, columns))
