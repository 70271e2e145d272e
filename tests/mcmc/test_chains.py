import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace

import pyro
import pytest
import torch
from joblib.externals.loky import ProcessPoolExecutor
from pyro import distributions as dist
from pyro.infer import NUTS
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    RBF,
    Ascent,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern52,
    MissingOutputs,
    PosteriorDraws,
    SurrogateScale,
    SurrogateSlice,
    Variational,
    WhitenedNUTS,
    predict,
    run_chains,
    whitened,
)
from pyro_dgp.internal.parameters import modules_of
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.models.priors import with_priors
from tests.examples import OneLayer, TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")


def test_draws_do_not_depend_on_the_number_of_processes():
    """Also for a model whose class other processes cannot import."""

    class Own(TwoSites):
        pass

    x, y = regression(8)
    kernel = EllipticalSlice(Own(Gaussian(variance=0.1)).requires_grad_(False))
    reports, state = [], torch.get_rng_state()
    one = run_chains(
        kernel,
        (x, y),
        num_samples=4,
        warmup_steps=2,
        num_chains=3,
        seed=5,
        processes=1,
        report=lambda *report: reports.append(report),
    )
    assert reports == [(done, 18, {}) for done in range(1, 19)]
    assert torch.equal(torch.get_rng_state(), state)
    several = run_chains(
        kernel,
        (x, y),
        num_samples=4,
        warmup_steps=2,
        num_chains=3,
        seed=5,
        processes=2,
        report=lambda *report: reports.append(report),
    )
    assert reports[18:] == [(6, 18, {}), (12, 18, {}), (18, 18, {})]
    assert one.draws["f_whitened"].shape == (3, 4, 8, 1) and one.flat["f_whitened"].shape == (12, 8, 1)
    assert torch.equal(one.draws["f_whitened"], several.draws["f_whitened"])
    assert not torch.equal(one.draws["f_whitened"][0], one.draws["f_whitened"][1])
    assert 0 < one.sampling_seconds < one.seconds
    assert len(one.diagnostics) == 3 and all(known["runs_per_sweep"] >= 1 for known in several.diagnostics)
    reports.clear()
    run = partial(run_chains, kernel, (x, y), num_samples=4, warmup_steps=2, num_chains=3, seed=5)
    with ProcessPoolExecutor(2) as executor:
        by_executor = run(executor=executor, report=lambda *report: reports.append(report))
        with pytest.raises(ValueError, match="y has shape"):
            run_chains(kernel, (x, y[:3]), num_samples=4, warmup_steps=2, executor=executor)
    assert reports == [(6, 18, {}), (12, 18, {}), (18, 18, {})]
    assert torch.equal(one.draws["f_whitened"], by_executor.draws["f_whitened"])
    with ThreadPoolExecutor() as threads, pytest.raises(ValueError, match="ThreadPoolExecutor runs threads"):
        run(executor=threads)
    with ProcessPoolExecutor(1) as executor, pytest.raises(ValueError, match="give one of both"):
        run(executor=executor, processes=2)


def test_other_kernels_run_too_and_errors_of_a_chain_arrive():
    x, y = regression(6)
    model = TwoSites().requires_grad_(False)
    result = run_chains(
        NUTS(whitened(model), max_tree_depth=2), (x, y), num_samples=2, warmup_steps=1, num_chains=2, processes=2
    )
    assert result.draws["f_whitened"].shape == (2, 2, 6, 1) and "divergences" in result.diagnostics[1]
    with pytest.raises(ValueError, match="at least one chain and one draw, got num_chains=0"):
        run_chains(EllipticalSlice(model), (x, y), num_samples=2, warmup_steps=1, num_chains=0)
    with pytest.raises(ValueError, match="y has shape"):
        run_chains(EllipticalSlice(model), (x, y[:3]), num_samples=2, warmup_steps=1, num_chains=2, processes=2)


@pytest.mark.parametrize("make", [EllipticalSlice, lambda model: WhitenedNUTS(model, max_tree_depth=3)])
@pytest.mark.parametrize("stop", [3, 9])
def test_an_interrupted_chain_goes_on_as_if_nothing_had_been(make, stop, tmp_path, monkeypatch):
    """Stopped in the warm-up and behind it; the file is written after every iteration here."""
    monkeypatch.setattr("pyro_dgp.mcmc.single_chain.SAVE_EVERY", 0.0)
    x, y = regression(8)
    model = with_priors(DeepGP(x, 2, 2))
    whole = run_chains(make(model), (x, y), num_samples=8, warmup_steps=5, num_chains=2, processes=1)

    class StoppedError(Exception):
        pass

    done = []

    def report(iterations, total, figures):
        done.append(iterations)
        if iterations == stop:
            raise StoppedError

    with pytest.raises(StoppedError):
        run_chains(
            make(model),
            (x, y),
            num_samples=8,
            warmup_steps=5,
            num_chains=2,
            processes=1,
            report=report,
            folder=tmp_path,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["chain-0.safetensors"]
    done.clear()
    resumed = run_chains(
        make(model),
        (x, y),
        num_samples=8,
        warmup_steps=5,
        num_chains=2,
        processes=1,
        report=lambda n, _, __: done.append(n),
        folder=tmp_path,
    )
    assert done == list(range(stop + 1, 27))
    assert resumed.draws.keys() == whole.draws.keys() and resumed.stats.keys() == whole.stats.keys()
    assert all(torch.equal(values, whole.draws[name]) for name, values in resumed.draws.items())
    assert all((values == whole.stats[name]).all() for name, values in resumed.stats.items())
    longer = run_chains(make(model), (x, y), num_samples=10, warmup_steps=5, num_chains=2, processes=2, folder=tmp_path)
    assert torch.equal(longer.draws["h1_whitened"][:, :8], whole.draws["h1_whitened"]) and longer.stats["lp"].shape == (
        2,
        10,
    )
    for changed in ({"seed": 1}, {"warmup_steps": 6}, {"args": (x, y + 1)}):
        wanted = {"args": (x, y), "num_samples": 8, "warmup_steps": 5, "num_chains": 2, "processes": 1} | changed
        with pytest.raises(ValueError, match="holds a chain of other data"):
            run_chains(make(model), **wanted, folder=tmp_path)


def test_a_chain_is_saved_every_few_seconds_and_at_its_end(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr("pyro_dgp.mcmc.chain_file.ChainFile.write", lambda file, state: saved.append(state.done))
    x, y = regression(6)
    run_chains(
        EllipticalSlice(TwoSites().requires_grad_(False)),
        (x, y),
        num_samples=5,
        warmup_steps=2,
        num_chains=1,
        folder=tmp_path,
    )
    assert saved == [7]


def test_other_inducing_inputs_or_options_are_another_chain(tmp_path):
    x, y = regression(6)
    model = TwoSites().requires_grad_(False)
    kernels = [
        EllipticalSlice(whitened(model, {"f": x[:3]})),
        EllipticalSlice(whitened(model, {"f": x[1:4]})),
        WhitenedNUTS(model, max_tree_depth=2, target_accept_prob=0.8),
        WhitenedNUTS(model, max_tree_depth=2, target_accept_prob=0.9),
    ]
    for first, second in (kernels[:2], kernels[2:]):
        folder = tmp_path / type(first).__name__
        run_chains(first, (x, y), num_samples=2, warmup_steps=1, num_chains=1, folder=folder)
        with pytest.raises(ValueError, match="holds a chain of other data"):
            run_chains(second, (x, y), num_samples=2, warmup_steps=1, num_chains=1, folder=folder)


def test_another_prior_or_kernel_function_is_another_chain(tmp_path):
    x, y = regression(6)

    def model(kernel, location):
        result = OneLayer(kernel=kernel)
        result.gp.kernel.lengthscale = PyroSample(dist.LogNormal(location, 0.1))
        return EllipticalSlice(result.requires_grad_(False))

    run_chains(model(RBF(), 0.0), (x, y), num_samples=2, warmup_steps=1, num_chains=1, folder=tmp_path)
    run_chains(model(RBF(), 0.0), (x, y), num_samples=3, warmup_steps=1, num_chains=1, folder=tmp_path)
    for other in (model(RBF(), 0.1), model(Matern52(), 0.0)):
        with pytest.raises(ValueError, match="another model"):
            run_chains(other, (x, y), num_samples=2, warmup_steps=1, num_chains=1, folder=tmp_path)


def test_a_plain_function_samples_the_modules_that_it_names():
    """GPs made outside of it, in its closure or an argument: draw for draw what a module that holds them gives."""
    x, y = regression(8)
    gp, likelihood = GaussianProcess(RBF()).requires_grad_(False), Gaussian(variance=0.1).requires_grad_(False)

    def by_closure(x, y=None):
        f = pyro.sample("f", gp(x))
        return pyro.sample("y", likelihood.given(f), obs=y)

    def by_argument(gp, likelihood, x, y=None):
        f = pyro.sample("f", gp(x))
        return pyro.sample("y", likelihood.given(f), obs=y)

    class Whole(PyroModule):
        def __init__(self):
            super().__init__()
            self.gp, self.likelihood = gp, likelihood

        def forward(self, x, y=None):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", self.likelihood.given(f), obs=y)

    draws = [
        run_chains(
            EllipticalSlice(model), (x, y), num_samples=3, warmup_steps=1, num_chains=2, processes=processes
        ).draws["f_whitened"]
        for model, processes in (
            (by_closure, 1),
            (partial(by_argument, gp, likelihood), 1),
            (by_closure, 2),
            (Whole(), 1),
        )
    ]
    assert all(torch.equal(own, draws[-1]) for own in draws)
    p = predict(PosteriorDraws(by_closure, {"f_whitened": draws[0].flatten(0, 1)}, (x, y)), x[:3])
    assert p.mean.shape == (3,)


def test_another_kernel_parameter_of_a_plain_function_is_another_chain(tmp_path):
    x, y = regression(6)

    def model_of(lengthscale):
        gp = GaussianProcess(RBF(lengthscale=lengthscale)).requires_grad_(False)
        return lambda x, y=None: pyro.sample(
            "y", Gaussian().requires_grad_(False).given(pyro.sample("f", gp(x))), obs=y
        )

    run_chains(
        EllipticalSlice(model_of(1.0)), (x, y), num_samples=2, warmup_steps=1, num_chains=1, folder=str(tmp_path)
    )
    with pytest.raises(ValueError, match="another model"):
        run_chains(EllipticalSlice(model_of(2.0)), (x, y), num_samples=2, warmup_steps=1, num_chains=1, folder=tmp_path)


def test_a_worker_whose_parent_is_gone_ends(monkeypatch):
    """Another call may go on in the same files."""
    from pyro_dgp.mcmc import chains

    codes, parents = [], iter([10, 10, 1])
    monkeypatch.setattr(chains.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(chains.os, "_exit", codes.append)
    check = chains._while_the_parent_lives()
    check(1)
    assert codes == []
    check(2)
    assert codes == [1]


def test_classes_and_numbers_where_objects_are_wanted_are_named():
    model = TwoSites().requires_grad_(False)
    for make in (EllipticalSlice, WhitenedNUTS):
        with pytest.raises(TypeError, match=r"start is an object such as PriorDraw\(\), Ascent\(\) or GuideMean"):
            make(model, start=Ascent)
    x, y = regression(6)
    for make in (EllipticalSlice, WhitenedNUTS):
        with pytest.raises(ValueError, match="the observations of 'y' hold NaN or infinity: drop or fill such rows"):
            run_chains(make(model), (x, torch.full_like(y, torch.nan)), num_samples=1, warmup_steps=1, num_chains=1)
    kernel = WhitenedNUTS(model)
    kernel.initial_params = {"f_whitened": torch.zeros(6, 1)}
    with pytest.raises(ValueError, match=r"not finite at initial_params: the observations of 'y' hold NaN"):
        kernel.setup(1, x, y.masked_fill(y == y[2], torch.nan))
    model = TwoSites(MissingOutputs(Gaussian())).requires_grad_(False)
    some = y.masked_fill(y == y[2], torch.nan)
    run_chains(WhitenedNUTS(model), (x, some), num_samples=1, warmup_steps=1, num_chains=1)
    with pytest.raises(ValueError, match="the observations of 'y' hold NaN or infinity"):
        run_chains(WhitenedNUTS(model), (x, some * torch.inf), num_samples=1, warmup_steps=1, num_chains=1)


@pytest.mark.usefixtures("unannotated")
@pytest.mark.parametrize("wrong", [0.1, SurrogateScale])
def test_scales_that_are_no_objects_are_named(wrong):
    with pytest.raises(TypeError, match="scale is an object such as SurrogateScale"):
        SurrogateSlice(print, scale=wrong)


def test_another_start_is_another_chain(tmp_path):
    x, y = regression(6)
    model = TwoSites().requires_grad_(False)

    def started(value, folder=tmp_path):
        kernel = EllipticalSlice(model)
        kernel.initial_params = {"f_whitened": torch.full((6, 1), value)}
        return run_chains(kernel, (x, y), num_samples=2, warmup_steps=0, num_chains=1, folder=folder).draws[
            "f_whitened"
        ]

    first = started(0.0)
    assert torch.equal(started(0.0), first)
    with pytest.raises(ValueError, match="holds a chain of other data"):
        started(3.0)
    assert not torch.equal(started(3.0, tmp_path / "other"), first)


def test_one_kernel_serves_several_data_sets_in_folders_of_their_own(tmp_path):
    kernel = EllipticalSlice(TwoSites().requires_grad_(False))
    for rows in (6, 8):
        x, y = regression(rows)
        draws = run_chains(
            kernel, (x, y), num_samples=2, warmup_steps=1, num_chains=1, folder=tmp_path / str(rows)
        ).draws
        assert draws["f_whitened"].shape == (1, 2, rows, 1)


def test_modules_are_found_where_functions_and_objects_hold_them():
    gp = GaussianProcess(RBF())

    def inner(x):
        return gp(x)

    class Holder:
        def __init__(self):
            self.parts = [gp]

        def __call__(self, x):
            return self.parts[0](x)

    held, space, file = {"gp": [gp]}, SimpleNamespace(gp=gp), ModuleType("models")
    file.gp = gp
    for model in (
        gp,
        lambda x: inner(x),
        Holder(),
        Holder().__call__,
        partial(lambda gp, x: gp(x), gp),
        lambda x: held["gp"][0](x),
        lambda x: space.gp(x),
        lambda x: file.gp(x),
        SimpleNamespace(inner=Holder()),
        pyro.poutine.condition(inner, {}),
    ):
        assert modules_of(model) == [gp]
    assert modules_of(lambda x: x) == modules_of(print) == []


@pytest.mark.usefixtures("unannotated")
def test_what_chains_cannot_take_is_refused_before_they_run():
    x, y = regression(6)
    model = TwoSites().requires_grad_(False)
    guide = Variational(model, InducingPoints(3))
    for make in (EllipticalSlice, WhitenedNUTS):
        cases = {
            f"{make.__name__} takes the model, not its guide: write": (guide, (x, y)),
            r"args is a tuple: \(x, y\), the arguments of the model, not Tensor": (model, x),
            r"training inputs are a tensor, not ndarray: use torch.as_tensor\(x\)": (model, (x.numpy(), y)),
            r"targets are a tensor, not list: use torch.as_tensor\(y\)": (model, (x, y.tolist())),
        }
        for message, (sampled, args) in cases.items():
            with pytest.raises(TypeError, match=message):
                run_chains(make(sampled), args, num_samples=1, warmup_steps=0, num_chains=1)


def test_chains_of_the_prior_say_so_once():
    x, y = regression(6)
    model = TwoSites().requires_grad_(False)
    run = partial(run_chains, num_samples=2, warmup_steps=1, num_chains=2, processes=1)
    with pytest.warns(UserWarning, match=r"no site is observed: pass \(x, y\)") as record:
        prior = run(EllipticalSlice(model), (x,))
    assert len(record) == 1 and prior.draws["f_whitened"].shape == (2, 2, 6, 1)
    run(EllipticalSlice(pyro.condition(model, data={"y": y})), (x,))  # which observes by itself


def test_chains_of_parameters_that_have_changed_are_refused():
    x, y = regression(8)
    model = TwoSites()
    chains = run_chains(EllipticalSlice(model), (x, y), num_samples=3, warmup_steps=1, num_chains=1)
    assert predict(chains, x).mean.shape == (8,)
    model.gp.kernel.lengthscale = 3.0
    with pytest.raises(
        ValueError,
        match="the parameter 'gp.kernel.lengthscale' of the model, or something else that it reads, has changed since the chains",
    ):
        predict(chains, x)


def test_chains_follow_a_copy_of_their_model_and_ignore_what_it_does_not_use():
    x, y = regression(8)

    class Holder:
        def __init__(self):
            self.model, self.unused = TwoSites(), torch.nn.Linear(1, 1)

        def run(self, x, y=None):
            return self.model(x, y)

    holder, model = Holder(), TwoSites()
    options = {"num_samples": 3, "warmup_steps": 1, "num_chains": 1}
    chains = run_chains(EllipticalSlice(holder.run), (x, y), **options)
    holder.unused.weight.data.add_(1.0)
    assert predict(chains, x).mean.shape == (8,)
    of_copy = replace(run_chains(EllipticalSlice(model), (x, y), **options), model=copy.deepcopy(model))
    model.gp.kernel.lengthscale = 3.0
    assert predict(of_copy, x).mean.shape == (8,)
    of_copy.model.gp.kernel.lengthscale = 3.0
    with pytest.raises(ValueError, match="has changed since the chains"):
        predict(of_copy, x)
