"""Programs as graphs of the work of a GPU, which starts hundreds of small kernels at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Program = Callable[..., Sequence[Tensor]]

#: Calls before the capture, in which libraries set up what they keep.
_WARM_UP = 2


class CapturedGraph:
    """A function of tensors on a GPU, captured at its first call (:class:`torch.cuda.CUDAGraph`) and replayed afterwards.

    The processor then starts one graph in the place of hundreds of kernels. The function must do the same operations at whatever values, and never
    wait for the GPU. Arguments are copied into the memory that the graph reads, and results out of that which it writes. Random numbers are those
    of the device's default generator, as without a capture.

    :param function: the function; its arguments keep their shapes.
    """

    def __init__(self, function: Program) -> None:
        self.function = function
        self._captured: tuple[Any, list[Tensor], Sequence[Tensor]] | None = None

    def __call__(self, *points: Tensor) -> list[Tensor]:
        """The function's results, in memory of their own."""
        if self._captured is None:
            self._captured = self._capture(points)
        graph, arguments, results = self._captured
        torch._foreach_copy_(arguments, list(points))
        graph.replay()
        return [result.clone() for result in results]

    def _capture(self, points: Sequence[Tensor]) -> tuple[Any, list[Tensor], Sequence[Tensor]]:
        arguments = [point.detach().clone() for point in points]
        beside, stream = torch.cuda.Stream(), torch.cuda.current_stream()
        beside.wait_stream(stream)
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP):
                self.function(*arguments)
        stream.wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = self.function(*arguments)
        return graph, arguments, results
