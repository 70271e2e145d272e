"""Kernels of inputs that lie up to a million lengthscales apart or from the origin, in single and in double precision."""

import inspect
import math

import pytest
import torch

from pyro_dgp import ELBO, InducingPoints, MonteCarlo, Variational, fit, kernels, module_local_parameters, predict
from pyro_dgp.kernels.distance import plain_squared_distance, squared_distance
from pyro_dgp.kernels.stationary import Stationary
from tests.examples import OneLayer

D = 3


def of_distance(formula):
    """A kernel of the scaled distance r, from differences (N, M, D)."""
    return lambda difference, kernel: formula((difference / scales(kernel.lengthscale)).square().sum(-1).sqrt(), kernel)


def scales(parameter):
    return parameter.double()[..., None, None, :]


def periodic(difference, kernel):
    chord = torch.sin(math.pi * difference / scales(kernel.period)) / scales(kernel.lengthscale)
    return torch.exp(-2 * chord.square().sum(-1))


def rational_quadratic(r, kernel):
    alpha = kernel.alpha.double()[..., None, None]
    return (1 + r.square() / (2 * alpha)) ** -alpha


#: Correlations, of differences that are taken first.
FORMULAS = {
    "RBF": of_distance(lambda r, _: torch.exp(-0.5 * r.square())),
    "Matern12": of_distance(lambda r, _: torch.exp(-r)),
    "Matern32": of_distance(lambda r, _: (1 + 3**0.5 * r) * torch.exp(-(3**0.5) * r)),
    "Matern52": of_distance(lambda r, _: (1 + 5**0.5 * r + 5 / 3 * r.square()) * torch.exp(-(5**0.5) * r)),
    "RationalQuadratic": of_distance(rational_quadratic),
    "Periodic": periodic,
}


@pytest.fixture(autouse=True)
def _several_kernels_of_one_name():
    with module_local_parameters():
        yield


def made(name, outputs, dtype):
    """A kernel in a precision, with parameters drawn at random."""
    torch.manual_seed(1)
    kernel = getattr(kernels, name)(D, outputs)
    for parameter in kernel.parameters():
        parameter.data = 0.4 * torch.randn_like(parameter)
    return kernel.to(dtype)


def points(spread, offset, dtype):
    """Rows over a range in lengthscales, and others beside them at all distances: one unit in the last place, none, lengthscales."""
    torch.manual_seed(2)
    x = offset + spread * torch.rand(60, D)
    nudges = torch.cat([torch.zeros(10, D), 0.02 * torch.randn(10, D), torch.randn(20, D), spread * torch.rand(20, D)])
    x, z = x.to(dtype), (x + nudges).to(dtype)
    z[0] = torch.nextafter(x[0], torch.full_like(x[0], torch.inf))
    return x, z


def expected(name, kernel, x, z):
    difference = x.double().unsqueeze(-2) - z.double().unsqueeze(-3)
    return kernel.variance.double()[..., None, None] * FORMULAS[name](difference, kernel)


def test_every_stationary_kernel_is_in_this_table():
    found = {n for n, c in vars(kernels).items() if inspect.isclass(c) and issubclass(c, Stationary)}
    assert found - {"Stationary"} == set(FORMULAS)


@pytest.mark.parametrize("outputs", [None, 2], ids=["one kernel", "a kernel per output"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", FORMULAS)
@torch.no_grad()
def test_values_are_those_of_exact_differences(name, dtype, outputs):
    """To 1e-5 of the variance in single and 1e-6 in double precision, at the very inputs that the kernel gets."""
    kernel = made(name, outputs, dtype)
    largest = float(kernel.variance.detach().max())
    for spread, offset in ((1.0, 0.0), (1e3, 0.0), (1e4, 0.0), (1e6, 0.0), (10.0, 1e3), (10.0, 1e6), (100.0, -3e4)):
        x, z = points(spread, offset, dtype)
        for second in (z, x):
            found = kernel().matrix(x[None], second[None])
            assert found.dtype == dtype
            wanted = expected(name, kernel, x, second).reshape(found.shape)
            error = ((found.double() - wanted).abs() / largest).max()
            assert float(error) < (1e-5 if dtype == torch.float32 else 1e-6), (spread, offset, float(error))
        within = kernel().matrix(x[None]).double()
        wanted = expected(name, kernel, x, x).reshape(within.shape)
        torch.testing.assert_close(within, wanted, rtol=0, atol=1e-5 * largest)
        torch.testing.assert_close(within.diagonal(dim1=-2, dim2=-1), kernel().diagonal(x[None]).double())


@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_gradients_between_near_and_far_rows_are_those_of_exact_differences(name):
    """Whichever set is first, whichever holds more rows, and where a few rows of a set are far."""
    kernel = made(name, None, torch.float32)
    near, _ = points(1.0, 0.0, torch.float32)
    for spread, offset in ((10.0, 1e6), (1e6, 0.0), (300.0, 0.0), (10.0, 100.0)):
        far, _ = points(spread, offset, torch.float32)
        some = torch.cat([near[:9] + 0.1, far[:2]])
        for first, second in ((near, far), (far, near), (near, some), (some, near)):
            for x, z in ((first[:11], second), (first, second[:11])):
                x, z = x.clone().requires_grad_(), z.clone().requires_grad_()
                wanted = expected(name, kernel, x, z).reshape(len(x), len(z))
                weights = torch.randn(wanted.shape)
                for found in (kernel().matrix(x[None], z[None])[0], kernel().from_points(x[None]).to(z[None])[0]):
                    torch.testing.assert_close(
                        found.double(), wanted, rtol=0, atol=1e-5 * float(kernel.variance.detach())
                    )
                    slopes = [
                        torch.autograd.grad((k.double() * weights).sum(), (x, z), retain_graph=True)
                        for k in (found, wanted)
                    ]
                    for a, b in zip(*slopes, strict=True):
                        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()) + 1e-30)


@pytest.mark.parametrize("name", ["RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic"])
def test_a_row_whose_squared_distance_single_precision_does_not_hold(name):
    """Such as a fill value of 1e20."""
    kernel = made(name, None, torch.float32)
    near, _ = points(1.0, 0.0, torch.float32)
    far = torch.cat([near[:1], torch.full((1, D), 1e20, dtype=torch.float32)]).requires_grad_()
    for k in (
        kernel().matrix(near[None], far[None])[0],
        kernel().matrix(far[None], near[None])[0].mT,
        kernel().from_points(near[None]).to(far[None])[0],
    ):
        assert float(k[:, 1].detach().abs().max()) < 1e-6 and float(k[:, 0].detach().min()) > 1e-3
        assert all(torch.isfinite(g).all() for g in torch.autograd.grad(k.sum(), (far, *kernel.parameters())))


@pytest.mark.parametrize(("spread", "offset"), [(1.0, 0.0), (20.0, 0.0), (1e3, 0.0), (1e6, 0.0), (10.0, 1e6)])
@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_in_single_precision_are_near_those_of_exact_differences(name, spread, offset):
    kernel = made(name, None, torch.float32)
    x, z = points(spread, offset, torch.float32)
    z = torch.cat([z[:1], z[20:]])  # without points that coincide, where Matern 1/2 has no gradient
    weights = torch.randn(len(x), len(z))
    found_points = [tensor.clone().requires_grad_() for tensor in (x, z)]
    exact_points = [tensor.double().requires_grad_() for tensor in (x, z)]
    matrix = kernel().matrix(*(tensor[None] for tensor in found_points))[0]
    found = torch.autograd.grad((matrix * weights.float()).sum(), [*found_points, *kernel.parameters()])
    wanted = torch.autograd.grad(
        (expected(name, kernel, *exact_points).reshape(matrix.shape) * weights).sum(),
        [*exact_points, *kernel.parameters()],
    )
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-4 * float(b.abs().max()))


@pytest.mark.parametrize("between", [True, False])
@pytest.mark.parametrize("spread", [1.0, 1e4], ids=["product", "difference"])
def test_both_ways_have_the_derivatives_of_their_formula(spread, between):
    x, z = torch.randn(1, 4, D), torch.randn(1, 5, D)
    with torch.no_grad():
        x[:, 3] += spread
        z[:, :2] += spread
    inputs = [tensor.requires_grad_() for tensor in ((x, z) if between else (x,))]

    def correlation(x, z=None):
        return kernels.Matern52.correlation(x, z, torch.full((1, 1), 2.0))

    def squared(x, z=None):
        return squared_distance(x, z) / spread**2

    torch.testing.assert_close(squared(*inputs), plain_squared_distance(x, z if between else None) / spread**2)
    assert torch.autograd.gradcheck(correlation, inputs)
    assert torch.autograd.gradgradcheck(correlation, inputs)
    assert torch.autograd.gradcheck(squared, inputs, eps=1e-6 * spread)


def test_usual_inputs_take_the_matrix_product(monkeypatch):
    """Standardised ones of a few lengthscales, which training speed rests on."""
    monkeypatch.setattr(torch, "cdist", None)
    for dtype in (torch.float32, torch.float64):
        kernel = kernels.Matern52(8, lengthscale=8**0.5).to(dtype)
        x, z = torch.randn(1, 1000, 8, dtype=dtype), torch.randn(1, 100, 8, dtype=dtype)
        kernel().matrix(x, z), kernel().matrix(z)


def test_no_rows_give_an_empty_matrix():
    x, none = torch.randn(1, 3, D), torch.zeros(1, 0, D)
    for first, second, shape in ((x, none, (1, 3, 0)), (none, x, (1, 0, 3)), (none, None, (1, 0, 0))):
        for dtype in (torch.float32, torch.float64):
            args = (first.to(dtype), None if second is None else second.to(dtype))
            assert kernels.RBF(D).to(dtype)().matrix(*args).shape == shape


def test_predictions_of_a_guide_that_is_cast_to_single_precision_move_little():
    """One layer, groups of rows over a thousand lengthscales, trained in double precision at the jitter of single precision."""
    torch.manual_seed(0)
    x = 0.01 * (1000 * torch.rand(30, 1) + torch.randn(30, 6)).reshape(-1, 1)
    y = torch.sin(200 * x[:, 0]) + 0.1 * torch.randn(len(x))
    guide = Variational(OneLayer(kernels.RBF(lengthscale=0.01), jitter=1e-6), InducingPoints(90), MonteCarlo(1))
    guide.initialize(x, y)
    fit(ELBO(len(x))(guide.model, guide), x, y, steps=60, learning_rate=0.05)
    double = predict(guide, x)
    mean, deviation = double.mean, double.variance.sqrt()  # computed now, before the cast
    torch.nn.ModuleList([guide, *guide.model_modules]).float()
    single = predict(guide, x.float())
    assert float((single.mean.double() - mean).abs().max()) < 1e-3
    assert float((single.variance.double().sqrt() - deviation).abs().max()) < 1e-3
