"""Modules beside Pyro's global store of parameters."""

from __future__ import annotations

import gc

import pyro
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroParam

from pyro_dgp import RBF, DeepGP, module_local_parameters

X = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]


def model(variance):
    made = DeepGP(X, layers=1).to(X)
    made.likelihood.variance = variance
    return made


def number(value):
    return float(value.detach())


def test_plain_calls_of_two_objects_leave_their_values_and_the_store_alone():
    first, second = RBF(), RBF()
    second.lengthscale = 0.1
    first(), second()
    louder, fresh = model(0.5), model(0.1)
    louder(X), fresh(X)
    assert [number(kernel.lengthscale) for kernel in (first, second)] == pytest.approx([1.0, 0.1])
    assert [number(each.likelihood.variance) for each in (louder, fresh)] == pytest.approx([0.5, 0.1])
    assert len(pyro.get_param_store()) == 0


def test_what_another_object_put_into_the_store_is_refused_also_after_that_object_is_gone():
    louder, fresh = model(0.5), model(0.1)
    poutine.trace(louder).get_trace(X)
    assert "likelihood.variance" in pyro.get_param_store()
    del louder
    gc.collect()
    for run in (lambda: fresh(X), lambda: poutine.trace(fresh).get_trace(X)):
        with pytest.raises(
            ValueError, match=r"holds another object's '.*', whose values .*: call pyro.clear_param_store\(\) first"
        ):
            run()
        assert number(fresh.likelihood.variance) == pytest.approx(0.1)
    with module_local_parameters(fresh):
        fresh(X)
    pyro.clear_param_store()
    poutine.trace(fresh).get_trace(X)
    assert number(pyro.param("likelihood.variance")) == pytest.approx(0.1)


def test_parts_of_a_stock_module_are_refused_too():
    class Stock(PyroModule):
        def __init__(self):
            super().__init__()
            self.kernel = RBF()

        def forward(self):
            return self.kernel()

    Stock()()
    with pytest.raises(
        ValueError, match="holds another object's 'kernel.variance'|holds another object's 'kernel.lengthscale'"
    ):
        Stock()()


def test_values_that_were_loaded_into_the_store_are_taken_over(tmp_path):
    poutine.trace(model(0.5)).get_trace(X)
    pyro.get_param_store().save(str(tmp_path / "store"))
    pyro.clear_param_store()
    pyro.get_param_store().load(str(tmp_path / "store"))
    called, traced = model(0.1), model(0.1)
    called(X)
    poutine.trace(traced).get_trace(X)
    assert [number(each.likelihood.variance) for each in (called, traced)] == pytest.approx([0.5, 0.5])


def test_a_parameter_that_is_assigned_anew_takes_its_place():
    kernel = RBF()
    poutine.trace(kernel).get_trace()
    kernel.variance = PyroParam(torch.tensor(3.0), constraint=torch.distributions.constraints.positive)
    kernel.lengthscale = 0.2
    poutine.trace(kernel).get_trace()
    assert number(kernel.variance) == pytest.approx(3.0) and number(kernel.lengthscale) == pytest.approx(0.2)
