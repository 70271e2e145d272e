"""Functions of a method's fit are in the units of the data, and their mean is that of its predictions."""

import math
from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroParam

from pyro_dgp import RBF, GaussianProcess, HeteroscedasticGaussian, LinearCoregionalization, Settings, compare

METHODS = ("exact-gp", "svgp", "dsvi", "nuts", "sghmc")
SMALL = Settings(inducing=15, epochs=60, width=1, samples=5, mcmc_points=40, mcmc_samples=20, warmup=20)


@pytest.fixture(scope="module", params=["float64", "float32"])
def result(request):
    random = np.random.RandomState(0)
    x = np.stack([random.uniform(1900, 2000, 60), random.uniform(0, 1e-3, 60)], 1)
    y = 1e6 + 50 * np.sin(x[:, 0] / 15) + 5 * random.randn(60)
    return compare(None, x, y, methods=METHODS, settings=SMALL, dtype=request.param)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
def test_functions_have_the_units_of_the_data(result, method):
    fit = result[method]
    x = torch.tensor([[1920.0, 2e-4], [1955.0, 7e-4], [1990.0, 5e-4]], dtype=torch.float64)
    functions = fit.draw_functions(400, seed=1)
    values = functions(x)
    assert values.shape == (400, 3, 1) and values.dtype == torch.float64 and functions.num_draws == 400
    predicted = fit.predict(x)
    drawn = (
        20 if method in ("nuts", "sghmc") else 400
    )  # a prediction takes one sample of the layers for each draw of a sampler
    error = predicted.variance.sqrt() / drawn**0.5
    assert bool(((values.mean(0)[:, 0] - predicted.mean).abs() < 4 * error).all())
    spread = values.std(0)[:, 0]
    assert bool((spread > 0.1).all()) and bool((spread < 1.3 * predicted.variance.sqrt()).all())  # without noise
    assert torch.equal(fit.draw_functions(400, seed=1)(x), values)
    assert not torch.equal(fit.draw_functions(400)(x), values)


def test_functions_are_differentiable_in_inputs_in_their_own_units(result):
    functions = result["dsvi"].draw_functions(3, seed=0)
    at = torch.tensor([[1955.0, 5e-4]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(functions(at)[1].sum(), at)
    with torch.no_grad():
        ends = [float(functions(at + torch.tensor([[step, 0.0]]))[1]) for step in (0.5, -0.5)]
    assert float(slope[0, 0]) == pytest.approx(ends[0] - ends[1], rel=0.01, abs=0.01)
    own = torch.stack([at.detach() + k for k in range(3)])  # rows of its own for each draw
    assert torch.allclose(functions(own)[2, 0], functions(at.detach() + 2)[2, 0], rtol=1e-8)


def test_other_inputs_are_refused(result):
    functions = result["svgp"].draw_functions(3)
    for x, given in ((torch.zeros(5), r"\(5,\)"), (torch.zeros(5, 3), r"\(5, 3\)")):
        with pytest.raises(
            ValueError, match=rf"take inputs \(N, 2\), or \(3, N, 2\) with rows of its own for each, got {given}"
        ):
            functions(x)


def test_inputs_that_are_not_finite_are_refused(result):
    x = torch.tensor([[1950.0, math.nan]], dtype=torch.float64)
    with pytest.raises(ValueError, match="the inputs hold NaN or infinity"):
        result["svgp"].draw_functions(3)(x)


def test_posteriors_without_functions_are_refused():
    random = np.random.RandomState(0)
    x, y = random.randn(40, 2), random.randn(40)
    result = compare(None, x, y, methods=["vecchia-gp", "avdgp-ar2p"], settings=SMALL)
    for method, sentence in (
        ("vecchia-gp", "under a Vecchia approximation"),
        ("avdgp-ar2p", "amortised inducing points"),
    ):
        with pytest.raises(ValueError, match=sentence):
            result[method].draw_functions(3)


class TwoFunctions(PyroModule):
    """Two targets, mixed from two functions in the other order, or a noise with a function of its own."""

    def __init__(self, x, kind):
        super().__init__()
        self.gp = GaussianProcess(RBF(ard=x.shape[-1]), num_outputs=2)
        self.likelihood = LinearCoregionalization(2, 2) if kind == "mixed" else HeteroscedasticGaussian()
        if kind == "mixed":
            self.likelihood.mixing = PyroParam(torch.tensor([[0.0, 1.0], [1.0, 0.0]]).to(x))

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


@pytest.mark.parametrize("kind", ["mixed", "noise"])
def test_values_are_those_of_the_target_and_not_of_its_latent_functions(kind):
    random = np.random.RandomState(0)
    x = random.uniform(-2, 2, (60, 1))
    y = np.stack([50 + 5 * np.sin(2 * x[:, 0]), 1000 + 200 * x[:, 0]], 1) + random.randn(60, 2)
    y = y if kind == "mixed" else y[:, 0]
    settings = replace(SMALL, outputs=y.ndim, epochs=300)
    fit = compare(lambda x: TwoFunctions(x, kind), x, y, methods=["svgp"], settings=settings)["svgp"]
    at = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)[:, None]
    values, predicted = fit.draw_functions(500, seed=0)(at), fit.predict(at)
    assert values.shape == (500, 7, y.ndim)
    mean = predicted.mean.reshape(7, -1)
    assert bool(((values.mean(0) - mean).abs() < 0.3 * predicted.variance.reshape(7, -1).sqrt()).all())
    assert float((mean[:, 0] - 50 - 5 * torch.sin(2 * at[:, 0])).abs().max()) < 3


class Plain(PyroModule):
    """A function, and an observation of its exponential that is written by hand."""

    def __init__(self, x):
        super().__init__()
        self.gp = GaussianProcess(RBF(ard=x.shape[-1]))

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        with pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Normal(f[..., 0].exp(), 0.3), obs=y)


def test_a_function_whose_target_is_not_known_is_refused():
    x = np.linspace(-2, 2, 40)[:, None]
    fit = compare(Plain, x, 100 + 10 * np.sin(x[:, 0]), methods=["dsvi"], settings=SMALL)["dsvi"]
    with pytest.raises(ValueError, match="does not say how its target follows from the function at 'f'"):
        fit.draw_functions(3)(torch.zeros(1, 1, dtype=torch.float64))


def test_a_target_of_classes_has_its_latent_function():
    x = np.random.RandomState(0).randn(80, 2)
    settings = Settings(inducing=15, epochs=60, task="binary")
    fit = compare(None, x, (x[:, 0] > 0) * 1.0, methods=["svgp"], settings=settings)["svgp"]
    far = torch.tensor([[-2.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    low, high = fit.draw_functions(100, seed=0)(far)[..., 0].mean(0)
    assert low < -0.5 and high > 0.5
