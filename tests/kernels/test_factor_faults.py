"""The sentence that says why a covariance has no Cholesky factor: each cause is planted, and one remedy named."""

import math

import pytest
import torch

from pyro_dgp import (
    RBF,
    FromFunction,
    GaussianProcess,
    InducingPoints,
    Linear,
    Matern52,
    MonteCarlo,
    Standardizer,
    Variational,
    White,
)
from pyro_dgp.internal import linalg
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.kernels.factor_faults import explained
from tests.examples import OneLayer, regression

pytestmark = pytest.mark.usefixtures("local")


def sentence(gp, x):
    with pytest.raises(NotPositiveDefiniteError, match="input is not positive-definite") as caught:
        gp(x).rsample()
    text = str(caught.value)
    assert "\n" not in text and text.count("jitter=") <= 1
    return text


def test_a_parameter_that_is_not_finite_is_named_with_its_value():
    gp = GaussianProcess(Matern52(2))
    gp.kernel.lengthscale_unconstrained.data[1] = math.nan
    text = sentence(gp, torch.randn(5, 2))
    assert (
        "since the lengthscale of its kernel holds NaN or infinity: build the model anew and lower the learning rate"
        in text
    )
    assert "float64 with" not in text and "use float64" not in text


def test_inputs_that_are_not_finite_are_data_and_inducing_points_are_training():
    x = torch.randn(5, 2)
    x[3, 1] = math.nan
    assert sentence(GaussianProcess(RBF(2)), x).endswith(
        "since its inputs hold NaN or infinity: drop or fill such rows"
    )
    x, y = regression(12)
    guide = Variational(OneLayer(), InducingPoints(5), MonteCarlo(1))
    guide.initialize(x, y)
    next(p for name, p in guide.named_parameters() if "inducing_points" in name).data[2] = math.nan
    with pytest.raises(
        NotPositiveDefiniteError, match="of 'gp' .*5 inducing points.*its inducing points hold NaN .*learning rate"
    ):
        guide(x)


def test_a_kernel_that_is_zero_at_all_points_says_so():
    text = sentence(GaussianProcess(Linear(2)), torch.zeros(3, 2))
    assert (
        "the kernel is zero at all inputs: move the inputs away from where the kernel is zero (the origin, for Linear), or add"
        in text
    )


def test_a_variance_that_training_took_to_zero_says_so():
    gp = GaussianProcess(RBF(1))
    gp.kernel.variance_unconstrained.data.fill_(-1e4)
    text = sentence(gp, torch.randn(3, 1))
    assert text.endswith("since the variance of its kernel is 0: build the model anew and lower the learning rate")


def test_a_kernel_that_is_zero_at_one_point_is_told_by_its_row():
    x = torch.tensor([[0.0], [1.0]])
    assert "the kernel is zero at row 0 of the inputs: leave jitter out" in sentence(
        GaussianProcess(Linear(1), jitter=0.0), x
    )
    assert GaussianProcess(Linear(1))(x).rsample().isfinite().all()


def test_points_that_coincide_are_told():
    x = torch.tensor([[0.0], [1.0], [1.0]])
    text = sentence(GaussianProcess(RBF(), jitter=0.0), x)
    assert "lengthscale 1; range 1 lengthscales)" in text
    assert text.endswith("since rows 1 and 2 of the inputs coincide: leave jitter out, or drop one of them")


def test_inputs_that_span_too_little_are_to_be_scaled():
    x = torch.linspace(0.0, 1e-3, 20)[:, None]
    text = sentence(GaussianProcess(RBF(), jitter=1e-16), x)
    assert text.endswith("since the inputs span only 0.001 lengthscales: scale the inputs with Standardizer")
    scale = Standardizer.fit(x, x[:, 0]).inputs
    assert GaussianProcess(RBF(lengthscale=0.1), jitter=1e-12)(scale(x)).rsample().isfinite().all()


def test_variances_of_very_different_size_are_to_be_scaled():
    x = torch.tensor([[1.0], [1e5]])
    matrix = torch.tensor([[1.0, 1e5 + 1e-3], [1e5 + 1e-3, 1e10]])  # rounded up, so that there is no factor
    with pytest.raises(NotPositiveDefiniteError) as caught:
        linalg.cholesky(matrix, 0.0, "gp")
    text = str(explained(caught.value, Linear(1)(), x, "inputs"))
    assert text.endswith(
        "the variances of the inputs lie between 1.0e+00 and 1.0e+10: scale the inputs with Standardizer"
    )


def test_single_precision_is_the_cause_where_double_precision_serves(monkeypatch):
    monkeypatch.setitem(linalg.LARGEST_JITTER, torch.float32, 1e-6)
    x = torch.linspace(-3.0, 3.0, 400, dtype=torch.float32)[:, None]
    gp = GaussianProcess(RBF(lengthscale=2.0)).float()
    text = sentence(gp, x)
    assert "400 inputs in float32; variance 1; lengthscale 2; range 3 lengthscales" in text
    assert text.endswith("since rounding is larger than jitter 1e-06: use float64")
    assert gp.double()(x.double()).rsample().isfinite().all()


def test_a_function_that_is_no_covariance_says_so():
    gp = GaussianProcess(FromFunction(lambda x, z: -torch.ones(x.shape[-2], z.shape[-2]) + 2 * (x == z.mT)))
    x = torch.arange(6.0)[:, None]
    with pytest.raises((NotPositiveDefiniteError, ValueError), match="negative|no covariance"):
        gp(x).rsample()


def test_a_jitter_that_is_too_small_is_to_be_left_out():
    x = torch.linspace(-3.0, 3.0, 60)[:, None]
    text = sentence(GaussianProcess(RBF(lengthscale=3.0) + White(variance=1e-300), jitter=1e-20), x)
    assert text.endswith("since jitter 1e-20 is smaller than rounding: leave jitter out, or give a larger number")
