"""The collapsed bound of all rows against dense algebra, Pyro's and GPyTorch's sparse regression, the ELBO at its best q(v), and refusals."""

import math
import warnings

import gpytorch
import numpy as np
import pyro
import pyro.contrib.gp as pyro_gp
import pytest
import torch
from pyro.nn import PyroModule, PyroParam
from torch.distributions import MultivariateNormal

from pyro_dgp import (
    ELBO,
    RBF,
    ActivationFeatures,
    AmortizedInducingPoints,
    Bernoulli,
    Checkpoints,
    CollapsedELBO,
    CollapsedELBOFromSums,
    DeepGP,
    DeepKernel,
    FourierFeatures,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    LinearMean,
    MarginalLikelihood,
    Matern32,
    Matern52,
    MonteCarlo,
    NumpyStream,
    Orthogonal,
    SphericalHarmonics,
    SufficientStatistics,
    Variational,
    fit,
    fit_collapsed,
    fit_lbfgs,
    module_local_parameters,
    predict,
)
from pyro_dgp.likelihoods.gaussian import GaussianConditional
from pyro_dgp.losses import collapsed
from tests.examples import OneLayer

pytestmark = pytest.mark.usefixtures("local")


class Regression(PyroModule):
    """One GP under Gaussian noise, with a linear mean, a network in front, and an argument of the rows beside the inputs."""

    def __init__(self, outputs=1, num_kernels=None, mean=True):
        super().__init__()
        kernel = Matern52(2, num_kernels, lengthscale=0.7)
        self.gp = GaussianProcess(kernel, num_outputs=outputs)
        if mean:
            self.gp.mean = LinearMean(2, outputs)
            self.gp.mean.weight = torch.tensor([[0.3], [-0.2]]).expand(2, outputs).clone()
        self.likelihood = Gaussian(outputs, variance=0.2)
        self.weight = PyroParam(torch.tensor(1.1))

    def forward(self, x, y=None, shift=0.0):
        return pyro.sample("y", self.likelihood(self.gp(self.weight * x + shift)), obs=y)


def data(rows=30, outputs=1):
    torch.manual_seed(0)
    x = torch.rand(rows, 2)
    f = torch.sin(6 * x[:, 0]) + x[:, 1]
    y = torch.stack([(d + 1) * f + 0.2 * torch.randn(rows) for d in range(outputs)], -1)
    return x, y[:, 0] if outputs == 1 else y


def guided(model, family, x, y, **arguments):
    guide = Variational(model, family, MonteCarlo(1))
    guide.initialize(x, y, **arguments)
    return guide


def dense(model, guide, x, y, shift=0.0):
    """The bound by matrices of all rows, output for output."""
    prior = model.gp(model.weight * x + shift)
    columns = guide.processes.get_submodule("y/f").basis.columns(prior)
    total = 0.0
    for d in range(prior.num_outputs):
        a = columns[d if len(columns) > 1 else 0]
        noise = model.likelihood.variance.reshape(-1)[d]
        values = y if prior.num_outputs == 1 else y[:, d]
        covariance = a.T @ a + noise * torch.eye(len(x))
        evidence = MultivariateNormal(prior.mean[:, d], covariance).log_prob(values)
        total = total + evidence - (prior.variance[:, d].sum() - (a.T @ a).trace()) / (2 * noise)
    return total


CASES = [
    (1, None, InducingPoints(6)),
    (3, None, InducingPoints(6)),
    (3, 3, InducingPoints(6, per_output=True)),
    (2, 2, InducingPoints(6)),
]


@pytest.mark.parametrize("block", [10_000, 8])
@pytest.mark.parametrize(("outputs", "num_kernels", "family"), CASES)
def test_bound_and_gradients_are_those_of_dense_algebra(outputs, num_kernels, family, block, monkeypatch):
    monkeypatch.setattr(collapsed, "ROWS", block)
    x, y = data(outputs=outputs)
    model = Regression(outputs, num_kernels)
    guide = guided(model, family, x, y, shift=0.3)
    objective = CollapsedELBO(guide)
    trained = [*model.parameters(), *guide.processes.get_submodule("y/f").basis.parameters()]
    with module_local_parameters(objective):
        bound, wanted = -objective(x, y, shift=0.3), dense(model, guide, x, y, shift=0.3)
        torch.testing.assert_close(bound, wanted, rtol=1e-9, atol=0)
        found, expected = (torch.autograd.grad(value, trained) for value in (bound, wanted))
    assert len(trained) == 7
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
        assert float(one.abs().max()) > 1e-4


@pytest.mark.parametrize(("outputs", "num_kernels", "family"), CASES)
def test_the_best_q_is_set_and_no_other_one_has_a_higher_elbo(outputs, num_kernels, family):
    x, y = data(outputs=outputs)
    guide = guided(Regression(outputs, num_kernels), family, x, y)
    objective, q = CollapsedELBO(guide), guide.processes.get_submodule("y/f").q
    objective.settle(x, y)
    elbo = ELBO(30)(guide.model, guide)
    with module_local_parameters(objective):
        best = elbo(x, y)
        torch.testing.assert_close(best, objective(x, y), rtol=1e-9, atol=0)
        for gradient in torch.autograd.grad(best, list(q.parameters())):
            assert float(gradient.abs().max()) < 1e-6


def test_the_bound_is_that_of_pyros_and_gpytorchs_sparse_regression():
    x, y = data(40)
    points = x[:7].clone()
    kernel = pyro_gp.kernels.RBF(2, variance=torch.tensor(0.8), lengthscale=torch.tensor([0.5, 0.9]))
    theirs = pyro_gp.models.SparseGPRegression(x, y, kernel, Xu=points, noise=torch.tensor(0.2), jitter=1e-10)
    pyro.settings.set(module_local_params=False)
    trace = pyro.poutine.trace(theirs.model).get_trace()
    of_pyro = trace.log_prob_sum()
    pyro.settings.set(module_local_params=True)

    model = OneLayer(RBF(2, variance=0.8), Gaussian(variance=0.2))
    model.gp.kernel.lengthscale = torch.tensor([0.5, 0.9])
    model.gp.jitter = 1e-10
    guide = guided(model, InducingPoints(7), x, y)
    guide.processes.get_submodule("y/f").basis.inducing_points = points
    torch.testing.assert_close(-CollapsedELBO(guide)(x, y), of_pyro, rtol=1e-7, atol=0)

    class Exact(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ZeroMean()
            base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))
            base.outputscale, base.base_kernel.lengthscale = 0.8, torch.tensor([[0.5, 0.9]])
            self.covar_module = gpytorch.kernels.InducingPointKernel(base, points, self.likelihood)
            self.likelihood.noise = 0.2

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    other = Exact()
    with gpytorch.settings.fast_computations(False, False, False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bound = gpytorch.mlls.ExactMarginalLogLikelihood(other.likelihood, other)(other(x), y) * len(x)
    torch.testing.assert_close(-CollapsedELBO(guide)(x, y), bound, rtol=1e-3, atol=0)  # its jitter is absolute, 1e-6


def test_with_a_point_at_each_row_it_is_the_marginal_likelihood():
    x, y = data(25)
    model = Regression(mean=False)
    guide = guided(model, InducingPoints(25), x, y)
    guide.processes.get_submodule("y/f").basis.inducing_points = (model.weight * x).detach()
    with torch.no_grad():
        torch.testing.assert_close(CollapsedELBO(guide)(x, y), MarginalLikelihood(model)(x, y), rtol=1e-6, atol=0)


def test_features_of_any_basis_have_it_and_the_sums_are_those_of_all_rows():
    x, y = data(50)
    for kernel, family in (
        ("matern52-spherical", SphericalHarmonics(12)),
        ("arc-cosine", ActivationFeatures(12, "relu")),
        ("matern32-additive", FourierFeatures(3)),
    ):
        guide = guided(DeepGP(x, 1, kernel=kernel), family, x, y)
        objective = CollapsedELBO(guide)
        objective.settle(x, y)
        with torch.no_grad(), module_local_parameters(objective):
            torch.testing.assert_close(objective(x, y), ELBO(50)(guide.model, guide)(x, y), rtol=1e-8, atol=0)
            if isinstance(family, FourierFeatures):
                by_sums = CollapsedELBOFromSums(guide, SufficientStatistics.of(guide, [(x, y)]))
                torch.testing.assert_close(objective(x, y), by_sums(), rtol=1e-9, atol=0)


def test_groups_have_bounds_of_their_own():
    x, y = data(20)
    both = torch.stack([y, 2 * y - 1])

    class InPlate(Regression):
        def forward(self, x, y=None):
            with pyro.plate("groups", 2):
                return pyro.sample("y", self.likelihood(self.gp(x).expand([2])), obs=y)

    model = InPlate(mean=False)
    guide = guided(model, InducingPoints(5), x, both)
    objective = CollapsedELBO(guide)
    objective.settle(x, both)
    with torch.no_grad(), module_local_parameters(objective):
        torch.testing.assert_close(objective(x, both), ELBO(20)(model, guide)(x, both), rtol=1e-8, atol=0)
    result = fit_collapsed(guide, (x, both), steps=30)
    with torch.no_grad(), module_local_parameters(objective):
        torch.testing.assert_close(
            torch.tensor(40 * result.losses[-1]), ELBO(20)(model, guide)(x, both), rtol=1e-6, atol=0
        )


def test_other_groups_than_those_of_the_guide_are_refused():
    x, y = data(20)
    both, targets = torch.stack([x, 2 * x.flip(0)]), torch.stack([y, 2 * y - 1])
    guide = guided(OneLayer(Matern32()), InducingPoints(5), both, targets)
    with pytest.raises(ValueError, match=r"groups of shape \(2,\), the model has them of shape \(\)"):
        fit_collapsed(guide, (x, y))
    single = guided(OneLayer(Matern32()), InducingPoints(5), x, y)
    with pytest.raises(
        ValueError, match=r"groups of shape \(\), the model has them of shape \(\), and the targets of shape \(2,\)"
    ):
        CollapsedELBO(single)(x, targets)


def test_a_fit_is_better_than_many_steps_of_svi_and_says_how_it_went():
    x, y = data(120)
    guide = guided(DeepGP(x, 1), InducingPoints(20), x, y)
    seen = []
    result = fit_collapsed(guide, (x, y), callback=lambda step, loss: seen.append((step, loss)))
    assert [step for step, _ in seen] == [*range(len(result.losses))] and result.losses[-1] == seen[-1][1]
    slow = guided(DeepGP(x, 1), InducingPoints(20), x, y)
    losses = fit(ELBO(120)(slow.model, slow), x, y, steps=1500, batch_size=120, learning_rate=0.05).losses
    assert result.losses[-1] < losses[-1] + 1e-3
    assert result.losses[-1] == pytest.approx(losses[-1], abs=0.05)
    assert result.remarks == []
    new = torch.rand(200, 2)
    truth = torch.sin(6 * new[:, 0]) + new[:, 1]
    assert float((predict(guide, new).mean - truth).square().mean().sqrt()) < 0.12


def test_steps_frozen_models_and_resumed_runs(tmp_path):
    x, y = data(40)
    for steps in (0, 1, 7):
        guide = guided(DeepGP(x, 1), InducingPoints(5), x, y)
        assert len(fit_collapsed(guide, (x, y), steps=steps).losses) == steps
        with torch.no_grad():
            torch.testing.assert_close(CollapsedELBO(guide)(x, y), ELBO(40)(guide.model, guide)(x, y))
    for part in (guide.model, guide.processes.get_submodule("y/f").basis):
        for parameter in part.parameters():
            parameter.requires_grad_(False)
    assert fit_collapsed(guide, (x, y)).losses == []

    def run(folder, stop=None):
        class StopError(Exception):
            pass

        def callback(step, loss):
            if step == stop:
                raise StopError

        pyro.set_rng_seed(0)
        guide = guided(DeepGP(x, 1), InducingPoints(5), x, y)
        try:
            with Checkpoints(folder, seconds=0.0):
                return guide, fit_collapsed(guide, (x, y), steps=30, callback=callback)
        except StopError:
            return guide, None

    whole, result = run(tmp_path / "whole")
    for stop in (8, 22):
        run(tmp_path / str(stop), stop)
        again, resumed = run(tmp_path / str(stop))
        assert resumed.losses == result.losses
        for one, other in zip(whole.parameters(), again.parameters(), strict=True):
            assert torch.equal(one, other)


def test_single_precision_is_near_double():
    x, y = data(400)
    bounds = []
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        model = DeepGP(x, 1).to(dtype)
        model.likelihood.variance, model.top.jitter = 2e-4, 1e-6
        guide = guided(model, InducingPoints(20), x.to(dtype), y.to(dtype))
        guide.processes.get_submodule("y/f").basis.inducing_points = x[:20].to(dtype)
        objective = CollapsedELBO(guide)
        bounds.append(float(objective(x.to(dtype), y.to(dtype)).detach()))
        assert fit_collapsed(guide, (x.to(dtype), y.to(dtype)), steps=10).losses[-1] < bounds[-1] / 400
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-3)


def test_any_training_sets_q_and_a_fit_at_its_end_is_left_there():
    x, y = data(60)
    guide = guided(DeepGP(x, 1), InducingPoints(8), x, y)
    for train in (fit, fit_lbfgs):
        train(CollapsedELBO(guide), x, y, steps=40)
        with torch.no_grad():
            torch.testing.assert_close(CollapsedELBO(guide)(x, y), ELBO(60)(guide.model, guide)(x, y))
    end = fit_collapsed(guide, (x, y)).losses[-1]
    before = {name: value.detach().clone() for name, value in guide.named_parameters()}
    again = fit_collapsed(guide, (x, y), steps=4)
    assert again.losses == [] and all(torch.equal(value, before[name]) for name, value in guide.named_parameters())
    with torch.no_grad():
        torch.testing.assert_close(CollapsedELBO(guide)(x, y) / 60, torch.tensor(end))


def test_q_is_set_for_networks_as_they_predict():
    x, y = data(60)
    network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh())
    guide = guided(DeepKernel(network, OneLayer(Matern32(4))), InducingPoints(10), x, y)
    fit_collapsed(guide, (x, y), steps=12)
    guide.model.eval()
    with torch.no_grad(), module_local_parameters(guide.model, guide):
        torch.testing.assert_close(ELBO(60)(guide.model, guide)(x, y), CollapsedELBO(guide)(x, y))
        assert float((network(x).std(0) - 1).abs().max()) > 1e-3  # those of all rows have another scale


class Half(GaussianConditional):
    def expected_log_prob(self, y, f):
        return 0.5 * super().expected_log_prob(y, f)


class OfHalf(Gaussian):
    def conditional(self):
        return Half(super().conditional().variance)


class SomeRows(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(Matern32()), Gaussian()

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x[:10])), obs=None if y is None else y[:10])


class Scaled(OneLayer):
    def forward(self, x, y=None):
        with pyro.poutine.scale(scale=2.0):
            return super().forward(x, y)


@pytest.mark.parametrize(
    ("model", "family", "match"),
    [
        (lambda x: OneLayer(Matern32(), Bernoulli()), InducingPoints(5), "has another one: train by ELBO"),
        (lambda x: OneLayer(Matern32(), OfHalf()), InducingPoints(5), "has another one: train by ELBO"),
        (lambda x: OneLayer(Matern32()), InducingPoints(5, "diagonal"), "give its family covariance='full'"),
        (lambda x: OneLayer(Matern32()), Orthogonal(InducingPoints(5), InducingPoints(5)), "leave out Orthogonal"),
        (lambda x: OneLayer(Matern32()), AmortizedInducingPoints(3), "take InducingPoints"),
        (lambda x: SomeRows(), InducingPoints(5), "'gp' sees 10 of 20: take a plate"),
        (lambda x: Scaled(Matern32()), InducingPoints(5), "scale"),
    ],
)
def test_what_has_no_best_q_is_refused(model, family, match):
    x, y = data(20)
    y = (y > 0.5).double()
    guide = guided(model(x), family, x, y)
    with pytest.raises(ValueError, match=match):
        fit_collapsed(guide, (x, y))
    with pytest.raises(ValueError, match=match):
        fit_lbfgs(CollapsedELBO(guide), x, y)


def test_streams_other_data_and_guides_that_are_not_initialised_are_refused(tmp_path):
    x, y = data(20)
    guide = guided(DeepGP(x, 1), InducingPoints(5), x, y)
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())
    with pytest.raises(ValueError, match=r"a stream gives them in parts: read the rows into memory and pass \(x, y\)"):
        fit_collapsed(guide, NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy"))
    with pytest.raises(TypeError, match="data"):
        fit_collapsed(guide, x)
    for steps in (-1, 2.5):
        with pytest.raises((ValueError, TypeError), match="steps"):
            fit_collapsed(guide, (x, y), steps=steps)
        with pytest.raises((ValueError, TypeError), match="steps"):
            fit_lbfgs(CollapsedELBO(guide), x, y, steps=steps)
    with pytest.raises(ValueError, match="NaN or infinity"):
        fit_collapsed(guide, (x, y * math.nan))
    with pytest.raises(ValueError, match="initialize"):
        CollapsedELBO(Variational(DeepGP(x, 1), InducingPoints(5)))
    fourier = guided(DeepGP(x, 1, kernel="matern32-additive"), FourierFeatures(3), x, y)
    with pytest.raises(ValueError, match=r"shift comes beside: take fit with CollapsedELBO\(guide\)"):
        fit_collapsed(fourier, (x, y), shift=1.0)
