"""The contract table. Here each model goes through SVI, and through a sixth of the other inferences; ``python -m tests.contract`` runs all."""

import inspect
import re
from pathlib import Path

import pytest

import pyro_dgp
from pyro_dgp.propagation import Propagation
from tests.contract import deep, inferences, likelihoods, one_layer, structures
from tests.contract.inferences import INFERENCES
from tests.contract.refused import REFUSED
from tests.contract.table import CASES, SENTENCES, outcome, pairs

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"
ALL = list(pairs())
NUMBERS = {name: number for number, name in enumerate((*CASES, *INFERENCES))}
HERE = [(m, i) for m, i in ALL if i == "SVI" or (NUMBERS[m] + NUMBERS[i]) % 6 == 0]
#: Parts of the library that no inference of the table uses, and why.
ELSEWHERE = {
    "AffineMaps": "the networks of AmortizedInducingPoints by default",
    "OneNetwork": "other networks of AmortizedInducingPoints; tests/processes/test_amortized.py",
    "CompiledObjective": "runs a loss as it is; tests/training/test_compiled_objective.py",
    "SurrogateSlice": "the moves of EllipticalSlice for function values; tests/mcmc/test_surrogates.py has its hyperparameters",
    "FourierFeatures": "serve additive Matern kernels alone; tests/processes/test_fourier_features.py",
    "SphericalHarmonics": "serve zonal kernels alone; tests/processes/test_spherical_harmonics.py",
    "ActivationFeatures": "serve zonal kernels alone; tests/processes/test_activations.py",
    "PublishedActivationFeatures": "the same; tests/processes/test_activations.py",
    "CollapsedELBO": "serves Gaussian noise alone; tests/losses/test_collapsed.py and test_collapsed_deep.py",
    "HyperparameterPrior": "is a prior, no loss; tests/losses/test_hyperparameter_prior.py",
    "WithPrior": "adds a prior to any objective; tests/losses/test_hyperparameter_prior.py",
    "CollapsedELBOFromSums": "serves Fourier features under Gaussian noise alone; tests/losses/test_collapsed_sums.py",
    "SufficientStatistics": "sums over the data for CollapsedELBOFromSums; tests/losses/test_collapsed_sums.py",
    "MomentMatching": "serves radial basis function kernels and affine maps between layers; tests/propagation/test_moment_matching.py",
    "WithMean": "changes what amortised networks see; tests/processes/test_amortized.py",
}


@pytest.mark.parametrize(("model", "inference"), HERE, ids=lambda name: name.replace(" ", "_"))
def test_a_model_is_fitted_or_refused(model, inference, monkeypatch):
    monkeypatch.setattr(inferences, "STEPS", 200)
    monkeypatch.setattr(inferences, "DRAWS", 200)
    monkeypatch.setattr(inferences, "SHARE", 0.6)
    assert outcome(model, inference).failure == ""


def test_known_answers_are_known():
    """Importance weights leave some tens of draws at least."""
    for name, case in CASES.items():
        assert case.answers.effective > 30, name


def test_every_way_to_fit_is_in_the_table():
    """A new process, propagation, loss or sampler joins the table, or ELSEWHERE says why not."""
    text = inspect.getsource(inferences)
    bases = ("Loss", "ProcessFamily", "BasisFamily", "AmortizationRecipe")
    kinds = []
    for name in pyro_dgp.__all__:
        part = getattr(pyro_dgp, name)
        if not inspect.isclass(part):
            continue
        room = part.__module__.split(".")[1]
        is_family = room == "processes" and hasattr(part, "create")
        is_loss = room == "losses" and name != "Objective"
        is_sampler = room == "mcmc" and hasattr(part, "sample")
        if is_family or is_loss or is_sampler or (issubclass(part, Propagation) and part is not Propagation):
            kinds.append(name)
    assert len(kinds) >= 10
    missing = [
        name for name in kinds if name not in bases and not re.search(rf"\b{name}\b", text) and name not in ELSEWHERE
    ]
    assert not missing


def test_every_likelihood_is_in_the_table():
    text = "".join(inspect.getsource(module) for module in (deep, likelihoods, one_layer, structures))
    kinds = [
        name
        for name in pyro_dgp.__all__
        if inspect.isclass(part := getattr(pyro_dgp, name)) and issubclass(part, pyro_dgp.Likelihood)
    ]
    assert len(kinds) >= 11
    elsewhere = {"Likelihood", "MissingOutputs"}  # the second wraps others; tests/likelihoods/test_missing.py
    assert not [name for name in kinds if name not in elsewhere and not re.search(rf"\b{name}\b", text)]


def test_refusals_are_of_pairs_that_exist():
    assert set(SENTENCES) <= set(ALL)
    assert len(SENTENCES) == sum(len(refusal.models) for refusal in REFUSED)
    assert len(CASES) >= 40


def test_the_page_shows_this_table():
    """The page has a line for each model and a dash exactly where a refusal is declared."""
    table = PAGE.read_text().split("<!-- table -->")[1].split("<!-- end of table -->")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert [cell.strip(" |") for cell in rows[0][1:]] == list(INFERENCES)
    shown = {row[0].removeprefix("| ").split(":")[0]: [cell.strip(" |") for cell in row[1:]] for row in rows[1:]}
    assert list(shown) == list(CASES)
    for name, cells in shown.items():
        for inference, cell in zip(INFERENCES, cells, strict=True):
            assert (cell == "-") == ((name, inference) in SENTENCES), (name, inference)
