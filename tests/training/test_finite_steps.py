"""NaN and infinity in a loss or a gradient: training stops before the optimiser moves a parameter, and says where they are."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import SVI

from pyro_dgp import (
    ELBO,
    Checkpoints,
    InducingPoints,
    MonteCarlo,
    NumpyStream,
    PredictiveLogLikelihood,
    StochasticGradientHMC,
    Validation,
    Variational,
    fit,
    fit_stream,
    fit_validated,
)
from tests.examples import OneLayer, regression

pytestmark = pytest.mark.usefixtures("local")


class Breaking(torch.nn.Module):
    """An objective that breaks down from a step on: its loss is NaN, or the gradient of one parameter."""

    def __init__(self, objective, step, what):
        super().__init__()
        self.objective, self._step, self.what, self.calls = objective, step, what, 0
        self.before = {}
        if what == "gradient":
            points_of(objective.guide).register_hook(self._spoil)

    def _spoil(self, gradient):
        return gradient * math.nan if self.calls > self._step else gradient

    def forward(self, *args):
        self.calls += 1
        if self.calls == self._step + 1:
            self.before = values(self.objective)
        loss = self.objective(*args)
        return loss * math.nan if self.what == "loss" and self.calls > self._step else loss


def guided(x, y, **settings):
    torch.manual_seed(0)
    guide = Variational(OneLayer(), InducingPoints(5, **settings), MonteCarlo(1))
    guide.initialize(x, y)
    return guide


def points_of(guide):
    return next(p for name, p in guide.named_parameters() if "inducing_points" in name)


def values(module):
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def same(a, b):
    return all(torch.equal(value, b[name]) for name, value in a.items())


SENTENCES = {
    "loss": "the loss is nan at step 3, while all parameters are finite: build the model and the guide anew and train at a lower",
    "gradient": r"the gradient of 'objective\.guide\..*inducing_points_?\w*' holds NaN or infinity at step 3, while the loss is finite: build the model",
}


@pytest.mark.parametrize("what", SENTENCES)
def test_a_step_that_is_not_finite_moves_no_parameter_and_the_last_checkpoint_stays(what, tmp_path):
    x, y = regression(12)
    guide = guided(x, y)
    objective = Breaking(ELBO(12)(guide.model, guide), 3, what)
    with Checkpoints(tmp_path, seconds=0.0), pytest.raises(ValueError, match=SENTENCES[what]):
        fit(objective, x, y, steps=10)
    assert objective.before and same(objective.before, values(objective.objective))
    (saved,) = tmp_path.iterdir()
    kept = saved.read_bytes()
    guide = guided(x, y)  # the program again, mended: it goes on from the checkpoint
    objective = Breaking(ELBO(12)(guide.model, guide), 100, what)
    with Checkpoints(tmp_path, seconds=1e6):
        assert len(fit(objective, x, y, steps=10).losses) == 10
    assert objective.calls == 3 + 7 and saved.read_bytes() != kept  # it counts on from the three that were saved


@pytest.mark.parametrize("what", SENTENCES)
def test_a_stream_stops_in_the_same_way(what, tmp_path):
    x, y = regression(12)
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())
    guide = guided(x, y)
    objective = Breaking(ELBO(12)(guide.model, guide), 3, what)
    with pytest.raises(ValueError, match=SENTENCES[what]):
        fit_stream(objective, NumpyStream(tmp_path / "x.npy", tmp_path / "y.npy"), steps=10)
    assert objective.before and same(objective.before, values(objective.objective))


def test_the_term_or_the_parameter_is_named():
    x, y = regression(12)
    guide = guided(x, y)
    objective = ELBO(12)(guide.model, guide)
    with pytest.raises(
        ValueError,
        match="the loss is inf at step 0, since the likelihood at 'y' is NaN or infinite, while all parameters are finite",
    ):
        fit(objective, x, 1e200 * y, steps=2)
    with pytest.raises(
        ValueError, match="the parameter 'model.likelihood.variance_unconstrained' holds NaN or infinity: build"
    ):
        fit(
            objective,
            x,
            y,
            steps=9,
            callback=lambda *_: guide.model.likelihood.variance_unconstrained.data.fill_(math.nan),
        )


def test_stock_svi_forgets_gradients_that_are_not_finite():
    x, y = regression(12)
    guide = guided(x, y)
    svi = SVI(guide.model, guide, pyro.optim.Adam({"lr": 0.01}), ELBO())
    svi.step(x, y)
    before = values(guide)
    hook = points_of(guide).register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(
        ValueError, match=r"the gradient of 'processes.* holds NaN or infinity, while the loss is finite"
    ):
        svi.step(x, y)
    assert same(before, values(guide))
    hook.remove()
    assert math.isfinite(svi.step(x, y)) and all(bool(torch.isfinite(value).all()) for value in values(guide).values())


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_validated_fit_that_breaks_down_keeps_its_best_checkpoint(what):
    x, y = regression(30)
    guide, made = guided(x, y), []

    def loss(beta, rows):
        def objective(model, guide):
            made.append(Breaking(PredictiveLogLikelihood(rows, beta)(model, guide), 6, what))
            return made[-1]

        return objective

    result = fit_validated(guide, loss, x, y, steps=20, beta=0.1, validation=Validation(checks=10, folds=1))
    assert "at step 6" in result.failure and 2 <= result.best_step <= 6
    if result.best_step == 6:
        assert same(made[0].before, values(made[0].objective))


@pytest.mark.parametrize("folds", [1, 2])
def test_a_user_who_interrupts_a_validated_fit_keeps_what_was_reached(folds):
    x, y = regression(30)
    guide, seen = guided(x, y), []
    start = values(guide)

    def report(done, total, figures):
        seen.append(values(guide))
        if done == total - 3:
            raise KeyboardInterrupt

    validation = Validation(betas=(0.1, 1.0), checks=10, folds=folds, search=0.5)
    with pytest.raises(KeyboardInterrupt):
        fit_validated(
            guide,
            lambda beta, rows: PredictiveLogLikelihood(rows, beta),
            x,
            y,
            steps=20,
            validation=validation,
            report=report,
        )
    assert not same(start, values(guide))
    assert any(same(one, values(guide)) for one in seen)


def test_stochastic_gradient_hmc_stops_before_it_moves():
    x, y = regression(12)
    for name, match in (
        ("q.mean", "gradient of the inducing variables"),
        ("inducing", "gradient in the hyperparameters"),
    ):
        guide, calls = guided(x, y, covariance="delta"), []
        parameters = dict(guide.named_parameters())
        spoilt = next(p for key, p in parameters.items() if name in key)
        seen = []

        def spoil(gradient, guide=guide, calls=calls, seen=seen):
            calls.append(1)
            seen.append(values(guide))
            return gradient * math.nan if len(calls) > 3 else gradient

        spoilt.register_hook(spoil)
        with pytest.raises(ValueError, match=f"{match} holds NaN or infinity.*: lower step_size"):
            StochasticGradientHMC(burn_in=20).run(guide, x, y, num_samples=1)
        assert all(bool(torch.isfinite(value).all()) for value in values(guide).values())
