"""Captured programs, with a stand-in for the graphs of a GPU: what was captured is computed anew from its memory at each replay."""

import logging
from contextlib import contextmanager, nullcontext

import pytest
import torch

from pyro_dgp import METHODS, Settings, module_local_parameters
from pyro_dgp.internal.captured_graph import CapturedGraph, stays_on
from pyro_dgp.internal.compiled_function import CompiledFunction
from pyro_dgp.internal.recording import reports
from tests.virtual_device import virtual_device


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
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
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


@pytest.mark.parametrize(
    ("name", "stays"), [("svgp", True), ("dsvi", True), ("solve-dgp", True), ("dspp-gh", False), ("vish", False)]
)
def test_programs_are_captured_where_all_their_tensors_are_on_the_device(name, stays, monkeypatch):
    """Nodes of a quadrature rule, for example, go from the processor to the device at each step."""
    settings = Settings(inducing=8, width=2, beta=1.0)
    with virtual_device(monkeypatch) as device:
        x, y = torch.randn(12, 3).to(device), torch.randn(12).to(device)
        model = METHODS[name].architecture.build(x, settings)
        inference = METHODS[name].inference
        guide = inference.guide(model, x, settings)
        with module_local_parameters(model, guide):
            guide.initialize(x, y)
            objective = inference.made_loss(settings, 12)(model, guide)

            def loss(x, y):
                with reports():
                    return (objective(x, y),)

            assert stays_on(loss, (x, y), device) == stays


@pytest.mark.parametrize(
    ("function", "stays"),
    {
        "alone": (lambda a: (a.exp() * 2 + torch.tensor(1.0),), True),
        "to the processor": (lambda a: (a + a.cpu().sum().to(a.device),), False),
        "a number read": (lambda a: (a * float(a.sum()),), False),
        "a constant of the processor": (lambda a: (a * torch.ones(3).to(a.device),), False),
        "drawn by the processor": (lambda a: (a * torch.randn(()),), False),
        "drawn there": (lambda a: (a * torch.randn(3, device=a.device),), True),
    }.values(),
)
def test_what_leaves_the_device_is_seen(function, stays, monkeypatch):
    with virtual_device(monkeypatch) as device:
        assert stays_on(function, (torch.randn(3).to(device),), device) == stays
