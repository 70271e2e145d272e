"""Inferences made by hand, and what samplers are judged by."""

import doctest
import importlib
import inspect
import pickle
import time
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import ELBO, RBF, EllipticalSlice, GaussianProcess, InducingPoints, Matern52, MonteCarlo, Sum
from pyro_dgp.kernels.named import named_kernel
from pyro_dgp.mcmc import conditioning
from pyro_dgp.mcmc.diagnostics import convergence
from pyro_dgp.training.optimising import FitResult
from pyro_dgp.zoo.anatomy import anatomy_of, free_parameters
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.by_mcmc import ByMCMC
from pyro_dgp.zoo.given_minutes import remarks_on_time, steps_within
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.predictors import DrawsPredictor, predictive_means
from pyro_dgp.zoo.settings import Settings
from pyro_dgp.zoo.starts import one_layer_first, sparse_gp_first
from tests.comparison.own_models import Heavy, Skip
from tests.examples import OneLayer, TwoLayers, TwoSites, regression

TOY = Settings(inducing=5, samples=2, epochs=2, mcmc_samples=8, warmup=2)


def quiet(step, total, figures):
    del step, total, figures


@pytest.mark.parametrize("name", ["by_guide", "by_marginal_likelihood", "by_mcmc", "by_sghmc"])
def test_the_examples_run(name):
    results = doctest.testmod(importlib.import_module(f"pyro_dgp.zoo.{name}"))
    assert results.attempted > 0 and results.failed == 0


def test_objects_do_in_the_place_of_functions_of_the_settings():
    x, y = regression(15)
    by_hand = ByGuide(InducingPoints(5, per_output=True), MonteCarlo(2), ELBO, first=one_layer_first)
    predictions = []
    for inference in (by_hand, METHODS["dsvi"].inference):
        torch.manual_seed(0)
        fitted = inference.run(TwoLayers(x), x, y, settings=TOY, progress=quiet)
        torch.manual_seed(0)
        predictions.append(fitted.predict(x).mean)
    assert torch.equal(*predictions)


def test_hyperparameters_without_priors_take_fitted_values_and_the_others_are_sampled():
    x, y = regression(10)
    model = Skip(x)
    before = model.likelihood.variance.detach().clone()
    inference = ByMCMC(EllipticalSlice)
    fitted = inference.run(model, x, y, settings=TOY, progress=quiet)
    assert not torch.equal(model.likelihood.variance, before)
    assert fitted.draws["top.kernel.lengthscale"].shape == (1, 8, 3)
    said = inference.remarks_on(anatomy_of(model, x, y))[0]
    assert said.startswith("no prior stands on hidden.kernel.lengthscale, ") and "dsvi learns on the same rows" in said
    heavy = Heavy(x)
    assert inference.remarks_on(anatomy_of(heavy, x, y)) == [] and free_parameters(heavy) == ()


def counted(monkeypatch):
    calls = []
    inner = conditioning.condition_on

    def count(*args, **kwargs):
        calls.append(1)
        return inner(*args, **kwargs)

    monkeypatch.setattr(conditioning, "condition_on", count)
    return calls


@pytest.mark.parametrize("kind", ["sampled", "exact"])
def test_draws_are_conditioned_once_for_several_predictions(monkeypatch, kind):
    x, y = regression(10)
    model = TwoSites() if kind == "sampled" else OneLayer()
    draws = {"f_whitened": torch.randn(2, 3, 10, 1)} if kind == "sampled" else {}
    calls = counted(monkeypatch)

    def prediction(predictor):
        torch.manual_seed(0)
        return predictor(x + 0.1)

    predictor = DrawsPredictor(model, x, y, draws)
    predictions = [prediction(predictor), prediction(predictor), prediction(pickle.loads(pickle.dumps(predictor)))]
    assert len(calls) == 2  # a copy from a pickle holds nothing
    fresh = prediction(DrawsPredictor(model, x, y, draws))
    for each in predictions:
        assert torch.equal(each.mean, fresh.mean) and torch.equal(each.log_prob(y), fresh.log_prob(y))
    del calls[:]
    with torch.no_grad():
        model.gp.kernel.lengthscale_unconstrained.data += 1.0  # as the next fit of this model would
    again, fresh = prediction(predictor), prediction(DrawsPredictor(model, x, y, draws))
    assert len(calls) == 2 and torch.equal(again.mean, fresh.mean) and not torch.equal(again.mean, predictions[0].mean)
    y += 1.0
    changed, fresh = prediction(predictor), prediction(DrawsPredictor(model, x, y, draws))
    assert torch.equal(changed.mean, fresh.mean)


def test_conditions_that_take_too_much_memory_are_not_kept(monkeypatch):
    x, y = regression(10)
    calls = counted(monkeypatch)
    monkeypatch.setattr(conditioning, "MOST_KEPT", 100)  # a factor alone has a hundred numbers
    predictor = DrawsPredictor(OneLayer(), x, y)
    assert torch.equal(predictor(x).mean, predictor(x).mean) and len(calls) == 2


class TwoOfThree(PyroModule):
    """Classes of a function each, by their numbers."""

    def __init__(self, kind):
        super().__init__()
        self.gp, self.kind = GaussianProcess(RBF(), num_outputs=3), kind

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", self.kind(logits=f).to_event(1), obs=y)


@pytest.mark.parametrize("kind", [dist.Categorical, dist.OneHotCategorical])
def test_chains_of_classes_are_judged_by_their_probabilities(kind):
    """The number of a class has no mean, so that its figures were NaN without a word."""
    x, _ = regression(8)
    y = torch.arange(8) % 3
    y = y if kind is dist.Categorical else torch.nn.functional.one_hot(y, 3).to(x)
    model = TwoOfThree(kind).requires_grad_(False)
    fitted = ByMCMC(EllipticalSlice).run(model, x, y, settings=TOY, progress=quiet)
    means = predictive_means(fitted.predict, x, 1)
    f = torch.stack([model.gp(x).unwhiten(eps) for eps in fitted.draws["f_whitened"][0]])
    torch.testing.assert_close(means, f.softmax(-1)[None], rtol=1e-3, atol=1e-3)
    assert means.shape == (1, 8, 8, 3) and fitted.diagnostics["r_hat_max"] > 0


class Forbidden(ByGuide):
    def run(self, *args):
        raise AssertionError("nothing is to be learned")


def test_what_does_not_train_is_left_where_it_is():
    x, y = regression(10)
    model = Skip(x).requires_grad_(False)
    before = model.likelihood.variance.detach().clone()
    ByMCMC(EllipticalSlice, learner=Forbidden(InducingPoints(5), MonteCarlo(1))).run(
        model, x, y, settings=TOY, progress=quiet
    )
    assert torch.equal(model.likelihood.variance, before)


def test_chains_are_judged_by_their_density_and_the_function_values_at_the_data():
    """Function values are m + L eps of the draws; the whitened values themselves would give other figures."""
    x, y = regression(10)
    model = TwoSites().requires_grad_(False)
    fitted = ByMCMC(EllipticalSlice).run(model, x, y, settings=replace(TOY, mcmc_samples=40), progress=quiet)
    with torch.no_grad():
        f = torch.stack([model.gp(x).unwhiten(eps) for eps in fitted.draws["f_whitened"][0]])
    expected = convergence({"lp": torch.as_tensor(fitted.sample_stats["lp"]), "f": f[None, ..., 0]}, None)
    assert fitted.diagnostics["r_hat_max"] == pytest.approx(expected["r_hat_max"], rel=1e-4)
    assert fitted.diagnostics["ess_min"] == pytest.approx(expected["ess_min"], rel=1e-4)
    assert fitted.diagnostics["ess_min"] != pytest.approx(convergence(fitted.draws, None)["ess_min"], rel=1e-2)


@pytest.mark.parametrize("name", ["svgp", "ppgpr", "dsvi", "dsvi-collapsed", "sgp-avi"])
def test_a_method_trains_for_the_minutes_that_it_is_given(name):
    x, y = regression(200)
    method, most = METHODS[name], 0.1
    settings = Settings(inducing=20, samples=2, batch_size=50, minutes=most)
    torch.manual_seed(0)
    model = method.architecture.build(x, settings)
    start = time.perf_counter()
    fitted = method.inference.run(model, x, y, settings=settings, progress=quiet)
    seconds = time.perf_counter() - start
    assert 0.2 * 60 * most < seconds < 6 * 60 * most  # other programs may take their share of the machine
    assert fitted.steps > (3 if name == "sgp-avi" else 20) and method.inference.keeps_time
    assert not METHODS["nuts"].inference.keeps_time and not METHODS["exact-gp"].inference.keeps_time


@pytest.mark.parametrize("name", ["sgpr", "vff-collapsed"])
def test_a_fit_that_ends_by_itself_takes_the_minutes_at_most(name):
    """More minutes allow more steps, until the loss stands still."""
    x, y = regression(200)
    method, steps = METHODS[name], {}
    for minutes in (1e-6, 0.1):
        settings = Settings(inducing=20, minutes=minutes)
        torch.manual_seed(0)
        model = method.architecture.build(x, settings)
        start = time.perf_counter()
        steps[minutes] = method.inference.run(model, x, y, settings=settings, progress=quiet).steps
        assert time.perf_counter() - start < 6 * 60 * 0.1
    assert 0 < steps[1e-6] < 5 < steps[0.1]


@pytest.mark.parametrize("name", ["svgp", "dsvi-collapsed", "dspp"])
def test_minutes_that_allow_a_single_step_are_said(name):
    x, y = regression(30)
    method, settings = METHODS[name], Settings(inducing=5, width=1, minutes=1e-9)
    torch.manual_seed(0)
    model = method.architecture.build(x, settings)
    fitted = method.inference.run(model, x, y, settings=settings, progress=quiet)
    assert fitted.steps < 10 and "its minutes allowed a single step: give more of them" in fitted.remarks
    assert remarks_on_time(0.1, 2) == remarks_on_time(None, 1) == []


@pytest.mark.parametrize("start", [one_layer_first, sparse_gp_first])
def test_a_start_takes_a_third_of_the_minutes_at_most(start, monkeypatch):
    """Targets of noise, which one layer explains nothing of: there is no time for a second start."""
    x, y = torch.randn(150, 3), torch.randn(150)
    counted, made = [], []

    def planned(minutes, trial, **_):
        counted.append(minutes)
        return 600

    def trained(*_, steps, **__):
        made.append(steps)
        return FitResult([], 0.0)

    monkeypatch.setattr("pyro_dgp.zoo.starts.steps_within", planned)
    monkeypatch.setattr("pyro_dgp.training.second_start.fit", trained)
    monkeypatch.setattr("pyro_dgp.zoo.starts.fit", trained)
    settings = Settings(inducing=5, width=2, minutes=3.0)
    model = METHODS["dsvi" if start is one_layer_first else "sgp-avi"].architecture.build(x, settings)
    start(model, x, y, settings)
    assert counted == [1.0] and made == [600]


def test_a_fit_that_makes_no_step_is_given_a_number_of_them():
    assert steps_within(1.0, lambda steps, callback: time.sleep(0.001), start=time.perf_counter()) > 1


@pytest.mark.parametrize(
    "name",
    [
        "exact-gp",
        "sgpr",
        "svgp",
        "ppgpr",
        "dsvi",
        "dsvi-collapsed",
        "gamma-dgp",
        "dspp",
        "avdgp-ar2p",
        "nuts",
        "solve-gp",
    ],
)
def test_a_method_takes_the_kernel_of_the_settings_or_else_its_own(name):
    x, architecture = torch.randn(10, 3), METHODS[name].architecture
    own = (
        Sum
        if name in ("exact-gp", "sgpr", "svgp", "ppgpr", "dsvi", "dsvi-collapsed", "gamma-dgp", "dspp")
        else Matern52
    )
    for settings, kind in ((TOY, own), (replace(TOY, kernel="rbf"), RBF), (replace(TOY, kernel="rbf+matern52"), Sum)):
        model: Any = architecture.build(x, settings)
        assert {type(gp.kernel) for gp in (*model.hidden, model.top)} == {kind}
    parts = named_kernel("rbf+matern52", 3, 2).parts
    assert [type(part) for part in parts] == [RBF, Matern52]
    for part in parts:
        assert part.variance.tolist() == pytest.approx([0.5, 0.5])
        assert part.lengthscale.detach().numpy() == pytest.approx(np.full((2, 3), 3**0.5))


def test_timing_a_fit_leaves_it_as_it_was():
    x, y = regression(30)
    inference = METHODS["svgp"].inference
    model = METHODS["svgp"].architecture.build(x, TOY)
    guide = inference.guide(model, x, TOY)
    guide.initialize(x, y)
    both = torch.nn.ModuleList([guide, model])
    before = {name: value.clone() for name, value in both.named_parameters()}
    torch.manual_seed(3)
    timed = replace(TOY, epochs=None, minutes=1.0)
    assert inference._steps(guide, x, y, settings=timed, start=time.perf_counter()) > 100
    after = dict(both.named_parameters())
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    drawn = torch.rand(())
    torch.manual_seed(3)
    assert drawn == torch.rand(())
    validated = METHODS["dspp"].inference
    assert validated.cost(Settings(), 5000) == 2.75 and validated.cost(Settings(beta=1.0), 5000) == 1.0
    assert (
        validated.cost(Settings(), 1000) == 2 * (0.75 + 1 + 1) + 1
    )  # two folds, a run of the fallback, and once more on all rows


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"epochs": -3}, "epochs must be at least 1, got -3"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"kernel": "rbff"}, "there is no kernel 'rbff': choose from "),
    ],
)
def test_settings_that_no_method_can_use_are_refused_when_they_are_made(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        Settings(**given)
    with pytest.raises(ValueError, match=sentence):
        replace(TOY, **given)


def test_the_signature_of_settings_lists_all_of_them():
    shown = inspect.signature(Settings).parameters
    assert list(shown) == [field.name for field in fields(Settings)] and shown["layers"].default == 2
