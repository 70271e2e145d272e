import inspect
import math

import gpytorch
import numpy as np
import pyro.contrib.gp.kernels as contrib
import pytest
import torch
from pyro import poutine
from pyro.distributions import LogNormal
from pyro.nn import PyroSample

from pyro_dgp import kernels, module_local_parameters
from pyro_dgp.kernels import matern as matern_kernels
from pyro_dgp.kernels import radial, rbf
from pyro_dgp.kernels.base import Kernel
from pyro_dgp.kernels.distance import plain_squared_distance, squared_distance
from pyro_dgp.kernels.dot_product import angular

D = 3


@pytest.fixture(autouse=True)
def _several_kernels_of_one_name():
    with module_local_parameters():
        yield


def distance(x, z, lengthscale):
    return math.sqrt(sum(((a - b) / s) ** 2 for a, b, s in zip(x, z, lengthscale, strict=True)))


def arc_cosine(order):
    def formula(x, z, p):
        u = np.append(x * np.sqrt(p["weight_variance"]), math.sqrt(p["bias_variance"]))
        v = np.append(z * np.sqrt(p["weight_variance"]), math.sqrt(p["bias_variance"]))
        lengths = np.linalg.norm(u) * np.linalg.norm(v)
        t = math.acos(min(1.0, u @ v / lengths))
        j = {
            0: math.pi - t,
            1: math.sin(t) + (math.pi - t) * math.cos(t),
            2: 3 * math.sin(t) * math.cos(t) + (math.pi - t) * (1 + 2 * math.cos(t) ** 2),
        }[order]
        return p["variance"] / math.pi * lengths**order * j

    return formula


def matern(polynomial, root):
    def formula(x, z, p):
        r = root * distance(x, z, p["lengthscale"])
        return p["variance"] * polynomial(r) * math.exp(-r)

    return formula


def rational_quadratic(x, z, p):
    squared = distance(x, z, p["lengthscale"]) ** 2
    return p["variance"] * (1 + squared / (2 * p["alpha"])) ** -p["alpha"]


def periodic(x, z, p):
    parts = zip(x, z, p["lengthscale"], p["period"], strict=True)
    return p["variance"] * math.exp(-2 * sum((math.sin(math.pi * (a - b) / q) / s) ** 2 for a, b, s, q in parts))


# name: (constructor of a kernel with parameters per dimension, the formula at one pair of distinct points)
CASES = {
    "RBF": (kernels.RBF, lambda x, z, p: p["variance"] * math.exp(-0.5 * distance(x, z, p["lengthscale"]) ** 2)),
    "Matern12": (kernels.Matern12, matern(lambda r: 1.0, 1.0)),
    "Matern32": (kernels.Matern32, matern(lambda r: 1 + r, math.sqrt(3))),
    "Matern52": (kernels.Matern52, matern(lambda r: 1 + r + r * r / 3, math.sqrt(5))),
    "RationalQuadratic": (kernels.RationalQuadratic, rational_quadratic),
    "Periodic": (kernels.Periodic, periodic),
    "Linear": (kernels.Linear, lambda x, z, p: float(np.sum(p["variance"] * x * z))),
    "ArcCosine0": (lambda ard=None, outputs=None: kernels.ArcCosine(0, ard, outputs), arc_cosine(0)),
    "ArcCosine1": (lambda ard=None, outputs=None: kernels.ArcCosine(1, ard, outputs), arc_cosine(1)),
    "ArcCosine2": (lambda ard=None, outputs=None: kernels.ArcCosine(2, ard, outputs), arc_cosine(2)),
    "Constant": (lambda ard=None, outputs=None: kernels.Constant(outputs), lambda x, z, p: p["variance"]),
    "White": (lambda ard=None, outputs=None: kernels.White(outputs), lambda x, z, p: 0.0),
}
COMBINED = {
    "Sum": lambda outputs=None: kernels.RBF(D, outputs) + kernels.Linear(D, outputs),
    "Product": lambda outputs=None: kernels.RBF(D, outputs) * kernels.Linear(D, outputs),
    "Scaled": lambda outputs=None: kernels.Scaled(kernels.RBF(D, outputs), outputs, 2.0),
    "Spherical": lambda outputs=None: kernels.Spherical(kernels.Matern52(outputs=outputs), D, outputs),
    "ActiveDims": lambda outputs=None: kernels.ActiveDims(kernels.RBF(2, outputs), [0, 2]),
    "FromGPyTorch": lambda outputs=None: kernels.FromGPyTorch(
        gpytorch.kernels.RBFKernel(ard_num_dims=D, batch_shape=torch.Size([] if outputs is None else [outputs]))
    ),
    "FromFunction": lambda outputs=None: kernels.Scaled(
        kernels.FromFunction(lambda x, z: (1 + x @ z.mT) ** 2), outputs, 2.0
    ),
    "FromPyroContrib": lambda outputs=None: kernels.FromPyroContrib(contrib.RBF(D, lengthscale=torch.ones(D))),
}
ABSTRACT = {"Kernel", "Stationary", "Covariance"}


def all_kernels(outputs=None):
    simple = {name: (lambda m=make: m(D, outputs)) for name, (make, _) in CASES.items()}
    return simple | {name: (lambda m=make: m(outputs)) for name, make in COMBINED.items()}


def randomise(kernel):
    for parameter in kernel.parameters():
        parameter.data = 0.4 * torch.randn_like(parameter)
    return kernel


def values(kernel):
    names = [name.split(".")[-1].removesuffix("_unconstrained") for name, _ in kernel.named_parameters()]
    return {name: getattr(kernel, name).detach().numpy() for name in names}


def test_every_kernel_of_the_package_is_in_these_tables():
    classes = {n for n, c in vars(kernels).items() if inspect.isclass(c) and issubclass(c, Kernel)} - ABSTRACT
    assert classes == {name.rstrip("012") if name.startswith("Arc") else name for name in CASES} | set(COMBINED)


@pytest.mark.parametrize("name", CASES)
def test_formula(name):
    make, formula = CASES[name]
    kernel = randomise(make(D))
    x, z = torch.randn(4, D), torch.randn(5, D)
    matrix = kernel().matrix(x[None], z[None])
    p = {k: v if v.ndim else float(v) for k, v in values(kernel).items()}
    expected = [[formula(a, b, p) for b in z.numpy()] for a in x.numpy()]
    torch.testing.assert_close(matrix[0], torch.tensor(expected), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", all_kernels())
def test_diagonal_and_symmetry_and_positive_definiteness(name):
    covariance = randomise(all_kernels()[name]())()
    x = torch.randn(2, 1, 6, D)
    matrix = covariance.matrix(x)
    assert matrix.shape == (2, 1, 6, 6)
    torch.testing.assert_close(covariance.diagonal(x), matrix.diagonal(dim1=-2, dim2=-1), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(matrix, matrix.mT)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-9


@pytest.mark.parametrize("name", all_kernels())
def test_batches_are_loops(name):
    covariance = randomise(all_kernels()[name]())()
    x, z = torch.randn(3, 1, 4, D), torch.randn(1, 5, D)
    looped = torch.stack([covariance.matrix(part, z) for part in x])
    torch.testing.assert_close(covariance.matrix(x, z), looped, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in all_kernels() if n != "FromPyroContrib"])
def test_a_kernel_per_output_is_a_stack_of_kernels(name):
    stacked = randomise(all_kernels(2)[name]())
    x = torch.randn(1, 6, D)
    matrix = stacked().matrix(x)
    assert matrix.shape == (2, 6, 6)
    for output in range(2):
        single = all_kernels()[name]()
        parts = {k: v[output] for k, v in stacked.state_dict().items() if v.dim() > 0}
        state = {k: parts[k].reshape(v.shape) if k in parts else v for k, v in single.state_dict().items()}
        single.load_state_dict(state)
        torch.testing.assert_close(single().matrix(x)[0], matrix[output])


@pytest.mark.parametrize("name", [n for n in all_kernels() if n not in ("FromPyroContrib", "FromGPyTorch")])
def test_gradcheck(name):
    kernel = randomise(all_kernels()[name]())
    names, start = zip(*[(n, p.detach().clone()) for n, p in kernel.named_parameters()], strict=True)

    def call(x, z, *parameters):
        def read():
            covariance = kernel()
            return covariance.matrix(x[None], z[None]), covariance.matrix(x[None]), covariance.diagonal(x[None])

        modules = dict(kernel.named_modules())
        saved = []
        for full, value in zip(names, parameters, strict=True):
            owner, _, attribute = full.rpartition(".")
            saved.append((modules[owner], attribute, modules[owner]._parameters.pop(attribute)))
            object.__setattr__(modules[owner], attribute, value)
        try:
            return read()
        finally:
            for owner, attribute, parameter in saved:
                object.__delattr__(owner, attribute)
                owner._parameters[attribute] = parameter

    x, z = torch.randn(3, D), torch.randn(2, D)
    inputs = [x.requires_grad_(), z.requires_grad_(), *[value.requires_grad_() for value in start]]
    assert torch.autograd.gradcheck(call, inputs)


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("outputs", [(), (2,)], ids=["one variance", "a variance per output"])
@pytest.mark.parametrize("between", [True, False])
def test_written_out_slopes_equal_autograd_of_the_plain_formula(name, outputs, between):
    """Values, gradients and gradients of gradients, where the variance has an axis that the points lack and where not."""
    home = rbf if name == "rbf" else matern_kernels
    plain, formula = getattr(home, name), getattr(home, f"{name}_slope")
    points = [torch.randn(1, 4, 3), *([torch.randn(1, 5, 3)] if between else [])]
    inputs = [tensor.requires_grad_() for tensor in (torch.rand(*outputs, 1, 1) + 0.1, *points)]

    def fast(variance, x, z=None):
        return radial.Radial(plain, formula)(x, z, variance)

    def slow(variance, x, z=None):
        return variance * plain(plain_squared_distance(x, z))

    torch.testing.assert_close(fast(*inputs), slow(*inputs))
    assert torch.autograd.gradcheck(fast, inputs)
    assert torch.autograd.gradgradcheck(fast, inputs)


@pytest.mark.parametrize("make", [kernels.Matern12, kernels.Matern32, kernels.Matern52, kernels.RBF])
def test_coinciding_points_do_not_pull_at_each_other(make):
    """Of Matern 1/2, whose slope at r = 0 is infinite, too: what is left are the pulls of the third point."""
    covariance = make(D)()
    point, other = torch.randn(1, D), torch.randn(1, D)
    x = torch.cat([point, point, other]).requires_grad_()
    (found,) = torch.autograd.grad(covariance.matrix(x[None]).sum(), x)
    pair = torch.cat([point, other]).requires_grad_()
    (expected,) = torch.autograd.grad(covariance.matrix(pair[None, :1], pair[None, 1:]).sum() * 2, pair)
    torch.testing.assert_close(found, torch.cat([expected[:1], expected[:1], 2 * expected[1:]]))


TWICE_DIFFERENTIABLE = {
    "RBF": kernels.RBF,
    "Matern32": kernels.Matern32,
    "Matern52": kernels.Matern52,
    "RationalQuadratic": kernels.RationalQuadratic,
    "Periodic": kernels.Periodic,
    "ArcCosine of order 2": lambda ard: kernels.ArcCosine(2, ard),
}


@pytest.mark.parametrize("name", TWICE_DIFFERENTIABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_second_derivatives_hold_where_two_points_coincide(name, dtype):
    """Rounding leaves squared distances of points that coincide a little above or below zero, or at zero."""
    covariance = TWICE_DIFFERENTIABLE[name](6)()
    points = torch.randn(40, 6).to(dtype)

    def by_first(first, second):
        """Derivatives of k(x_n, z_n) by the first input of x_n."""
        first = first.clone().requires_grad_()
        total = covariance.matrix(first[None], second[None]).diagonal(dim1=-2, dim2=-1).sum()
        return torch.autograd.grad(total, first, create_graph=True)[0][:, 0]

    move = torch.zeros(6, dtype=torch.float64)
    move[0] = 1e-5
    at = points.double()
    expected = (by_first(at, at + move) - by_first(at, at - move)) / 2e-5
    covariance, second = TWICE_DIFFERENTIABLE[name](6).to(dtype)(), points.clone().requires_grad_()
    (mixed,) = torch.autograd.grad(by_first(points, second).sum(), second)
    torch.testing.assert_close(mixed[:, 0].double(), expected.detach(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("make", "fourth"), [(kernels.Matern52, 25.0), (kernels.RBF, 3.0), (kernels.RationalQuadratic, 6.0)]
)
def test_fourth_derivatives_at_zero_are_the_variances_of_curvatures(make, fourth):
    x = torch.zeros(1, 1, 1, requires_grad=True)
    value = make()().matrix(x, torch.zeros(1, 1, 1)).sum()
    found = []
    for _ in range(4):
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        value = slope.sum()
        found.append(value.detach())
    assert torch.stack(found).tolist() == pytest.approx([0.0, found[1].item(), 0.0, fourth])


@pytest.mark.parametrize("make", [kernels.RBF, kernels.RationalQuadratic])
def test_distances_that_overflow_have_no_covariance(make):
    assert float(make()().matrix(torch.full((1, 1, 1), 1e200), torch.zeros(1, 1, 1)).detach()) == 0.0


def test_gradients_of_the_second_points_alone_are_found():
    x, z = torch.randn(1, 4, D), torch.randn(1, 5, D, requires_grad=True)
    covariance = kernels.Matern52(D)()
    weights = torch.randn(4, 5)
    (alone,) = torch.autograd.grad((covariance.matrix(x, z) * weights).sum(), z)
    (beside, _) = torch.autograd.grad((covariance.matrix(x.requires_grad_(), z) * weights).sum(), (z, x))
    torch.testing.assert_close(alone, beside)
    fixed = radial.Radial(matern_kernels.matern52, matern_kernels.matern52_slope)
    (found,) = torch.autograd.grad((fixed(x.detach(), z, torch.ones(1, 1)) * weights).sum(), z)
    expected = torch.ones(1, 1) * matern_kernels.matern52(plain_squared_distance(x.detach(), z))
    torch.testing.assert_close(found, *torch.autograd.grad((expected * weights).sum(), z))


def test_a_large_cotangent_of_the_diagonal_costs_no_digits():
    x = torch.randn(5, D, requires_grad=True)
    weights = torch.randn(5, 5)
    (expected,) = torch.autograd.grad((squared_distance(x, None) * weights).sum(), x)
    (found,) = torch.autograd.grad((squared_distance(x, None) * (weights + 1e12 * torch.eye(5))).sum(), x)
    torch.testing.assert_close(found, expected)


def test_squared_distance_is_accurate_far_from_the_origin():
    x = 1e4 + torch.randn(5, 2)
    z = 1e4 + torch.randn(6, 2)
    torch.testing.assert_close(squared_distance(x, z), torch.cdist(x, z).square(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_angular_part_has_the_derivative_of_its_formula(order):
    cosine = (torch.rand(10) * 1.9 - 0.95).requires_grad_()
    assert torch.autograd.gradcheck(lambda c: angular(c, order), cosine)


def test_kernels_agree_with_gpytorch():
    x, z = torch.randn(6, D), torch.randn(4, D)
    pairs = [
        (kernels.RBF(D, lengthscale=0.8), gpytorch.kernels.RBFKernel(ard_num_dims=D)),
        (kernels.Matern12(D, lengthscale=0.8), gpytorch.kernels.MaternKernel(0.5, ard_num_dims=D)),
        (kernels.Matern32(D, lengthscale=0.8), gpytorch.kernels.MaternKernel(1.5, ard_num_dims=D)),
        (kernels.Matern52(D, lengthscale=0.8), gpytorch.kernels.MaternKernel(2.5, ard_num_dims=D)),
    ]
    for ours, theirs in pairs:
        theirs.lengthscale = 0.8
        torch.testing.assert_close(ours().matrix(x[None], z[None])[0], theirs(x, z).to_dense())
        adapted = kernels.FromGPyTorch(theirs)()
        torch.testing.assert_close(adapted.matrix(x[None], z[None])[0], theirs(x, z).to_dense())


def test_priors_of_a_gpytorch_kernel_are_warned_of():
    """Training maximised without them, and nothing said so."""
    gpytorch = pytest.importorskip("gpytorch")
    prior = gpytorch.priors.GammaPrior(3.0, 6.0)
    with pytest.warns(UserWarning, match=r"does not read the priors of its kernel \(base_kernel.lengthscale_prior\)"):
        kernels.FromGPyTorch(gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(lengthscale_prior=prior)))


def test_adapter_of_pyro_contrib_agrees_and_draws_a_prior_once_a_call():
    theirs = contrib.RBF(D)
    theirs.lengthscale = PyroSample(LogNormal(0.0, 1.0))
    adapter = kernels.FromPyroContrib(theirs)
    with poutine.trace() as trace:
        covariance = adapter()
    lengthscale = trace.trace.nodes["kernel.lengthscale"]["value"]
    x = torch.randn(5, D)
    expected = torch.exp(-0.5 * torch.cdist(x, x).square() / lengthscale**2)
    torch.testing.assert_close(covariance.matrix(x[None])[0], expected)
    torch.testing.assert_close(covariance.matrix(x[None])[0], expected)


def test_a_prior_on_a_lengthscale_is_one_site_and_the_same_state_scores_the_same():
    kernel = kernels.RBF(D)
    kernel.lengthscale = PyroSample(LogNormal(0.0, 1.0).expand([D]).to_event(1))
    with poutine.trace() as trace:
        covariance = kernel()
    assert trace.trace.nodes["lengthscale"]["value"].shape == (D,)
    x = torch.randn(1, 4, D)
    torch.testing.assert_close(covariance.matrix(x), covariance.matrix(x))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-15), (torch.float32, 2e-6)])
def test_steps_tell_small_angles(dtype, error):
    """A cosine near 1 does not: it left 1e-8 at rows that coincide, and drawn functions changed by its root, 1e-4, from call to call."""
    x = torch.randn(6, D, dtype=dtype)
    z = torch.cat([x, x + 1e-4 * torch.randn(6, D, dtype=dtype)])
    found = kernels.ArcCosine(0).to(dtype)().matrix(x[None], z[None])[0]
    lifted = [
        torch.nn.functional.normalize(torch.nn.functional.pad(each.double(), (0, 1), value=1.0)) for each in (x, z)
    ]
    differences = lifted[0][:, None] - lifted[1][None]
    expected = 1 - 2 * torch.asin(differences.norm(dim=-1) / 2) / math.pi
    assert (found - expected).abs().max() < error
    assert (found.diagonal() == 1).all()


def test_steps_have_the_slope_of_small_angles_in_single_precision():
    """A rounded cosine gave 80 in the place of 0.29 at a distance of 3e-4."""
    slopes = {}
    for dtype in (torch.float32, torch.float64):
        x = torch.full((1, 1, 1), 0.3, dtype=dtype, requires_grad=True)
        near = x.detach() + torch.tensor([[0.0], [1e-5], [1e-4], [3e-4], [1e-2]], dtype=torch.float32).to(dtype)
        values = kernels.ArcCosine(0).to(dtype)().matrix(x, near).flatten()
        slopes[dtype] = torch.stack([torch.autograd.grad(each, x, retain_graph=True)[0].squeeze() for each in values])
    assert slopes[torch.float32][0] == 0
    assert torch.allclose(slopes[torch.float32].double(), slopes[torch.float64], rtol=2e-2)
    x, z = torch.randn(1, 4, 2, dtype=torch.float64, requires_grad=True), torch.randn(1, 3, 2, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda x: kernels.ArcCosine(0).double()().matrix(x, z), x)


def test_wrong_arguments_are_one_sentence():
    with pytest.raises(ValueError, match="orders 0, 1 and 2, not 3"):
        kernels.ArcCosine(3)
    with pytest.raises(ValueError, match="needs two kernels or more"):
        kernels.Sum(kernels.RBF())


def test_a_prior_of_the_wrong_shape_says_which_is_wanted():
    kernel = kernels.RBF(2)
    for prior in (LogNormal(0.0, 1.0), LogNormal(0.0, 1.0).expand([3]).to_event(1)):
        kernel.lengthscale = PyroSample(prior)
        with pytest.raises(ValueError, match=r"where \(2,\) is wanted: write a prior as PyroSample\(.*expand\(\[2\]\)"):
            kernel()


@pytest.mark.parametrize(
    ("make", "name", "shape"),
    [
        (lambda: kernels.RBF(2), "lengthscale", "(2,)"),
        (lambda: kernels.RBF(2, outputs=3), "variance", "(3,)"),
        (lambda: kernels.Linear(2), "variance", "(2,)"),
        (lambda: kernels.Constant(outputs=3), "variance", "(3,)"),
        (lambda: kernels.Periodic(2), "period", "(2,)"),
        (lambda: kernels.ArcCosine(ard=2), "weight_variance", "(2,)"),
        (lambda: kernels.RationalQuadratic(outputs=3), "alpha", "(3,)"),
    ],
)
def test_a_prior_of_the_wrong_shape_is_named(make, name, shape):
    """By its class, and by its path where the kernel is a part of a module."""
    kernel = make()
    setattr(kernel, name, PyroSample(LogNormal(0.0, 1.0)))
    label, wanted = f"{type(kernel).__name__}.{name}", f"has shape () where {shape} is wanted: write a prior as "
    with pytest.raises(ValueError) as alone:
        kernel()
    with pytest.raises(ValueError) as part:
        kernels.Sum(kernel, kernels.White())()
    assert str(alone.value).startswith(f"{label} {wanted}")
    assert str(part.value).startswith(f"{label} (parts.0.{name}) {wanted}")


def test_squared_distance_has_the_derivatives_of_its_formula():
    x, z = torch.randn(2, 1, 4, 3, requires_grad=True), torch.randn(3, 5, 3, requires_grad=True)
    torch.testing.assert_close(squared_distance(x, z), plain_squared_distance(x, z))
    torch.testing.assert_close(squared_distance(x, None), plain_squared_distance(x, None))
    for inputs in ((x, z), (x,)):
        assert torch.autograd.gradcheck(lambda x, z=None: squared_distance(x, z), inputs)
        assert torch.autograd.gradgradcheck(lambda x, z=None: squared_distance(x, z), inputs)
