import gc
import warnings
from pathlib import Path

import jaxtyping
import pyro
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    import arviz  # noqa: F401  # what other libraries announce when they are imported is no failure of ours
    import gpytorch  # noqa: F401

from tests import annotations

annotations.check_at_less_cost()

HERE = Path(__file__).parent
# They train, sample, compile, or start processes throughout. Single tests are marked where they stand.
SLOW = (
    "benchmarks",
    "comparison",
    "contract",
    "documents",
    "downstream",
    "functions",
    "generated/test_generated.py",
    "guides/test_functions_and_handlers.py",
    "guides/test_groups.py",
    "guides/test_hyperparameters.py",
    "mcmc/test_chains.py",
    "mcmc/test_compiled_density.py",
    "mcmc/test_elliptical.py",
    "mcmc/test_sghmc.py",
    "mcmc/test_sparse.py",
    "mcmc/test_surrogates.py",
    "prediction/test_gradients.py",
    "prediction/test_predict.py",
    "processes/test_amortized.py",
    "test_doctests.py",
    "training/test_compiled_objective.py",
    "training/test_data_sets.py",
    "training/test_validation.py",
    "zoo",
)


def pytest_collection_modifyitems(items):
    assert all((HERE / slow).exists() for slow in SLOW), "SLOW names a test file that is gone"
    for item in items:
        if any(item.path.is_relative_to(HERE / slow) for slow in SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """What was imported stays: no search for garbage goes through it again, which was a sixth of the time of some tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(autouse=True)
def _fresh():
    annotations.calls.clear()
    annotations.defined.clear()
    annotations.in_test = True
    pyro.clear_param_store()
    pyro.enable_validation(True)
    pyro.settings.set(module_local_params=False)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    yield
    annotations.in_test = False
    pyro.clear_param_store()
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def timed_programs():
    """Programs that take longer than their function are set aside."""


@pytest.fixture(autouse=True)
def _untimed(request, monkeypatch):
    """No program is set aside for its time, which depends on the machine, but in tests of that."""
    from pyro_dgp.internal.compiled_function import CompiledFunction, FasterFunction

    if "timed_programs" not in request.fixturenames:
        monkeypatch.setattr(FasterFunction, "passes", CompiledFunction.passes)


@pytest.fixture
def local():
    """Several models of one class in one test: each keeps its own parameters."""
    from pyro_dgp import module_local_parameters

    with module_local_parameters():
        yield


@pytest.fixture
def unannotated():
    """Calls with wrong types reach the library, as a user's do: no check of annotations stands before them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def single():
    """Single precision by default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)
