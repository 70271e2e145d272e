"""Modules beside Pyro's global store of parameters."""

from __future__ import annotations

import copy
import gc
from concurrent.futures import ThreadPoolExecutor

import pyro
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroParam

from pyro_dgp import RBF, DeepGP, DeepKernel, module_local_parameters

X = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]


def model(variance):
    made = DeepGP(X, layers=1).to(X)
    made.likelihood.variance = variance
    return made


def number(value):
    return float(value.detach())


def test_in_plain_calls_each_object_has_its_own_values():
    first, second = RBF(), RBF()
    second.lengthscale = 0.1
    first(), second(), first()
    louder, fresh = model(0.5), model(0.1)
    louder(X), fresh(X), copy.deepcopy(louder)(X)
    assert [number(kernel.lengthscale) for kernel in (first, second)] == pytest.approx([1.0, 0.1])
    assert [number(each.likelihood.variance) for each in (louder, fresh)] == pytest.approx([0.5, 0.1])
    assert number(pyro.param("likelihood.variance")) == pytest.approx(0.5)  # the first stands in the store, as in Pyro


def test_the_values_of_a_plain_call_beside_another_object_carry_gradients():
    RBF()()
    second = RBF()
    second.lengthscale = 0.1
    second().matrix(X.float()[None]).sum().backward()
    assert float(second.lengthscale_unconstrained.grad.abs()) > 0


def test_what_another_object_put_into_the_store_is_refused_also_after_that_object_is_gone():
    louder, fresh = model(0.5), model(0.1)
    poutine.trace(louder).get_trace(X)
    assert "likelihood.variance" in pyro.get_param_store()
    del louder
    gc.collect()
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"holds another object's '.*', whose values .*: call pyro.clear_param_store\(\) first"
        ):
            poutine.trace(fresh).get_trace(X)
        assert number(fresh.likelihood.variance) == pytest.approx(0.1)
    with module_local_parameters(fresh):
        fresh(X)
    pyro.clear_param_store()
    poutine.trace(fresh).get_trace(X)
    assert number(pyro.param("likelihood.variance")) == pytest.approx(0.1)


class Parts(PyroModule):
    """Kernels by name; the call reads those that it is asked for."""

    def __init__(self):
        super().__init__()
        self.a, self.b = RBF(), RBF()

    def forward(self, names):
        return [getattr(self, name)() for name in names]


def test_a_refused_call_leaves_nothing_in_the_store():
    first, second = Parts(), Parts()
    poutine.trace(first).get_trace("a")
    with pytest.raises(ValueError, match="another object's 'a."):
        poutine.trace(second).get_trace("ba")
    assert {name.partition(".")[0] for name in pyro.get_param_store()} == {"a"}
    poutine.trace(first).get_trace("b")


def test_a_network_beside_another_of_its_names_is_refused():
    """Stock SVI would train the other one's weights in its place."""
    extractor = torch.nn.Linear(1, 1).double()
    made = [DeepKernel(copy.deepcopy(extractor), DeepGP(X, layers=1).to(X)) for _ in range(2)]
    poutine.trace(made[0]).get_trace(X)
    with pytest.raises(ValueError, match="holds another object's 'extractor"):
        poutine.trace(made[1]).get_trace(X)


def test_parts_of_a_stock_module_are_refused_too():
    class Stock(PyroModule):
        def __init__(self):
            super().__init__()
            self.kernel = RBF()

        def forward(self):
            return self.kernel()

    first, second = Stock(), Stock()
    second.kernel.variance = 3.0
    assert [number(stock().diagonal(X.float()[None]).max()) for stock in (first, second)] == pytest.approx([1.0, 3.0])
    with pytest.raises(
        ValueError, match="holds another object's 'kernel.variance'|holds another object's 'kernel.lengthscale'"
    ):
        poutine.trace(second).get_trace()


def test_values_that_were_loaded_into_the_store_are_taken_over_by_every_object(tmp_path):
    poutine.trace(model(0.5)).get_trace(X)
    pyro.get_param_store().save(str(tmp_path / "store"))
    pyro.clear_param_store()
    pyro.get_param_store().load(str(tmp_path / "store"))
    called, traced = model(0.1), model(0.1)
    called(X), called(X)
    for _ in range(2):
        poutine.trace(traced).get_trace(X)
    assert [number(each.likelihood.variance) for each in (called, traced)] == pytest.approx([0.5, 0.5])


def test_a_plain_call_leaves_parameters_of_others_as_they_are():
    other = pyro.param("loc", torch.zeros(1))
    RBF()(), RBF()()
    assert other.unconstrained() is pyro.get_param_store()._params["loc"]
    pyro.get_param_store()["lengthscale"] = torch.tensor(2.0)
    kernel = RBF()
    pyro.clear_param_store()
    poutine.trace(kernel).get_trace()
    pyro.get_param_store()["lengthscale"] = torch.tensor(2.0)
    kernel()
    before = number(kernel.lengthscale)
    optimiser = torch.optim.SGD(kernel.parameters(), lr=0.1)
    poutine.trace(kernel).get_trace().nodes["lengthscale"]["value"].sum().backward()
    optimiser.step()
    assert before == pytest.approx(2.0) and number(kernel.lengthscale) < 2.0


def test_threads_may_call_kernels_of_their_own_while_the_store_is_written():
    def call(_):
        for _ in range(30):
            RBF()()
        return True

    with ThreadPoolExecutor(3) as pool:
        done = pool.map(call, range(3))
        names = [f"p{i}" for i in range(200)]
        for name in names:
            pyro.param(name, torch.zeros(1))
        assert all(done)
    assert set(names) <= set(pyro.get_param_store())


def test_a_parameter_that_is_assigned_anew_takes_its_place():
    kernel = RBF()
    poutine.trace(kernel).get_trace()
    kernel.variance = PyroParam(torch.tensor(3.0), constraint=torch.distributions.constraints.positive)
    kernel.lengthscale = 0.2
    poutine.trace(kernel).get_trace()
    assert number(kernel.variance) == pytest.approx(3.0) and number(kernel.lengthscale) == pytest.approx(0.2)
