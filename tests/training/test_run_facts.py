"""A run that trains by something else than the run that was saved is refused, where the first loss is the same."""

import json
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from pyro_dgp import (
    ELBO,
    Checkpoints,
    CompiledObjective,
    DeepGP,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    PredictiveLogLikelihood,
    Validation,
    Variational,
    fit,
    fit_validated,
)
from pyro_dgp.internal.checkpoint import read_state, write_state
from pyro_dgp.training.run_facts import attributes_of_modules, facts_of_run, plain
from tests.training.test_checkpoints import Killed, by_second_start, data, killer


class Weighted(ELBO):
    """A bound with settings that only its gradients know."""

    def __init__(self, num_data, settings=None):
        super().__init__(num_data)
        self._settings = settings


class Noted(DeepGP):
    """A model that notes how often it was called, and at how many rows."""

    calls, last = 0, None

    def forward(self, x, y=None):
        self.calls, self.last = self.calls + 1, x.shape
        return super().forward(x, y)


def one_layer(
    loss=partial(PredictiveLogLikelihood, beta=0.05), *, kernel="rbf", lengthscale=None, samples=5, kind=DeepGP
):
    torch.manual_seed(0)
    x, y = data()
    model = kind(x, layers=1, kernel=kernel)
    if lengthscale is not None:
        model.top.kernel.lengthscale = torch.full_like(model.top.kernel.lengthscale, lengthscale)
    guide = Variational(model, InducingPoints(6), MonteCarlo(samples))
    guide.initialize(x, y)
    return loss(30)(model, guide), x, y


def optimiser(kind=torch.optim.Adam, *, but="nothing", **settings):
    def recipe(objective, rate):
        chosen = [each for name, each in objective.named_parameters() if but not in name]
        return kind(chosen, lr=rate, **settings)

    return recipe


def run(folder, optimizer=None, *, fixed=False, compiled=False, steps=3, callback=None, **options):
    objective, x, y = one_layer(**options)
    if fixed:
        objective.model.likelihood.requires_grad_(False)
    with Checkpoints(folder, seconds=0.0):
        return fit(
            CompiledObjective(objective) if compiled else objective,
            x,
            y,
            steps=steps,
            optimizer=optimizer or optimiser(),
            callback=callback,
        ).losses


@pytest.mark.parametrize(
    ("sentence", "change"),
    [
        ("has beta of the loss 0.05, and this one 5.0:", {"loss": partial(PredictiveLogLikelihood, beta=5.0)}),
        (
            r"has parameter \S*likelihood.variance_unconstrained trained in group 0, of shape \(\), and this one fixed,",
            {"fixed": True},
        ),
        ("variance_unconstrained trained .* and this one fixed,", {"optimizer": optimiser(but="variance")}),
        (
            r"has betas of group 0 of the optimizer \[0.9, 0.999\], and this one \[0.5, 0.9\]:",
            {"optimizer": optimiser(betas=(0.5, 0.9))},
        ),
        ("has eps of group 0 of the optimizer 1e-08, and this one 0.001:", {"optimizer": optimiser(eps=1e-3)}),
        (
            "has weight_decay of group 0 of the optimizer 0, and this one 0.1:",
            {"optimizer": optimiser(weight_decay=0.1)},
        ),
        ("has amsgrad of group 0 of the optimizer None, and this one True:", {"optimizer": optimiser(amsgrad=True)}),
        ("has kind of the optimizer Adam, and this one Adamax", {"optimizer": optimiser(torch.optim.Adamax)}),
        ("has kind of model.top.kernel RBF, and this one Matern52:", {"kernel": "matern52"}),
        ("has num_components of guide.propagation 5, and this one 6:", {"samples": 6}),
        ("began with other values of model.top.kernel.lengthscale_unconstrained:", {"lengthscale": 0.3}),
    ],
)
def test_another_run_with_the_same_first_loss_is_refused(sentence, change, tmp_path):
    first = run(tmp_path)
    assert run(tmp_path) == first
    with pytest.raises(ValueError, match=sentence + ".*or delete this one"):
        run(tmp_path, **change)
    if "optimizer" not in change:
        assert run(tmp_path / "other", **change)[0] == pytest.approx(first[0], rel=1e-9)  # no loss tells them apart


def test_how_an_optimiser_computes_its_steps_is_no_other_run(tmp_path):
    assert run(tmp_path, optimiser(foreach=True)) == run(tmp_path, optimiser(foreach=False))


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (1, 2),
        ((1, 2.0), (1, 3.0)),
        ({"a": {"b": [1]}}, {"a": {"b": [2]}}),
        (torch.tensor(1.0), torch.tensor(2.0)),
        (ELBO(3), ELBO(4)),
        (Validation(), Validation(search=0.5)),
    ],
)
def test_the_settings_of_a_loss_of_ones_own_are_looked_into(was, now, tmp_path):
    first = run(tmp_path, loss=partial(Weighted, settings=was))
    assert run(tmp_path, loss=partial(Weighted, settings=was)) == first
    with pytest.raises(ValueError, match="has _settings of the loss"):
        run(tmp_path, loss=partial(Weighted, settings=now))


def test_the_start_of_an_exact_gp_is_looked_at(tmp_path):
    def train(shift):
        torch.manual_seed(0)
        x, y = data()
        model = DeepGP(x, layers=1)
        with torch.no_grad():
            model.top.kernel.lengthscale_unconstrained += shift
        with Checkpoints(tmp_path):
            return fit(MarginalLikelihood(model), x, 0 * y, steps=2).losses

    first = train(0.0)
    assert train(1e-14) == first  # rounding
    with pytest.raises(ValueError, match="began with"):
        train(1e-3)


def test_a_compiled_objective_goes_on_as_one(tmp_path):
    first = run(tmp_path, compiled=True, steps=1)
    assert run(tmp_path, compiled=True, steps=1) == first
    with pytest.raises(ValueError, match="has beta of the loss|has loss"):
        run(tmp_path, compiled=True, steps=1, loss=partial(PredictiveLogLikelihood, beta=5.0))


def validated(folder, after=None, *, kind=DeepGP, first=0.1, **settings):
    torch.manual_seed(0)
    x, y = data()
    guide = Variational(kind(x, layers=1), InducingPoints(6), MonteCarlo(2))
    guide.initialize(x, y)
    validation = Validation(**{"betas": (0.1, 1.0), "share": 0.2, "checks": 2, "folds": 1} | settings)
    with Checkpoints(folder, seconds=0.0):
        fitted = fit_validated(
            guide,
            lambda beta, rows: PredictiveLogLikelihood(rows, first if beta == 0.1 else beta),
            x,
            y,
            steps=8,
            validation=validation,
            report=after,
        )
    return [fitted.validation_nll, fitted.best_step, *fitted.searched.values()]


def test_other_settings_of_a_validation_are_refused(tmp_path):
    first = validated(tmp_path)
    assert validated(tmp_path) == first
    for settings in (
        {"betas": (0.1, 2.0)},
        {"betas": (20.0, 50.0)},
        {"checks": 4},
        {"patience": 1},
        {"folds": 2},
        {"search": 0.3},
        {"runs": (0.5,)},
    ):
        (name,) = settings
        with pytest.raises(ValueError, match=f"has {name} of the validation .*, and this one"):
            validated(tmp_path, **settings)


def test_a_search_does_not_pass_over_a_run_that_is_refused(tmp_path):
    validated(tmp_path)
    with pytest.raises(ValueError, match="has beta of the loss 0.1, and this one 0.2:"):
        validated(tmp_path, first=0.2)


def test_a_second_start_does_not_pass_over_a_run_that_is_refused(tmp_path, monkeypatch):
    with Checkpoints(tmp_path):
        by_second_start(None, tmp_path)
    monkeypatch.setattr("pyro_dgp.training.second_start.BETA", 0.2)
    with Checkpoints(tmp_path), pytest.raises(ValueError, match="has beta of the loss 0.05, and this one 0.2:"):
        by_second_start(None, tmp_path)


@pytest.mark.parametrize("step", [1, 3, 5])
def test_what_a_model_notes_as_it_trains_is_no_other_run(step, tmp_path):
    """Runs that have ended are not made again, so that the number of calls is another one."""
    whole = validated(tmp_path / "whole", kind=Noted)
    with pytest.raises(Killed):
        validated(tmp_path / "cut", killer(step), kind=Noted)
    assert validated(tmp_path / "cut", kind=Noted) == whole
    assert validated(tmp_path / "cut", kind=Noted) == whole


@pytest.mark.parametrize("lacks", ["kind of the optimizer", "loss", "beta of the loss", "kind of model"])
def test_a_file_that_does_not_know_a_fact_is_refused(lacks, tmp_path):
    run(tmp_path)
    path = tmp_path / "run-1.safetensors"
    state = read_state(path)
    del state["facts"][lacks]
    write_state(path, state)
    with pytest.raises(ValueError, match=f"has {lacks} None, and this one .*: give another folder, or delete this one"):
        run(tmp_path)


@pytest.mark.parametrize(
    "spoiled", [{"start": 3}, {"start": {"a": "b"}}, {"start": [1]}, {"changing": 3}, {"changing": [[]]}]
)
def test_facts_that_are_none_are_one_sentence(spoiled, tmp_path):
    run(tmp_path)
    path = tmp_path / "run-1.safetensors"
    write_state(path, read_state(path) | spoiled)
    with pytest.raises(ValueError, match="run-1.safetensors' cannot be read"):
        run(tmp_path)


@dataclass
class Record:
    size: int
    of: object


Pair = namedtuple("Pair", "first second")


def test_plain_values_are_those_of_json():
    value = {
        "numbers": [1, 2.5, True, np.float32(0.5), np.int64(3), np.bool_(True), torch.tensor(4.0), np.array([5])],
        "odd": (float("inf"), float("nan"), 1j, None, torch.float64),
        "sets": [{"b", "a"}, frozenset({3, 20, 100})],
        "records": [Record(3, object()), Pair(1, "two"), torch.Size([2])],
        "names": [int, killer, torch.zeros(2), object()],
        4: {},
    }
    found = plain(value)
    assert found == {
        "numbers": [1, 2.5, True, 0.5, 3, True, 4.0, 5],
        "odd": [float("inf"), "nan", "1j", None, "torch.float64"],
        "sets": [["a", "b"], [100, 20, 3]],
        "records": [{"kind": "Record", "size": 3, "of": "object"}, [1, "two"], [2]],
        "names": ["int", "killer", "Tensor", "object"],
        "4": {},
    }
    assert json.loads(json.dumps(found)) == found
    own = []
    own.append(own)
    assert plain(own) == [[[[["list"]]]]]


def facts():
    """All facts of a run whose loss holds sets, functions and objects."""
    loss = partial(Weighted, settings={"names": {"alpha", "beta", "gamma"}, "of": killer, "object": object()})
    objective, _, _ = one_layer(loss)
    objective.seen, objective.long = {"x", "y", "z"}, list(range(1000))
    return facts_of_run(objective, optimiser()(objective, 0.1), is_saved=True) | attributes_of_modules(objective)


def test_facts_are_those_of_every_process():
    found = facts()
    assert found["long of the objective"].startswith("with checksum ")
    assert found["_settings of the loss"] == {"names": ["alpha", "beta", "gamma"], "of": "killer", "object": "object"}
    assert not any("0x" in json.dumps(value) for value in found.values())
    program = (
        "import json, torch; torch.set_default_dtype(torch.float64); from tests.training.test_run_facts import facts; "
        "print(json.dumps(facts()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == found
