"""What is assigned to the attributes of the library's modules: it is set, or refused there and then in a sentence."""

import copy
import importlib
import inspect
import pickle
import pkgutil

import gpytorch
import numpy as np
import pyro
import pyro.contrib.gp.kernels as contrib
import pytest
import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.infer import SVI
from pyro.nn import PyroModule, PyroParam, PyroSample

import pyro_dgp
from pyro_dgp import (
    ELBO,
    NOISE_FLOOR,
    RBF,
    ArcCosine,
    Bernoulli,
    Constant,
    ConstantMean,
    DeepGP,
    DeepKernel,
    FromGPyTorch,
    FromPyroContrib,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Linear,
    LinearCoregionalization,
    LinearMean,
    MonteCarlo,
    Periodic,
    RationalQuadratic,
    Scaled,
    Spherical,
    Variational,
    White,
    Zero,
    fit,
)
from pyro_dgp.internal.assignment import CheckedModule
from tests.examples import OneLayer, regression

# A module for each class that holds parameters by itself.
WITH_PARAMETERS = {
    "RBF": lambda: RBF(3, 2),
    "shared RBF": RBF,
    "Periodic": lambda: Periodic(3),
    "RationalQuadratic": lambda: RationalQuadratic(outputs=2),
    "Linear": lambda: Linear(3),
    "Spherical": lambda: Spherical(RBF(), 3),
    "ArcCosine": lambda: ArcCosine(1, 3),
    "Constant": lambda: Constant(2),
    "White": White,
    "Scaled": lambda: Scaled(RBF(), 2),
    "ConstantMean": lambda: ConstantMean(2),
    "LinearMean": lambda: LinearMean(3, 2),
    "Gaussian": Gaussian,
    "Gaussian of two": lambda: Gaussian(2),
    "LinearCoregionalization": lambda: LinearCoregionalization(3, 2),
    "process": lambda: InducingPoints(4).create(GaussianProcess(RBF())(torch.randn(9, 2)), hidden=False),
}
PARAMETERS = [(name, attribute) for name, make in WITH_PARAMETERS.items() for attribute in make()._pyro_params]


@pytest.fixture(autouse=True)
def _several_modules_of_one_name(local):
    yield


def test_every_module_of_the_package_checks_what_it_is_given():
    """Except guides, whose parts are checked when they are made."""
    unchecked = set()
    for _, name, _ in pkgutil.walk_packages(pyro_dgp.__path__, "pyro_dgp."):
        if name.endswith("__main__"):
            continue
        for label, found in vars(importlib.import_module(name)).items():
            ours = inspect.isclass(found) and found.__module__.startswith("pyro_dgp")
            if ours and found.__module__.startswith("pyro_dgp.guides."):
                continue
            if ours and issubclass(found, PyroModule) and not issubclass(found, CheckedModule):
                unchecked.add(label)
    assert not unchecked


@pytest.mark.parametrize(("name", "attribute"), PARAMETERS)
@pytest.mark.parametrize("number", [0.3, 2, np.float32(0.25)], ids=str)
def test_a_number_fills_the_parameter_and_it_stays_one(name, attribute, number):
    module = WITH_PARAMETERS[name]()
    before = getattr(module, attribute)
    parameter = module._parameters[f"{attribute}_unconstrained"]
    setattr(module, attribute, number)
    after = getattr(module, attribute)
    torch.testing.assert_close(after, torch.full_like(before, float(number)))
    assert module._parameters[f"{attribute}_unconstrained"] is parameter and after.requires_grad
    assert attribute not in vars(module)


@pytest.mark.parametrize(("name", "attribute"), PARAMETERS)
@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray, lambda values: torch.as_tensor(values).tolist()])
def test_values_of_the_right_shape_are_set(name, attribute, kind):
    module = WITH_PARAMETERS[name]()
    values = torch.rand(getattr(module, attribute).shape) + 0.1
    setattr(module, attribute, kind(values))
    torch.testing.assert_close(getattr(module, attribute), values)


@pytest.mark.parametrize(("name", "attribute"), PARAMETERS)
def test_values_of_another_shape_are_refused_with_both(name, attribute):
    module = WITH_PARAMETERS[name]()
    before = getattr(module, attribute).detach().clone()
    shape = tuple(before.shape)
    for wrong in (torch.ones(7, *shape), torch.ones((*shape, 1)), np.ones((*shape, 5))):
        with pytest.raises(ValueError) as error:
            setattr(module, attribute, wrong)
        assert f".{attribute} has shape {shape} and got values of shape {tuple(wrong.shape)}: give" in str(error.value)
    torch.testing.assert_close(getattr(module, attribute), before)


@pytest.mark.parametrize(("name", "attribute"), PARAMETERS)
def test_what_is_no_value_is_refused(name, attribute):
    module = WITH_PARAMETERS[name]()
    for wrong in (None, "0.3", {}, torch.nn.Linear(1, 1)):
        with pytest.raises(TypeError, match=rf"\.{attribute} takes a number or a tensor of shape .*, not "):
            setattr(module, attribute, wrong)
    for prior in (dist.LogNormal(0.0, 1.0), torch.distributions.LogNormal(0.0, 1.0)):
        with pytest.raises(TypeError, match=rf"\.{attribute} takes .*; for a prior assign PyroSample\(distribution\)"):
            setattr(module, attribute, prior)
    with pytest.raises(TypeError, match="would lose its constraint to an nn.Parameter: assign its values"):
        setattr(module, attribute, torch.nn.Parameter(getattr(module, attribute).detach()))
    for bad in (float("nan"), float("inf"), torch.full_like(getattr(module, attribute), float("nan"))):
        with pytest.raises(ValueError, match=rf"\.{attribute} takes .*, not .*(nan|inf)"):
            setattr(module, attribute, bad)


class SetInForward(PyroModule):
    """A model that sets its lengthscale to what it has sampled."""

    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian()

    def forward(self, x, y=None):
        self.gp.kernel.lengthscale = pyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


def test_a_tensor_whose_gradient_would_be_lost_is_refused():
    kernel, other = RBF(), RBF(lengthscale=0.3)
    with pytest.raises(
        TypeError, match=r"RBF.lengthscale takes values, and would lose the gradient .* value.detach\(\)"
    ):
        kernel.lengthscale = other.lengthscale
    kernel.lengthscale = other.lengthscale.detach()
    assert float(kernel.lengthscale.detach()) == pytest.approx(0.3)
    x, y = torch.randn(8, 1), torch.randn(8)
    guide = Variational(SetInForward(), InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    with pytest.raises(TypeError, match=r"assign PyroSample\(distribution\) once, where the model is built"):
        fit(ELBO(8)(guide.model, guide), x, y, steps=1)


def test_values_outside_the_constraint_are_refused():
    kernel, likelihood = RBF(2), Gaussian()
    for wrong in (-0.3, 0, torch.tensor([1.0, -1.0])):
        with pytest.raises(ValueError, match=r"RBF.lengthscale takes numbers above 0, not (-0.3|0|-1): give"):
            kernel.lengthscale = wrong
    with pytest.raises(ValueError, match="Gaussian.variance takes numbers above 0.0001, not 5e-05: give"):
        likelihood.variance = NOISE_FLOOR / 2
    mean = ConstantMean(2)
    mean.constant = -0.3
    assert mean.constant.tolist() == [-0.3, -0.3]


def test_values_take_the_dtype_of_the_parameter():
    kernel = RBF(2).to(torch.float32)
    kernel.lengthscale = torch.tensor([0.5, 1.5], dtype=torch.float64)
    assert kernel.lengthscale.dtype == torch.float32
    with pytest.raises(ValueError, match="takes numbers above 0, not 0: give"):
        RBF().to(torch.float32).lengthscale = 1e-60


def test_the_values_are_a_copy():
    values = torch.ones(2)
    mean = ConstantMean(2)
    mean.constant = values
    values += 1
    assert mean.constant.tolist() == [1, 1]


def test_parameters_and_priors_are_assigned_as_ever():
    kernel = RBF(2)
    kernel.lengthscale = PyroParam(torch.tensor([0.5, 1.5]), constraint=constraints.positive, event_dim=1)
    assert kernel._pyro_params["lengthscale"][0] is constraints.positive
    kernel.lengthscale = 0.7
    torch.testing.assert_close(kernel.lengthscale, torch.tensor([0.7, 0.7]))
    kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    assert pyro.poutine.trace(kernel).get_trace().nodes["lengthscale"]["value"].shape == (2,)
    for value in (0.3, torch.ones(2), [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"RBF.lengthscale has a prior: for a point estimate assign PyroParam\("):
            kernel.lengthscale = value
    kernel.lengthscale = PyroParam(torch.ones(2), constraint=constraints.positive, event_dim=1)
    assert not kernel._pyro_samples


@pytest.mark.parametrize("scope", ["module", "store"])
def test_a_number_that_was_assigned_is_what_the_model_runs_with(scope):
    """Under the global store too, after a first step has put the parameter there."""
    pyro.settings.set(module_local_params=scope == "module")
    x, y = regression(12)
    model = OneLayer()
    guide = Variational(model, InducingPoints(4), MonteCarlo(2))
    guide.initialize(x, y)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.0}), ELBO())
    svi.step(x, y)
    model.gp.kernel.lengthscale = 0.123
    model.likelihood.variance = 0.45
    svi.step(x, y)
    covariance = model.gp(x).covariance_matrix[0]
    torch.testing.assert_close(
        covariance, torch.exp(-0.5 * torch.cdist(x, x).square() / 0.123**2), atol=1e-9, rtol=1e-9
    )
    torch.testing.assert_close(model.likelihood.variance, torch.tensor(0.45))
    if scope == "store":
        torch.testing.assert_close(pyro.param("gp.kernel.lengthscale"), torch.tensor(0.123))


def test_parts_are_checked_when_they_are_assigned():
    gp = GaussianProcess(RBF(), num_outputs=2)
    with pytest.raises(TypeError, match=r"a kernel of pyro_dgp is wanted, not int: give one, such as RBF\(\)"):
        gp.kernel = 3  # type: ignore[assignment]
    with pytest.raises(
        ValueError, match="the kernel has outputs=3 and the Gaussian process num_outputs=2: make them equal"
    ):
        gp.kernel = RBF(outputs=3)
    with pytest.raises(TypeError, match=r"not a number: write ConstantMean\(value=...\) for a learned constant"):
        gp.mean = 3  # type: ignore[assignment]
    gp.kernel, gp.mean = 2 * RBF(outputs=2), ConstantMean(2)  # type: ignore[assignment]
    assert gp(torch.randn(5, 1)).mean.shape == (5, 2)
    gp.mean = None  # type: ignore[assignment]
    assert isinstance(gp.mean, Zero)


def test_the_parts_of_a_deep_gp_are_checked():
    model = DeepGP(torch.randn(6, 2), layers=1)
    with pytest.raises(
        TypeError, match="likelihood of a DeepGP is a Likelihood of pyro_dgp, not str: for any other write"
    ):
        model.likelihood = "bernoulli"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="top of a DeepGP is a GaussianProcess of pyro_dgp, not RBF"):
        model.top = RBF()
    model.likelihood = Bernoulli()
    assert set(model(torch.randn(6, 2)).tolist()) <= {0.0, 1.0}


@pytest.mark.usefixtures("unannotated")
@pytest.mark.parametrize("wrong", [RBF(), torch.nn.Linear(1, 1), 3], ids=["ours", "network", "number"])
def test_adapters_take_kernels_of_their_library(wrong):
    ours, theirs = FromGPyTorch(gpytorch.kernels.RBFKernel()), FromPyroContrib(contrib.RBF(1))
    for use in (lambda: FromGPyTorch(wrong), lambda: setattr(ours, "kernel", wrong)):
        with pytest.raises(
            TypeError, match=f"FromGPyTorch takes a gpytorch.kernels.Kernel, not {type(wrong).__name__}: give"
        ):
            use()
    for use in (lambda: FromPyroContrib(wrong), lambda: setattr(theirs, "kernel", wrong)):
        with pytest.raises(
            TypeError, match=f"takes a pyro.contrib.gp.kernels.Kernel, not {type(wrong).__name__}: give"
        ):
            use()


def test_choices_are_checked_after_the_start_too():
    likelihood, kernel = Bernoulli("logit"), ArcCosine(1)
    with pytest.raises(ValueError, match="link is 'probit' or 'logit', not 'cauchit': choose"):
        likelihood.link = "cauchit"
    with pytest.raises(ValueError, match="the arc-cosine kernel has orders 0, 1 and 2, not 3: choose"):
        kernel.order = 3
    kernel.order = 2
    assert kernel().order == 2


@pytest.mark.parametrize("make", [RBF, lambda: RBF() + Linear(), lambda: 2 * RBF()])
def test_a_kernel_that_ran_by_itself_can_become_a_part(make):
    kernel, x = make(), torch.randn(1, 4, 1)
    expected = kernel().matrix(x)
    gp = GaussianProcess(2 * (kernel + 1))
    torch.testing.assert_close(gp(x[0]).covariance_matrix, 2 * (expected + 1))
    again = make()
    again()
    other = GaussianProcess(RBF())
    other.kernel = again
    torch.testing.assert_close(other(x[0]).covariance_matrix, expected)
    names = set(pyro.poutine.trace(gp).get_trace(x[0]).param_nodes)
    assert names == {name.removesuffix("_unconstrained") for name, _ in gp.named_parameters()}


@pytest.mark.usefixtures("unannotated")
def test_the_network_of_a_deep_kernel_is_checked_and_trains_when_it_is_replaced():
    x = torch.randn(6, 2)
    model = DeepKernel(torch.nn.Linear(2, 1), OneLayer())
    for use in (lambda: setattr(model, "extractor", torch.sin), lambda: DeepKernel(torch.sin, OneLayer())):
        with pytest.raises(
            TypeError, match="the extractor of a DeepKernel is a torch.nn.Module, not builtin_function_or_method"
        ):
            use()
    model.extractor = torch.nn.Linear(2, 1)
    assert isinstance(model.extractor, PyroModule) and model(x).shape == (6,)


def test_a_sum_that_ran_as_a_part_is_refused_at_a_second_place():
    gp = GaussianProcess(RBF() + Linear())
    gp(torch.randn(4, 1))
    with pytest.raises(
        ValueError, match="this Sum is a part of another module, under the name 'kernel', and has run there"
    ):
        GaussianProcess(gp.kernel)
    with pytest.raises(ValueError, match="this Sum is a part of another module"):
        _ = gp.kernel + 1
    single = GaussianProcess(RBF())
    single(torch.randn(4, 1))
    assert (
        GaussianProcess(single.kernel, mean=ConstantMean()).kernel is single.kernel
    )  # as Pyro has it: no part of its own


@pytest.mark.parametrize("bad", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_kernel_does_not_start_at_what_is_no_scale(bad):
    with pytest.raises(ValueError, match=f"starts (above 0|at a finite number), not at {bad}: give"):
        RBF(lengthscale=bad)


@pytest.mark.usefixtures("unannotated")
def test_a_list_as_a_start_is_refused_with_the_remedy():
    with pytest.raises(
        TypeError, match="a parameter starts at a number, not at list: for several values assign a tensor"
    ):
        LinearCoregionalization(2, 1, variance=[0.1, 0.2])


def test_copies_and_pickles_are_checked_as_well():
    kernel = Scaled(RBF(2))
    for other in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        other.part.lengthscale = 0.25
        torch.testing.assert_close(other.part.lengthscale, torch.tensor([0.25, 0.25]))
        torch.testing.assert_close(kernel.part.lengthscale, torch.ones(2))
        with pytest.raises(ValueError, match=r"RBF.lengthscale has shape \(2,\) and got values of shape \(3,\)"):
            other.part.lengthscale = torch.ones(3)
