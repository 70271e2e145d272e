"""A function that is recorded reads no values of its arguments in ways that make_fx does not see."""

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_dgp.internal.compiled_function import CompiledFunction
from pyro_dgp.internal.unread_values import ReadValueError, values_unread

POINT = torch.tensor([-0.5, 2.0, 3.0], dtype=torch.float64)
KEPT = torch.tensor([True, False, True])


def recorded(function):
    def unread(x):
        with values_unread():
            return function(x)

    return make_fx(unread)(POINT)


def changed_in_place(x):
    y = x.clone()
    y[x > 0] = 1.0
    return y


READS = {
    "numpy": lambda x: x * (2.0 if x.detach().numpy()[0] > 0 else 3.0),
    "asarray": lambda x: x * float(np.asarray(x.detach())[0]),
    "a function of NumPy": lambda x: x * float(np.exp(x.detach())[0]),
    "from_dlpack": lambda x: x * float(np.from_dlpack(x.detach())[0]),
    "tolist": lambda x: x * x.tolist()[0],
}
SIZES = {
    "mask": lambda x: x.sum() * x[x > 1].numel(),
    "nonzero": lambda x: x.sum() * x.nonzero().numel(),
    "masked_select": lambda x: x.masked_select(x > 1).sum(),
    "unique": lambda x: x.unique().sum(),
    "sparse": lambda x: x.relu().to_sparse().values().sum(),
    "a mask of random numbers": lambda x: x[torch.rand_like(x) > 0.5].sum(),
    "bincount": lambda x: (x > 1).long().bincount().sum(),
}
KEEPS = {
    "a mask of the data": lambda x: x[KEPT].sum(),
    "a mask that is made of the data": lambda x: x[~(KEPT.double() > 0.5)].sum(),
    "numbers of places": lambda x: x[torch.tensor([0, 2])],
    "places that depend on values": lambda x: x[(x > 1).long()],
    "a choice": lambda x: torch.where(x > 1, x, -x),
    "an assignment": changed_in_place,
    "numbers of the data": lambda x: x * float(KEPT.double().numpy().sum()) + KEPT.tolist()[0],
    "the size of a part of the data": lambda x: x * KEPT.nonzero().numel(),
}


@pytest.mark.parametrize("name", READS)
def test_a_value_that_goes_to_python_is_refused(name):
    with pytest.raises(ReadValueError, match="a part of it gives values to Python or NumPy"):
        recorded(READS[name])


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_depends_on_values_is_refused(name):
    with pytest.raises(ReadValueError, match="the size of a part of it depends on values"):
        recorded(SIZES[name])


@pytest.mark.parametrize("name", KEEPS)
def test_what_does_not_depend_on_values_is_recorded(name):
    graph = recorded(KEEPS[name])
    for point in (POINT, POINT.flip(0) - 1.5):
        torch.testing.assert_close(graph(point), KEEPS[name](point))


@pytest.mark.parametrize("name", ["numpy", "mask"])
def test_such_a_function_has_no_program(name, caplog):
    """Its program gave the numbers of the branch in which it was made, and three comparisons in that branch agreed."""
    program = CompiledFunction("the product", lambda x: ((READS | SIZES)[name](x).sum(),), "eager")
    assert program(POINT) is None and "the product is not compiled" in caplog.text
