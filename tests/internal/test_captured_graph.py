"""Captured programs, with a stand-in for the graphs of a GPU: what was captured is computed anew from its memory at each replay."""

import logging
from contextlib import contextmanager, nullcontext

import pytest
import torch

from pyro_dgp.internal.captured_graph import CapturedGraph
from pyro_dgp.internal.compiled_function import CompiledFunction


@pytest.fixture
def graphs(monkeypatch):
    """Make the classes of CUDA graphs work on the processor; returns the captured graphs."""
    made = []

    class Graph:
        def __init__(self):
            made.append(self)
            self.replays = 0

        def replay(self):
            self.replays += 1
            for result, again in zip(
                getattr(self, "results", ()),
                self.function(*self.arguments) if hasattr(self, "function") else (),
                strict=True,
            ):
                result.copy_(again)

    class Stream:
        def wait_stream(self, other):
            assert isinstance(other, Stream)

    @contextmanager
    def graph(captured):
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return made


class Known(CapturedGraph):
    """A captured graph that tells its stand-in what it replays."""

    def _capture(self, points):
        graph, arguments, results = super()._capture(points)
        graph.function, graph.arguments, graph.results = self.function, arguments, results
        return graph, arguments, results


def test_results_follow_the_arguments_and_stay_as_they_are(graphs):
    captured = Known(lambda a, b: (a + b, a * b))
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    total, product = captured(a, b)
    assert total.tolist() == [4, 6] and product.tolist() == [3, 8]
    again = captured(2 * a, b)
    assert [each.tolist() for each in again] == [[5, 8], [6, 16]]
    assert total.tolist() == [4, 6] and a.tolist() == [1, 2]  # neither results nor arguments of before are touched
    assert len(graphs) == 1 and graphs[0].replays == 2


def test_a_program_that_cannot_be_captured_runs_kernel_by_kernel(graphs, caplog):
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    function = CompiledFunction("the loss", lambda a: (a.square(),), "eager")
    with caplog.at_level(logging.INFO, logger="pyro_dgp"):
        assert function._captured(refuse, [torch.ones(2)]) is refuse
    assert "started kernel by kernel" in caplog.text

    def program(a):
        return (a.square(),)

    assert isinstance(function._captured(program, [torch.ones(2)]), CapturedGraph)
