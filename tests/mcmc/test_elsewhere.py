"""Chains in other processes: the model has the same density there, or is refused."""

import importlib
import operator
import sys
import threading

import pyro
import pytest
import torch
from joblib.externals.loky import get_reusable_executor
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import EllipticalSlice, WhitenedNUTS, predict, run_chains
from pyro_dgp.mcmc.elsewhere import ELSEWHERE, PriorDraw, Surroundings
from tests.examples import TwoSites, regression

pytestmark = pytest.mark.usefixtures("local")

#: A file of a user's: a function, and an object beside it that is trained.
FILE = """
import pyro
import torch
from pyro import distributions as dist

from pyro_dgp import GaussianProcess, RBF

gp = GaussianProcess(RBF()).double()
SPREAD = 1.0


def of_gp(x, y=None):
    f = pyro.sample("f", gp(x))
    with pyro.plate("rows", len(x)):
        return pyro.sample("y", dist.Normal(f[..., 0], 0.1), obs=y)


def of_number(x, y=None):
    mean = pyro.sample("mean", dist.Normal(torch.zeros((), dtype=x.dtype), 1.0))
    with pyro.plate("rows", len(x)):
        return pyro.sample("y", dist.Normal(mean, SPREAD), obs=y)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The file as a module, which processes that are started afterwards can import too."""
    (tmp_path / "models_of_a_user.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    get_reusable_executor().shutdown(wait=True)
    yield importlib.import_module("models_of_a_user")
    del sys.modules["models_of_a_user"]
    get_reusable_executor().shutdown(wait=True)


def spread(x, y=None):
    """A model with a ``pyro.param`` statement."""
    scale = pyro.param("scale", torch.tensor(1.0, dtype=x.dtype), constraint=dist.constraints.positive)
    mean = pyro.sample("mean", dist.Normal(torch.zeros((), dtype=x.dtype), 10.0))
    with pyro.plate("rows", len(x)):
        return pyro.sample("y", dist.Normal(mean, scale), obs=y)


def here(model, args):
    return Surroundings.here(model, PriorDraw.of(model, args))


def chains(kernel, args, processes):
    return run_chains(kernel, args, num_samples=20, warmup_steps=10, num_chains=2, processes=processes)


@pytest.mark.parametrize("is_local", [True, False])
def test_values_of_param_statements_go_along(is_local):
    x, y = regression(8)
    with pyro.settings.context(module_local_params=is_local):
        pyro.clear_param_store()
        pyro.param("scale", torch.tensor(0.1, dtype=x.dtype), constraint=dist.constraints.positive)
        one, two = (chains(EllipticalSlice(spread), (x, y), processes) for processes in (1, 2))
        pyro.clear_param_store()
    assert torch.equal(one.draws["mean"], two.draws["mean"])
    assert float(one.draws["mean"].std()) < 0.15  # 0.1 / sqrt(8), and 0.35 by the value that the statement begins with


def test_a_function_that_another_process_imports_with_other_values_is_refused(file):
    x, y = regression(8)
    for name, attribute, value in (("of_gp", "gp.kernel.lengthscale", 0.3), ("of_number", "SPREAD", 0.1)):
        kernel = WhitenedNUTS(getattr(file, name), max_tree_depth=2)
        with here(kernel.model, (x, y)).kept(kernel, (x, y)):
            pass
        owner, _, last = attribute.rpartition(".")
        setattr(operator.attrgetter(owner)(file) if owner else file, last, value)
        with pytest.raises(ValueError, match=r"in another one, which imports its functions anew.*processes=1\)"):
            chains(kernel, (x, y), 2)
        assert chains(kernel, (x, y), 1).draws


def test_a_model_that_cannot_be_sent_is_refused():
    class Locked(TwoSites):
        def __init__(self):
            super().__init__()
            self.requires_grad_(False)
            self.lock = threading.Lock()

    with pytest.raises(ValueError, match=r"cannot be sent to another process .*lock.*processes=1\)"):
        chains(EllipticalSlice(Locked()), regression(8), 2)


def test_a_store_is_as_before_behind_the_chains():
    x, y = regression(8)
    pyro.param("scale", torch.tensor(0.1, dtype=x.dtype))
    surroundings = here(spread, (x, y))
    pyro.param("scale").data.fill_(0.2)
    pyro.param("other", torch.tensor(3.0))
    with surroundings.kept(EllipticalSlice(spread), (x, y)):
        assert float(pyro.param("scale").detach()) == pytest.approx(0.1)
    assert float(pyro.param("scale").detach()) == pytest.approx(0.2) and "other" in pyro.get_param_store()
    pyro.clear_param_store()


def test_parameters_of_modules_are_no_statements():
    x, y = regression(8)
    model = TwoSites()
    with pyro.settings.context(module_local_params=False):
        pyro.clear_param_store()
        model(x)
        assert len(pyro.get_param_store()) > 0
        assert here(model, (x, y)).statements == {}
        pyro.clear_param_store()


class Normed(TwoSites):
    """A model with batch statistics and a count of its runs."""

    def __init__(self):
        super().__init__()
        self.requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(1).double().requires_grad_(False)
        self.runs = 0

    def forward(self, x, y=None):
        self.runs += 1
        return super().forward(self.norm(x), y)


def test_the_model_stays_as_it_is():
    x, y = regression(80)
    model = Normed()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    surroundings = here(model, (x, y))
    assert surroundings.draw.log_density is not None and model.runs == 0 and model.norm.training
    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value), name


def test_rounding_of_single_precision_is_no_other_model():
    """In float32 the density of hundreds of near rows differs by some percent with the number of threads."""
    x = torch.linspace(-1, 1, 400)[:, None]
    model = TwoSites().float().requires_grad_(False)
    threads, points = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            points.append(PriorDraw.of(model, (x.float(), x[:, 0].float())))
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    assert points[0].dtype == torch.float32 and points[0].log_density == points[1].log_density
    assert points[0].agrees(points[0]._replace(log_density=1.05 * points[0].log_density), ELSEWHERE)
    assert not points[0].agrees(points[0]._replace(log_density=1.2 * points[0].log_density), ELSEWHERE)


def test_statements_that_the_model_does_not_meet_stay_here():
    x, y = regression(8)
    pyro.param("scale", torch.tensor(0.1, dtype=x.dtype))
    pyro.param("of another model", torch.tensor(3.0))
    found = here(spread, (x, y)).statements
    assert list(found["params"]) == list(found["constraints"]) == ["scale"]
    pyro.clear_param_store()


def test_chains_of_a_statement_whose_value_has_changed_are_refused():
    x, y = regression(8)
    pyro.param("scale", torch.tensor(0.1, dtype=x.dtype))
    found = chains(EllipticalSlice(spread), (x, y), 1)
    assert predict(found, x, site="y").mean.shape == (8,)
    pyro.param("scale").data.fill_(0.2)
    with pytest.raises(
        ValueError,
        match="the parameter 'scale' of the model, or something else that it reads, has changed since the chains",
    ):
        predict(found, x, site="y")
    pyro.clear_param_store()


class Stretched(PyroModule):
    """A model with an attribute that is no parameter, and a counter of its calls."""

    def __init__(self):
        super().__init__()
        self.inner, self.stretch, self.calls = TwoSites().requires_grad_(False), 1.0, 0

    def forward(self, x, y=None):
        self.calls += 1
        return self.inner(self.stretch * x, y)


@pytest.mark.parametrize("has_parameters", [False, True])
def test_chains_of_a_model_with_an_attribute_that_has_changed_are_refused(has_parameters):
    x, y = regression(8)
    model = Stretched()
    model.unused = torch.nn.Linear(1, 1) if has_parameters else None
    found = chains(EllipticalSlice(model), (x, y), 1)
    assert predict(found, x).mean.shape == (8,)
    if has_parameters:
        model.unused.weight.data.add_(1.0)
        assert predict(found, x).mean.shape == (8,)
    model.stretch = 1.05
    with pytest.raises(ValueError, match="has changed since the chains were sampled") as refused:
        predict(found, x)
    assert ("an attribute of the model" in str(refused.value)) != has_parameters
