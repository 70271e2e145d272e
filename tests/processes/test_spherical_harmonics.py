"""Spherical harmonics against quadrature on the sphere, and kernels against their spectra."""

import math

import numpy
import pytest
import torch

from pyro_dgp import (
    ELBO,
    RBF,
    ActivationFeatures,
    ArcCosine,
    DeepGP,
    GaussianProcess,
    InducingPoints,
    Matern12,
    Matern52,
    MonteCarlo,
    Orthogonal,
    Spherical,
    SphericalHarmonics,
    Variational,
    fit,
    predict,
)
from pyro_dgp.internal.gegenbauer import coefficients, fundamental_set, gegenbauer, multiplicity, nodes
from pyro_dgp.processes.spherical_harmonics import spectrum

KERNELS = {
    "arc-cosine 0": lambda: ArcCosine(0),
    "arc-cosine 1": lambda: ArcCosine(1),
    "arc-cosine 2": lambda: ArcCosine(2, variance=2.0),
    "matern 1/2": lambda: Spherical(Matern12(lengthscale=0.8)),
    "matern 5/2": lambda: Spherical(Matern52(lengthscale=0.5, variance=1.5)),
    "rbf": lambda: Spherical(RBF(lengthscale=0.7)),
}


def on_sphere(number, dimension):
    x = torch.randn(number, dimension)
    return x / x.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("dimension", [2, 3, 5, 9])
def test_harmonics_are_orthonormal_and_add_up(dimension):
    """Of the sphere in 3 dimensions the means are integrals by a product rule; in others the addition theorem says the same."""
    x, z = on_sphere(7, dimension), on_sphere(6, dimension)
    harmonics = []
    for level in range(4):
        points, gain = fundamental_set(dimension, level)
        assert len(points) == multiplicity(dimension, level) and torch.linalg.cond(gain) < 200
        y, w = (gain @ gegenbauer(points @ each.mT, level + 1, dimension)[level] for each in (x, z))
        expected = len(points) * gegenbauer(x @ z.mT, level + 1, dimension)[level]
        torch.testing.assert_close(y.mT @ w, expected, rtol=1e-8, atol=1e-8)
        harmonics.append((points, gain, level))
    if dimension == 3:
        heights, weights = (torch.as_tensor(v) for v in numpy.polynomial.legendre.leggauss(12))
        turns = torch.arange(24) * 2 * math.pi / 24
        radius = (1 - heights.square()).sqrt()
        grid = torch.stack(
            [
                (radius[:, None] * torch.cos(turns)).reshape(-1),
                (radius[:, None] * torch.sin(turns)).reshape(-1),
                heights[:, None].expand(12, 24).reshape(-1),
            ],
            -1,
        )
        mass = (weights[:, None] / 48).expand(12, 24).reshape(-1)
        values = torch.cat([g @ gegenbauer(p @ grid.mT, level + 1, 3)[level] for p, g, level in harmonics])
        torch.testing.assert_close((values * mass) @ values.mT, torch.eye(16), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("dimension", "sizes"), [(3, [1, 3, 5, 7]), (4, [1, 4, 9, 16]), (9, [1, 9, 44, 156]), (2, [1, 2, 2, 2])]
)
def test_levels_have_their_sizes(dimension, sizes):
    assert [multiplicity(dimension, level) for level in range(4)] == sizes


@pytest.mark.parametrize("dimension", [2, 3, 6])
def test_coefficients_of_a_rectifier_are_those_in_closed_form(dimension):
    """``E max(0, t) = Gamma(d / 2) / (2 sqrt(pi) Gamma((d + 1) / 2))`` and ``E max(0, t) t = 1 / (2 d)``."""
    t = nodes(dimension, torch.zeros(()))
    found = coefficients(t.clamp_min(0.0), 4, dimension)
    first = math.gamma(dimension / 2) / (2 * math.sqrt(math.pi) * math.gamma((dimension + 1) / 2))
    torch.testing.assert_close(found[:2], torch.tensor([first, 1 / (2 * dimension)]))
    assert found[3].abs() < 1e-12  # odd levels above 1 vanish


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("inputs", [1, 3])
@pytest.mark.filterwarnings("ignore:.* of at most .* harmonics of")
def test_kernels_are_rebuilt_from_their_spectra_and_what_is_left_is_never_negative(name, inputs):
    gp = GaussianProcess(KERNELS[name]())
    gp.kernel.weight_variance = 0.7
    gp.kernel.bias_variance = 1.3
    prior = gp(torch.randn(9, inputs))
    before = None
    for size in (4, 30, 200):
        basis = SphericalHarmonics(size).create(prior, hidden=False).basis
        a = basis.columns(prior)
        left = (prior.covariance_matrix - a.mT @ a)[0].detach()
        assert torch.linalg.eigvalsh(left).min() > -1e-9 * float(prior.variance.detach().max())
        assert basis.size <= size and (before is None or (left.diagonal() <= before + 1e-9).all())
        before = left.diagonal()
        root = basis.root(prior)[0].detach()
        covariance = spectrum(prior.covariance, int(basis.levels[-1]) + 1, inputs + 1)[0].detach()
        assert float(root[0, 0]) == pytest.approx(1 / float(covariance[0].sqrt()))
    # a smooth kernel is all there at 200 harmonics; the rough ones keep what the levels above hold
    share = float(before.max() / prior.variance.detach().max())
    assert share < {"rbf": 1e-3, "matern 5/2": 0.1, "arc-cosine 2": 0.01, "arc-cosine 1": 0.02}.get(name, 0.35)


def test_the_zonal_kernel_is_its_formula():
    kernel = Spherical(Matern52(lengthscale=0.5, variance=1.5), ard=2)
    kernel.weight_variance = torch.tensor([0.5, 2.0])
    kernel.bias_variance = 0.3
    x, z = torch.randn(4, 2), torch.randn(5, 2)

    def lifted(v):
        return torch.cat([v * torch.tensor([0.5, 2.0]).sqrt(), torch.full((len(v), 1), 0.3**0.5)], 1)

    a, b = lifted(x), lifted(z)
    u, v = (each / each.norm(dim=-1, keepdim=True) for each in (a, b))
    inner = Matern52(lengthscale=0.5, variance=1.5)()
    expected = a.norm(dim=-1)[:, None] * b.norm(dim=-1) * inner.matrix(u[None], v[None])[0]
    torch.testing.assert_close(kernel().matrix(x[None], z[None])[0], expected)
    torch.testing.assert_close(kernel().diagonal(x[None])[0], kernel().matrix(x[None])[0].diagonal())
    with pytest.raises(ValueError, match="one lengthscale"):
        Spherical(Matern52(ard=2))


def test_gradients():
    gp = GaussianProcess(Spherical(Matern52(), outputs=2), num_outputs=2)
    basis = SphericalHarmonics(20).create(gp(torch.randn(6, 2)), hidden=False).basis
    names, start = zip(*gp.named_parameters(), strict=True)

    def columns(x, *values):
        return basis.columns(torch.func.functional_call(gp, dict(zip(names, values, strict=True)), (x,)))

    inputs = [torch.randn(3, 2).requires_grad_(), *[p.detach().clone().requires_grad_() for p in start]]
    assert torch.autograd.gradcheck(columns, inputs)


@pytest.mark.parametrize(
    "family", [SphericalHarmonics(40), Orthogonal(SphericalHarmonics(10), InducingPoints(6))], ids=str
)
def test_a_deep_model_learns_and_is_restored(family):
    torch.manual_seed(0)
    x = torch.rand(80, 2) * 4 - 2
    y = x[:, 0].abs() - 1 + 0.05 * torch.randn(80)
    model = DeepGP(x, 2, 2, kernel="arc-cosine")
    guide = Variational(model, family, MonteCarlo(3))
    guide.initialize(x, y)
    fit(ELBO(80)(model, guide), x, y, steps=200, batch_size=80, learning_rate=0.05)
    assert (predict(guide, x).mean - y).square().mean().sqrt() < 0.5 * y.std()
    again = Variational(model, family, MonteCarlo(3))
    again.load_state_dict(guide.state_dict())
    torch.manual_seed(1)
    expected = predict(guide, x).mean
    torch.manual_seed(1)
    torch.testing.assert_close(predict(again, x).mean, expected)


def test_another_kernel_and_other_inputs_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"its kernel is Stationary: take ArcCosine\(\)"):
        SphericalHarmonics().create(GaussianProcess(Matern52())(torch.randn(4, 2)), hidden=False)
    gp = GaussianProcess(ArcCosine(1))
    process = SphericalHarmonics(10).create(gp(torch.randn(4, 2)), hidden=False)
    with pytest.raises(ValueError, match="those of 2 inputs and it has 3"):
        process(gp(torch.randn(4, 3)))
    with pytest.raises(ValueError, match="at least 1"):
        SphericalHarmonics(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_levels_and_columns_are_the_same_in_single_precision_and_gradients_finite(dtype):
    torch.manual_seed(0)
    x = torch.randn(12, 3, dtype=torch.float64)
    gp = GaussianProcess(ArcCosine(1)).to(dtype)
    basis = SphericalHarmonics(60).create(gp(x.to(dtype)), hidden=False).basis
    assert basis.levels.tolist() == [0, 1, 2, 4]
    restored = SphericalHarmonics(60).restored_basis(basis.state_dict())
    columns = restored.columns(gp(x.to(dtype)))
    assert columns.dtype == dtype
    exact = basis.double().columns(GaussianProcess(ArcCosine(1)).double()(x))
    torch.testing.assert_close(columns.double(), exact, rtol=1e-3, atol=1e-5)
    slopes = torch.autograd.grad(columns.square().sum(), list(gp.parameters()))
    assert all(torch.isfinite(slope).all() for slope in slopes)
    units = ActivationFeatures(9, "relu").create(gp(x.to(dtype)), hidden=False).basis
    assert units.levels.tolist() == [0, 1, 2, 4, 6]


def test_far_fewer_harmonics_than_asked_for_are_warned_of():
    prior = GaussianProcess(ArcCosine(1))(torch.randn(3, 127))
    with pytest.warns(
        UserWarning, match=r"1 of at most 128 harmonics .* the next one makes them 129: take SphericalHarmonics\(129\)"
    ):
        assert SphericalHarmonics(128).create(prior, hidden=False).basis.size == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_levels_do_not_depend_on_the_lengthscale_at_the_start(dtype):
    x, sizes = torch.randn(20, 2, dtype=dtype), []
    for lengthscale in (0.3, 1.0, 3.0):
        kernel = Spherical(RBF(lengthscale=lengthscale)).to(dtype)
        sizes.append(SphericalHarmonics(128).create(GaussianProcess(kernel)(x), hidden=False).basis.levels.tolist())
    assert sizes == [list(range(11))] * 3
    basis = SphericalHarmonics(80).create(GaussianProcess(ArcCosine(1).to(dtype))(x), hidden=False).basis
    assert basis.levels.tolist() == [0, 1, 2, 4, 6, 8, 10]
