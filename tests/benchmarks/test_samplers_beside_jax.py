"""The study runs this library's sampler from given starts; the density in JAX is that of the model, where JAX is installed."""

import importlib.util
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch

from benchmarks.common import jax_samplers
from benchmarks.common.sampled_data import effective, judged, step_function
from benchmarks.studies import samplers_beside_jax as study
from pyro_dgp import CompiledDensity, module_local_parameters
from pyro_dgp.mcmc.chains import Chains

pytestmark = pytest.mark.usefixtures("local")


def test_chains_begin_where_the_plan_says(monkeypatch):
    monkeypatch.setattr(CompiledDensity, "backend", "eager")
    data = step_function(8)
    first = study.starts(data, "step", chains=2, seed=0)
    assert {len(value) for value in first.values()} == {2}
    assert np.abs(first["h1_whitened"][0] - first["h1_whitened"][1]).max() > 0.1
    plan = jax_samplers.Plan(first, warmup=2, draws=3, max_tree_depth=2, seed=10**6)
    begun = []
    original = study._FromStarts.setup

    def recorded(kernel, warmup_steps, *arguments):
        original(kernel, warmup_steps, *arguments)
        begun.append(kernel.initial_params["h1_whitened"].numpy())

    monkeypatch.setattr(study._FromStarts, "setup", recorded)
    model = study.built(data)
    found = study.by_pyro_dgp(model, data[0], data[1], plan)
    np.testing.assert_array_equal(begun, first["h1_whitened"])
    assert found.draws["h1_whitened"].shape == (2, 3, 8, 2)
    assert 0 < found.drawing_seconds < found.seconds and 6 <= found.gradients <= 18
    draws = {name: torch.from_numpy(values) for name, values in found.draws.items()}
    values, nll = judged(Chains(draws, model=model, args=data[:2]), data)
    assert values.shape == (2, 3, 51) and len(nll) == 2


def test_effective_draws_of_independent_numbers_are_all():
    values = np.random.default_rng(0).standard_normal((4, 500, 2))
    values[:, :, 1] = np.repeat(values[:, ::10, 1], 10, axis=1)
    r_hat, count = effective(values)
    assert r_hat[0] < 1.01 and 1600 < count[0] < 2600 and count[1] < 300


def test_without_the_peers_it_says_what_to_install(monkeypatch):
    if importlib.util.find_spec("numpyro") is not None:
        monkeypatch.setitem(__import__("sys").modules, "numpyro", None)
    with pytest.raises(SystemExit, match="pip install numpyro blackjax"):
        jax_samplers.require_peers()


@pytest.fixture(scope="module")
def process():
    """A process whose XLA has the options of the study."""
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        patch.setenv("XLA_FLAGS", study.XLA_FLAGS)
        yield pool


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX: pip install numpyro blackjax")
@pytest.mark.parametrize("rows", [10, 20, 40])
def test_the_density_in_jax_is_that_of_the_model(rows, process):
    """In the process; any other density is refused."""
    data = step_function(rows)
    plan = jax_samplers.Plan(study.starts(data, "step", chains=2, seed=0), warmup=1, draws=1, max_tree_depth=1, seed=0)
    assert process.submit(agreement, data, plan, 1.0).result() == ""
    assert "the density in JAX is another one" in process.submit(agreement, data, plan, 1.01).result()


def agreement(data, plan, factor):
    """What is wrong with the density in JAX of targets that are multiplied by a factor."""
    import jax  # type: ignore[import-not-found]

    jax.config.update("jax_enable_x64", True)
    torch.set_default_dtype(torch.float64)
    original = jax_samplers.potential
    jax_samplers.potential = lambda model, x, y: original(model, x, factor * y)
    try:
        with module_local_parameters():
            jax_samplers.require_agreement(study.built(data), data[0], data[1], plan)
    except ValueError as error:
        return str(error)
    finally:
        jax_samplers.potential = original
    return ""


def test_the_table_has_a_line_for_each_run(capsys):
    row = {"problem": "step", "rows": 20, "chains": 4, "seed": 0, "draws": 10, "sampler": "numpyro"}
    row |= {"gradients_per_second": 1000.0, "gradients": 400, "drawing_seconds": 2.0, "seconds": 9.0, "r_hat_max": 1.01}
    study.report([row | {"ess_density": 50.0, "ess_min": 30.0, "ess_median": 40.0}])
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last == ["step", "20", "4", "numpyro", "1000", "10.0", "25.00", "15.00", "20.00", "9", "1.010"]
