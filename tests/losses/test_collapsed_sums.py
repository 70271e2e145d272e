"""The collapsed bound from sums against dense algebra, the ELBO at its best q(v), streams, and refusals."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro.nn import PyroModule, PyroParam
from torch.distributions import MultivariateNormal

from pyro_dgp import (
    ELBO,
    ActiveDims,
    Bernoulli,
    CollapsedELBOFromSums,
    DeepGP,
    FourierFeatures,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    LinearMean,
    Matern12,
    Matern32,
    Matern52,
    MonteCarlo,
    NumpyStream,
    Orthogonal,
    SufficientStatistics,
    Variational,
    White,
    fit,
    fit_collapsed,
    module_local_parameters,
    predict,
)
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.kernels import Constant
from tests.examples import OneLayer

pytestmark = pytest.mark.usefixtures("local")


def setting(rows=40, family=None, kernel=None, **options):
    torch.manual_seed(0)
    x = torch.rand(rows, 2)
    y = torch.sin(6 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(rows)
    kernel = kernel or (
        ActiveDims(Matern32(lengthscale=0.4), [1])
        + 0.7 * ActiveDims(Matern52(lengthscale=0.3), [0])
        + ActiveDims(Matern12(variance=0.3), [0])
        + Constant(variance=0.5)
        + White(variance=0.1)
    )
    model = OneLayer(kernel, **options)
    guide = Variational(model, family or FourierFeatures(3, interval=(-0.5, 1.5)), MonteCarlo(1))
    guide.initialize(x, y)
    return model, guide, x, y


def halves(x, y):
    return [(x[:13], y[:13]), (x[:0], y[:0]), (x[13:], y[13:])]


def dense(model, guide, x, y):
    """The bound by matrices of all rows."""
    prior = model.gp(x)
    a = guide.processes.get_submodule("y/f").basis.columns(prior)[0]
    noise = model.likelihood.variance.reshape(())
    q = a.T @ a
    evidence = MultivariateNormal(torch.zeros(len(x)), q + noise * torch.eye(len(x))).log_prob(y)
    return evidence - (prior.variance.sum() - q.trace()) / (2 * noise)


def test_bound_and_gradients_are_those_of_dense_algebra():
    model, guide, x, y = setting()
    objective = CollapsedELBOFromSums(guide, SufficientStatistics.of(guide, halves(x, y)))
    assert objective.statistics.rows == 40 and objective.statistics.gram.shape == (3 * 7 + 1, 3 * 7 + 1)
    with module_local_parameters(model, guide):
        parameters = list(model.parameters())
        bound, wanted = -objective(), dense(model, guide, x, y)
        torch.testing.assert_close(bound, wanted, rtol=1e-9, atol=0)
        found, expected = (torch.autograd.grad(value, parameters) for value in (bound, wanted))
    assert len(parameters) == 10
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
        assert float(one.abs()) > 1e-4


def test_the_best_q_is_set_and_predicts_as_dense_algebra_does():
    model, guide, x, y = setting()
    objective = CollapsedELBOFromSums(guide, SufficientStatistics.of(guide, halves(x, y)))
    objective.settle()
    with module_local_parameters(model, guide):
        torch.testing.assert_close(objective(), ELBO(40)(model, guide)(x, y), rtol=1e-9, atol=0)
        new = torch.rand(6, 2)
        basis, noise = guide.processes.get_submodule("y/f").basis, model.likelihood.variance.detach()
        a, at = basis.columns(model.gp(x))[0].detach(), basis.columns(model.gp(new))[0].detach()
        prior = model.gp(new).variance.detach()[:, 0]
    b = torch.eye(len(a)) + a @ a.T / noise
    prediction = predict(guide, new)
    torch.testing.assert_close(prediction.mean, at.T @ torch.linalg.solve(b, a @ y / noise))
    variance = prior - at.square().sum(0) + (at * torch.linalg.solve(b, at)).sum(0) + noise
    torch.testing.assert_close(prediction.variance, variance)


def test_a_fit_reaches_what_the_bound_by_gradients_reaches():
    model, guide, x, y = setting(200)
    result = fit_collapsed(guide, (x, y))
    assert len(result.losses) < 100  # it ends by itself
    bound = result.losses[-1]
    torch.testing.assert_close(torch.tensor(200 * bound), ELBO(200)(model, guide)(x, y).detach(), rtol=1e-6, atol=0)
    slow, by_gradients, x, y = setting(200)
    losses = fit(ELBO(200)(slow, by_gradients), x, y, steps=1000, batch_size=200, learning_rate=0.1).losses
    assert bound < losses[-1] + 1e-3
    assert losses[-1] == pytest.approx(bound, abs=0.02)


def test_a_stream_is_read_once_and_the_number_of_rows_does_not_matter(tmp_path, monkeypatch):
    model, guide, x, y = setting(100)
    fit_collapsed(guide, (x, y), steps=20)
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())
    stream = NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy", block_rows=33)
    read, before = [], NumpyStream.read

    def counted(self, block):
        read.append(block)
        return before(self, block)

    monkeypatch.setattr(NumpyStream, "read", counted)
    _, again, _, _ = setting(100)
    fit_collapsed(again, stream, steps=20)
    assert read == [0, 1, 2, 3]
    for one, other in zip(guide.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_single_precision_keeps_its_sums_in_double():
    torch.manual_seed(0)
    x = torch.rand(20_000, 1)
    y = torch.sin(9 * x[:, 0]) + 0.01 * torch.randn(len(x))
    bounds = []
    for dtype in (torch.float64, torch.float32):
        model = DeepGP(x, 1, kernel="matern32-additive").to(dtype)
        model.likelihood.variance = 2e-4
        guide = Variational(model, FourierFeatures(20), MonteCarlo(1))
        guide.initialize(x.to(dtype), y.to(dtype))
        objective = CollapsedELBOFromSums(guide, SufficientStatistics.of(guide, [(x.to(dtype), y.to(dtype))]))
        objective.settle()
        bounds.append(float(objective().detach()))
        assert predict(guide, x[:5].to(dtype)).mean.dtype == dtype
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-3)


class WithMean(OneLayer):
    def __init__(self):
        super().__init__(ActiveDims(Matern32(), [0]))
        self.gp.mean = LinearMean(2)


class Shifted(OneLayer):
    """A mean that is learned, in front of the targets."""

    def __init__(self):
        super().__init__(ActiveDims(Matern32(), [0]))
        self.offset = PyroParam(torch.tensor(0.0))

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=None if y is None else y - self.offset)


class Weighted(OneLayer):
    """Inputs whose weights are learned."""

    def __init__(self):
        super().__init__(ActiveDims(Matern32(), [0]))
        self.weight = PyroParam(torch.tensor(1.0))

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(self.weight * x)), obs=y)


@pytest.mark.parametrize(("kernel", "seed"), [("matern12", 0), ("matern32", 1), ("matern52", 0)])
def test_a_fit_from_the_defaults_ends_where_many_steps_of_adam_do(kernel, seed):
    torch.manual_seed(seed)
    x = torch.rand(200, 1)
    y = torch.sin(9 * x[:, 0]) + 0.1 * torch.randn(200)
    ends = []
    for by_adam in (False, True):
        guide = Variational(DeepGP(x, 1, kernel=f"{kernel}-additive"), FourierFeatures(15), MonteCarlo(1))
        guide.initialize(x, y)
        if not by_adam:
            ends.append(fit_collapsed(guide, (x, y)).losses[-1])
            continue
        objective = CollapsedELBOFromSums(guide, SufficientStatistics.of(guide, [(x, y)]))
        with module_local_parameters(objective):
            optimizer = torch.optim.Adam(guide.model.parameters(), lr=0.05)
            for _ in range(600):
                optimizer.zero_grad()
                loss = objective() / 200
                loss.backward()
                optimizer.step()
        ends.append(float(loss.detach()))
    assert ends[0] < ends[1] + 1e-4 and ends[0] < -0.3


def test_frozen_hyperparameters_stay_and_q_is_set():
    model, guide, x, y = setting()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert fit_collapsed(guide, (x, y)).losses == []
    with module_local_parameters(model, guide):
        wanted = dense(model, guide, x, y)
        torch.testing.assert_close(-ELBO(40)(model, guide)(x, y), wanted, rtol=1e-9, atol=0)


def test_a_fit_that_cannot_begin_says_why():
    x = 1e6 * torch.rand(100, 1)
    y = torch.sin(x[:, 0] / 1e5) + 0.1 * torch.randn(100)
    guide = Variational(DeepGP(x, 1, kernel="matern52-additive"), FourierFeatures(15), MonteCarlo(1))
    with pytest.warns(UserWarning, match="standardise inputs"):
        guide.initialize(x, y)
    with pytest.raises(NotPositiveDefiniteError, match="scale the inputs"):
        fit_collapsed(guide, (x, y))


def test_statistics_of_the_same_size_on_another_interval_are_refused():
    _, guide, x, y = setting()
    _, other, _, _ = setting(family=FourierFeatures(3, interval=(-0.1, 1.1)))
    with pytest.raises(ValueError, match="the 22 features of this guide are other ones"):
        CollapsedELBOFromSums(other, SufficientStatistics.of(guide, [(x, y)]))


def refused(model, family=None, rows=20):
    x = torch.rand(rows, 2)
    y = (x[:, 0] > 0.5).double()
    guide = Variational(
        model(x),
        family or FourierFeatures(2),
        MonteCarlo(1),
    )
    guide.initialize(x, y)
    fit_collapsed(guide, (x, y), steps=1)


@pytest.mark.parametrize(
    ("model", "family", "match"),
    [
        (
            lambda x: OneLayer(ActiveDims(Matern32(), [0]), Bernoulli()),
            None,
            "a Gaussian likelihood of the targets as they are, and 'y' has another one",
        ),
        (lambda x: OneLayer(ActiveDims(Matern32(), [0])), FourierFeatures(2, "diagonal"), "has a full covariance"),
        (lambda x: Shifted(), None, "this model changes them by parameters"),
        (lambda x: Weighted(), None, "this model changes them by parameters"),
        (lambda x: WithMean(), None, "has a mean function: train by ELBO"),
        (
            lambda x: OneLayer(ActiveDims(Matern32(), [1])),
            FourierFeatures(2, interval=(0.0, 0.5)),
            r"column 1 of the inputs of 'gp' goes from .* outside of the interval",
        ),
    ],
)
def test_what_has_no_closed_form_is_refused(model, family, match):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=match):
        refused(model, family)


def test_wrong_data_and_statistics_of_another_guide_are_refused():
    _, guide, x, y = setting()
    with pytest.raises(ValueError, match=r"inputs \(N, D\) and targets \(N,\), not \(40, 2\) and \(40, 1\)"):
        fit_collapsed(guide, (x, y[:, None]))
    with pytest.raises(ValueError, match="NaN or infinity"):
        fit_collapsed(guide, (x, y * math.nan))
    with pytest.raises(ValueError, match="there are no rows"):
        SufficientStatistics.of(guide, [])
    _, other, _, _ = setting(family=FourierFeatures(2, interval=(-0.5, 1.5)))
    with pytest.raises(
        ValueError,
        match="made with 22 features, and the 16 features of this guide are other ones: make them with this guide",
    ):
        CollapsedELBOFromSums(other, SufficientStatistics.of(guide, [(x, y)]))


@pytest.mark.parametrize(
    ("family", "match"),
    [
        (InducingPoints(5), "has InducingPointBasis: take FourierFeatures, or CollapsedELBO"),
        (Orthogonal(FourierFeatures(2), InducingPoints(3)), "leave out Orthogonal"),
    ],
)
def test_features_that_depend_on_hyperparameters_have_no_sums(family, match):
    _, guide, x, y = setting(kernel=ActiveDims(Matern32(), [0]), family=family)
    with pytest.raises(ValueError, match=match):
        SufficientStatistics.of(guide, [(x, y)])


class SomeRows(PyroModule):
    """The first of the rows alone."""

    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(Matern32()), Gaussian()

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x[:10])), obs=None if y is None else y[:10])


def test_a_model_that_sees_some_of_the_rows_is_refused():
    x, y = torch.rand(40, 1), torch.randn(40)
    guide = Variational(SomeRows(), FourierFeatures(3), MonteCarlo(1))
    guide.initialize(x, y)
    with pytest.raises(
        ValueError, match="where the Gaussian process sees all rows, and 'gp' sees 10 of 40: take a plate"
    ):
        fit_collapsed(guide, (x, y))


def test_a_mean_that_is_zero_at_the_first_rows_alone_is_refused():
    x = torch.linspace(0, 3, 40)[:, None]
    model = OneLayer(ActiveDims(Matern32(), [0]))
    model.gp.mean = lambda x: torch.relu(x - 1.5)  # type: ignore[assignment]
    guide = Variational(model, FourierFeatures(3), MonteCarlo(1))
    guide.initialize(x, torch.randn(40))
    with pytest.raises(ValueError, match="has a mean function: train by ELBO"):
        fit_collapsed(guide, (x, torch.randn(40)))
