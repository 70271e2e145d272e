"""Programs of PyTorch's own compiler, against the graphs that they are made of."""

import pytest
import torch
import torch._inductor as inductor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_dgp.internal import compiler
from pyro_dgp.internal.compiled_function import CHECKS, CompiledFunction

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler, about itself

POINT = torch.linspace(-1, 1, 6, dtype=torch.float64)


def graph(data):
    """A graph that holds data as a constant."""
    return make_fx(lambda x: ((x * data).sin().sum(), x + data))(POINT)


@pytest.mark.parametrize("is_direct", [True, False])
def test_programs_of_equal_graphs_have_the_data_of_their_own(is_direct, monkeypatch):
    """The compiler finds the second program among those that it keeps."""
    if not is_direct:
        monkeypatch.delattr(inductor, "standalone_compile", raising=False)
    for data in (torch.arange(6.0, dtype=torch.float64), torch.arange(6.0, dtype=torch.float64) ** 2):
        program = compiler.compiled(graph(data), [POINT], "inductor")
        for x in (POINT, POINT.flip(0)):
            total, moved = program(x)
            torch.testing.assert_close(total, (x * data).sin().sum())
            torch.testing.assert_close(moved, x + data)


def test_other_compilers_are_those_of_torch():
    data = torch.ones(6, dtype=torch.float64)
    seen = []

    def backend(given, points):
        seen.append(len(points))
        return given.forward

    total, _ = compiler.compiled(graph(data), [POINT], backend)(POINT)
    torch.testing.assert_close(total, POINT.sin().sum())
    assert len(seen) == 1


def test_arguments_in_another_arrangement_give_the_same_numbers(caplog):
    weights = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    program = CompiledFunction("the sum", lambda x: ((x * weights).sin().sum(), x * weights), "inductor")
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    for number in range(CHECKS + 1):
        program(x + number)
    assert program.is_checked
    for other in (x.mT.contiguous().mT, torch.stack([x, -x], -1)[..., 0]):
        found = program(other)
        assert found is not None
        total, each = found
        torch.testing.assert_close(total, (x * weights).sin().sum())
        torch.testing.assert_close(each, x * weights)
    assert program(x[:2]) is None and program(x.float()) is None  # which it was not made for
    assert program(x) is not None and "not compiled" not in caplog.text


def test_constants_that_have_gradients_are_taken_without():
    data = torch.ones(6, dtype=torch.float64, requires_grad=True) * 2
    total, _ = compiler.compiled(graph(data), [POINT], "inductor")(POINT)
    torch.testing.assert_close(total, (2 * POINT).sin().sum())
    assert data.requires_grad


def test_programs_that_cannot_be_called_from_cpp_are_called_from_python(monkeypatch):
    """The compiler is asked a second time; on the processor it is first asked for calls from C++."""
    asked = []

    def refuses(graph, points, *, dynamic_shapes, options):
        asked.append(options["config_patches"].get("cpp_wrapper", False))
        if asked[-1]:
            raise NotImplementedError("an operation without a C++ interface")
        return graph.forward

    monkeypatch.setattr(inductor, "standalone_compile", refuses, raising=False)
    data = torch.arange(6.0, dtype=torch.float64)
    total, _ = compiler.compiled(graph(data), [POINT], "inductor")(POINT)
    assert asked == [True, False] and float(total) == float((POINT * data).sin().sum())


def test_the_compiler_makes_no_remarks(caplog):
    """A Cholesky factor is an operation that PyTorch calls from C++ the longer way."""
    matrix = torch.eye(3, dtype=torch.float64) + 0.1
    factorised = make_fx(lambda matrix: (torch.linalg.cholesky(matrix).sum(),))(matrix)
    with caplog.at_level("WARNING"):
        (total,) = compiler.compiled(factorised, [matrix], "inductor")(matrix)
    torch.testing.assert_close(total, torch.linalg.cholesky(matrix).sum())
    assert not [record.message for record in caplog.records if "shim" in record.message]
