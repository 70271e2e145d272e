"""Files of chains: no code is run when they are read, and a chain that goes on from one goes on to the same bits."""

import copy
import json
import os
import pickle
import struct
import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import HMC, NUTS
from pyro.infer.mcmc.adaptation import ArrowheadMassMatrix
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.infer.mcmc.rwkernel import RandomWalkKernel
from pyro.nn import PyroSample
from torch import Tensor

from pyro_dgp import CompiledDensity, EllipticalSlice, SurrogateSlice, WhitenedNUTS, run_chains, whitened
from pyro_dgp.internal.checkpoint import read_state, write_state
from pyro_dgp.mcmc.initial_points import Ascent
from pyro_dgp.mcmc.kernel_state import stateful
from tests.examples import TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")

X, Y = (value.double() for value in regression(5))
WARMUP, DRAWS = 20, 3


class StoppedError(Exception):
    pass


class Evil:
    """A pickle that makes a file when it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def model():
    """Function values, and one hyperparameter with a prior."""
    result = TwoSites().requires_grad_(False)
    result.gp.kernel.lengthscale = PyroSample(dist.LogNormal(torch.tensor(0.0, dtype=torch.float64), 0.5))
    return result


def arrowhead():
    kernel = NUTS(whitened(model()), max_tree_depth=2, full_mass=[("f_whitened",)])
    kernel.mass_matrix_adapter = ArrowheadMassMatrix()
    return kernel


KERNELS = {
    "nuts": lambda: WhitenedNUTS(model(), max_tree_depth=2),
    "nuts, ascent": lambda: WhitenedNUTS(model(), max_tree_depth=2, start=Ascent(3)),
    "nuts, fixed": lambda: WhitenedNUTS(model(), max_tree_depth=2, step_size=0.1),
    "nuts, programs": lambda: WhitenedNUTS(model(), max_tree_depth=2, density=Eager),
    "nuts of pyro": lambda: NUTS(whitened(model()), max_tree_depth=2, full_mass=[("f_whitened",)]),
    "nuts, arrowhead": arrowhead,
    "hmc": lambda: HMC(whitened(model()), trajectory_length=0.2),
    "random walk": lambda: RandomWalkKernel(whitened(model())),
    "slices": lambda: EllipticalSlice(model(), function_updates=1),
    "surrogates": lambda: SurrogateSlice(model(), function_updates=1, start=Ascent(3)),
    "programs": lambda: SurrogateSlice(model(), function_updates=1, density=Eager),
}


SLOW = ("nuts of pyro", "nuts, arrowhead", "hmc", "programs")


class Eager(CompiledDensity):
    """Recorded programs, without the compiler."""

    backend = "eager"


def run(kernel, folder=None, stop=None, *, seen=None, **changed):
    def report(iterations, total, figures):
        if seen is not None:
            seen.append(iterations)
        if iterations == stop:
            raise StoppedError

    options = {"num_samples": DRAWS, "warmup_steps": WARMUP, "num_chains": 1, "processes": 1} | changed
    return run_chains(kernel, (X, Y), folder=folder, report=report, **options)


def require_equal(one, other):
    assert one.draws.keys() == other.draws.keys() and one.stats.keys() == other.stats.keys()
    assert all(torch.equal(values, other.draws[name]) for name, values in one.draws.items())
    assert all((values == other.stats[name]).all() for name, values in one.stats.items())
    assert one.diagnostics == other.diagnostics


@pytest.fixture
def every_iteration(monkeypatch):
    monkeypatch.setattr("pyro_dgp.mcmc.single_chain.SAVE_EVERY", 0.0)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in KERNELS]
)
def test_a_chain_that_is_cut_and_lengthened_is_that_of_one_run(name, tmp_path, every_iteration):
    """Cut in each window of the adaptation, at the end of the warm-up and behind it; and then made longer."""
    whole, seen = run(KERNELS[name](), num_samples=DRAWS + 2), []
    for stop in (1, 9, 18, WARMUP, WARMUP + 2) if name in ("nuts", "nuts, ascent") else (9, WARMUP + 2):
        with pytest.raises(StoppedError):
            run(KERNELS[name](), tmp_path, stop, seen=seen)
    short = run(KERNELS[name](), tmp_path, seen=seen)
    assert all(torch.equal(values, whole.draws[site][:, :DRAWS]) for site, values in short.draws.items())
    require_equal(run(KERNELS[name](), tmp_path, seen=seen, num_samples=DRAWS + 2), whole)
    assert seen == list(range(1, WARMUP + DRAWS + 3))  # none was made twice
    assert [path.name for path in tmp_path.iterdir()] == ["chain-0.safetensors"]


def test_a_chain_that_goes_on_gives_a_gpu_numbers_that_it_has_not_had(tmp_path, every_iteration, monkeypatch):
    """The generator of a GPU is not saved, and ``torch.manual_seed`` sets it to the beginning of the chain."""
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    run(KERNELS["slices"](), tmp_path)
    first = seeds[-1]
    run(KERNELS["slices"](), tmp_path, num_samples=DRAWS + 2)
    second = seeds[-1]
    run(KERNELS["slices"](), tmp_path, num_samples=DRAWS + 3)
    assert len({first, second, seeds[-1]}) == 3


def facts(value, depth=0):
    """What an object of Pyro holds, as far as it can be compared."""
    if isinstance(value, Tensor):
        return value.detach().clone().tolist(), value.stride()
    if isinstance(value, dict):
        return {str(key): facts(each, depth) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [facts(each, depth) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    is_own = type(value).__module__.startswith(("pyro.infer.mcmc", "pyro.ops", "pyro_dgp.mcmc.nuts"))
    return facts(vars(value), depth + 1) if is_own and depth < 4 else type(value).__qualname__


@pytest.mark.parametrize("name", ["nuts of pyro", "nuts, arrowhead", "hmc", "random walk"])
@pytest.mark.parametrize("iterations", [2, 18])
def test_every_attribute_of_pyros_kernels_is_set_again(name, iterations):
    """So that an attribute that a later version of Pyro adds is met."""
    kernels = KERNELS[name](), KERNELS[name]()
    for kernel in kernels:
        torch.manual_seed(0)
        kernel.setup(WARMUP, X, Y)
    params = kernels[0].initial_params
    for _ in range(iterations):
        params = kernels[0].sample(params)
    stateful(kernels[1]).load_state_dict(copy.deepcopy(stateful(kernels[0]).state_dict()))
    left, right = facts(kernels[0]), facts(kernels[1])
    for known in (left, right):
        known.pop("stats", None)  # of the last draw, made by the next
        known.pop("_initial_params")  # a chain sets them before its setup
        known.pop("_prototype_trace")
    assert left == right


def test_a_kernel_of_its_own_says_what_its_state_is_or_is_not_saved(tmp_path):
    class Walk(MCMCKernel):
        def __init__(self, model):
            self.model, self.calls = model, 0
            super().__init__()

        @property
        def initial_params(self):
            return {"a": torch.zeros(2)}

        def setup(self, warmup_steps, *args, **kwargs):
            self.calls = 0

        def sample(self, params):
            self.calls += 1
            return {"a": params["a"] + torch.randn(2) * self.calls}

    class Saved(Walk):
        def state_dict(self):
            return {"calls": self.calls}

        def load_state_dict(self, state):
            self.calls = state["calls"]

    whole = run(Saved(model()), num_samples=9)
    assert run(Saved(model()), tmp_path).draws["a"].shape == (1, DRAWS, 2)
    require_equal(run(Saved(model()), tmp_path, num_samples=9), whole)
    require_equal(run(Walk(model()), num_samples=9), whole)
    with pytest.raises(
        ValueError,
        match="the state of Walk cannot be saved: give it state_dict and load_state_dict, or leave folder out",
    ):
        run(Walk(model()), tmp_path / "other")


def test_pickles_are_not_read(tmp_path):
    """Neither at the name of the old files nor at that of the new ones."""
    marker, kernel = tmp_path / "marker", EllipticalSlice(TwoSites().requires_grad_(False))
    for name in ("chain-0.pickle", "chain-0.part", ".chain-0.safetensors", "chain-0.safetensors"):
        folder = tmp_path / f"of {name}"
        folder.mkdir()
        (folder / name).write_bytes(pickle.dumps(Evil(marker)))
        if name == "chain-0.safetensors":
            with pytest.raises(ValueError, match="cannot be read .*: delete it to start the chain again") as caught:
                run(kernel, folder)
            assert "\n" not in str(caught.value) and str(folder / name) in str(caught.value)
        else:
            run(kernel, folder, num_samples=1, warmup_steps=0)
        assert not marker.exists()


def saved(folder, **changed):
    """A chain on disk, and its file."""
    kernel = WhitenedNUTS(TwoSites().requires_grad_(False), max_tree_depth=2)
    run(kernel, folder, warmup_steps=4, num_samples=3, **changed)
    return kernel, folder / "chain-0.safetensors"


def test_a_broken_file_is_one_sentence(tmp_path):
    kernel, path = saved(tmp_path)
    whole = path.read_bytes()
    count = struct.unpack("<Q", whole[:8])[0]
    deep = json.dumps({"__metadata__": {"version": "1", "state": "[" * 100_000}}).encode()
    broken = [b"", whole[: len(whole) // 2], whole[:-1], whole[: 8 + count // 2], b"\x00" * len(whole), os.urandom(400)]
    for content in (*broken, struct.pack("<Q", len(deep)) + deep):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read .*: delete it to start the chain again") as caught:
            run(kernel, tmp_path, warmup_steps=4, num_samples=5)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match="cannot be read"):
        run(kernel, tmp_path, warmup_steps=4, num_samples=5)


def changes():
    """Ways to spoil a state whose identity is right."""

    def put(*keys, value):
        def change(state):
            for key in keys[:-1]:
                state = state[key]
            state[keys[-1]] = value

        return change

    def drop(*keys):
        def change(state):
            for key in keys[:-1]:
                state = state[key]
            del state[keys[-1]]

        return change

    return [
        *(drop(name) for name in ("identity", "format", "done", "kernel", "params", "initial", "draws", "random")),
        *(put(name, value=3) for name in ("identity", "kernel", "params", "initial", "draws", "stats", "random")),
        *(put("done", value=value) for value in (-1, 4, 2.5, "7", None)),
        put("kernel", "adaptation", value={}),
        put("kernel", "adaptation", "metric", value={}),
        put("kernel", "adaptation", "metric", "variances", value=torch.ones(3)),
        put("kernel", "adaptation", "step size", value={}),
        put("kernel", "at", "position", value=torch.zeros(3)),
        put("kernel", "at", value=3),
        put("kernel", "random", value=torch.zeros(3)),
        drop("kernel", "random"),
        put("params", "f_whitened", value=torch.zeros(3, 1)),
        put("params", "f_whitened", value=2.0),
        put("initial", "f_whitened", value=torch.zeros(3, 1)),
        drop("draws", "f_whitened"),
        put("draws", "f_whitened", value=torch.zeros(2, 5, 1)),
        put("stats", "lp", value=torch.zeros(1)),
        put("random", value=torch.zeros(3)),
    ]


@pytest.mark.parametrize("number", range(len(changes())))
def test_a_state_that_makes_no_sense_is_one_sentence(number, tmp_path):
    kernel, path = saved(tmp_path)
    state = read_state(path)
    changes()[number](state)
    write_state(path, state)
    with pytest.raises(ValueError, match="delete it to start the chain again|holds a chain of other data") as caught:
        run(kernel, tmp_path, warmup_steps=4, num_samples=5)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_file_of_a_later_version_is_one_sentence(tmp_path, monkeypatch):
    kernel, path = saved(tmp_path)
    state = read_state(path)
    write_state(path, state | {"format": 99})
    with pytest.raises(
        ValueError, match="is of a later version of this program .99, and this one reads up to 1.: update it, or delete"
    ):
        run(kernel, tmp_path, warmup_steps=4, num_samples=5)
    monkeypatch.setattr("pyro_dgp.internal.checkpoint.VERSION", 99)
    write_state(path, state)
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match="cannot be read .its format is version 99, .*: delete it to start the chain again"
    ):
        run(kernel, tmp_path, warmup_steps=4, num_samples=5)


def test_the_identity_is_checked_before_anything_else(tmp_path):
    """Of a file whose other contents make no sense, a chain of another model hears that it is another's."""
    _, path = saved(tmp_path)
    write_state(path, {"format": 1, "identity": "another", "kernel": "nothing"})
    with pytest.raises(ValueError, match="holds a chain of other data"):
        saved(tmp_path)


def test_a_finished_chain_is_not_set_up_again(tmp_path, monkeypatch):
    kernel, _ = saved(tmp_path)
    first = run(kernel, tmp_path, warmup_steps=4, num_samples=3)
    monkeypatch.setattr(WhitenedNUTS, "setup", None)
    require_equal(run(kernel, tmp_path, warmup_steps=4, num_samples=3), first)


def test_what_a_kill_left_of_an_unfinished_file_is_removed(tmp_path):
    left = tmp_path / ".part-1-chain-0.safetensors"
    left.touch()
    run(KERNELS["slices"](), tmp_path, num_samples=1, warmup_steps=1)
    assert [path.name for path in tmp_path.iterdir()] == ["chain-0.safetensors"]


def test_a_chain_goes_on_where_its_file_cannot_be_written(tmp_path, monkeypatch, every_iteration):
    whole = run(KERNELS["slices"](), num_samples=2, warmup_steps=2)

    def full(path, state):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyro_dgp.mcmc.chain_file.write_state", full)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        require_equal(run(KERNELS["slices"](), tmp_path, num_samples=2, warmup_steps=2), whole)
    assert "cannot be written (No space left on device): sampling goes on" in str(said[0].message)
    assert len(said) == 4 and not list(tmp_path.iterdir())


def test_other_settings_are_refused_when_a_chain_is_lengthened(tmp_path):
    kernel, _ = saved(tmp_path)
    for changed in ({"warmup_steps": 5}, {"seed": 1}):
        with pytest.raises(
            ValueError, match="holds a chain of other data, or of another model, kernel, seed or warm-up"
        ):
            run(kernel, tmp_path, **{"warmup_steps": 4, "num_samples": 9} | changed)
    other = WhitenedNUTS(TwoSites().requires_grad_(False), max_tree_depth=3)
    with pytest.raises(ValueError, match="holds a chain of other data"):
        run(other, tmp_path, warmup_steps=4, num_samples=9)


def test_numbers_of_single_precision_and_of_sites_with_a_support_are_kept(tmp_path):
    def simplex(x, y=None):
        weights = pyro.sample("w", dist.Dirichlet(torch.ones(3, dtype=torch.float32)))
        return pyro.sample("y", dist.Normal(x.float()[:, 0] * weights[0], 0.1).to_event(1), obs=y.float())

    whole = run(NUTS(simplex, max_tree_depth=2), num_samples=7, warmup_steps=3)
    run(NUTS(simplex, max_tree_depth=2), tmp_path, num_samples=4, warmup_steps=3)
    longer = run(NUTS(simplex, max_tree_depth=2), tmp_path, num_samples=7, warmup_steps=3)
    assert longer.draws["w"].dtype == torch.float32 and longer.draws["w"].shape == (1, 7, 3)
    require_equal(longer, whole)
