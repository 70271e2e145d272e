"""Programs as graphs of the work of a GPU, which starts hundreds of small kernels at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

Program = Callable[..., Sequence[Tensor]]

#: Calls before the capture, in which libraries set up what they keep.
_WARM_UP = 2


class CapturedGraph:
    """A function of tensors on a GPU, captured at its first call (:class:`torch.cuda.CUDAGraph`) and replayed afterwards.

    The processor then starts one graph in the place of hundreds of kernels. The function must do the same operations at whatever values, and all of
    them on the GPU (:func:`stays_on`). Arguments are copied into the memory that the graph reads, and results out of that which it writes. Random
    numbers are those of the device's default generator, as without a capture.

    :param function: the function; its arguments keep their shapes.
    """

    def __init__(self, function: Program) -> None:
        self.function = function
        self._captured: tuple[Any, list[Tensor], Sequence[Tensor]] | None = None

    def __call__(self, *points: Tensor) -> list[Tensor]:
        """The function's results, in memory of their own."""
        with torch.cuda.device(points[0].device):
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


def stays_on(function: Program, points: Sequence[Tensor], device: torch.device) -> bool:
    """Whether a function of tensors on a device works there alone: it makes and reads no tensor elsewhere, except single numbers that are constants.

    It is called once. What it computed elsewhere would be done at the capture, and not at the replays.
    """
    watch = _Watch(device)
    with torch.no_grad(), watch:
        function(*points)
    return watch.stays


class _Watch(TorchDispatchMode):
    """Looks for tensors on other devices."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.stays = device, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given, made = (
            [each for each in tree_flatten(part)[0] if isinstance(each, Tensor)] for part in ((args, kwargs), result)
        )
        leaves = any(each.device == self.device for each in given) and any(each.device != self.device for each in made)
        is_drawn = torch.Tag.nondeterministic_seeded in func.tags and any(each.device != self.device for each in made)
        is_read = func.overloadpacket is torch.ops.aten._local_scalar_dense and given[0].device == self.device
        if leaves or is_drawn or is_read or any(each.device != self.device and each.dim() for each in [*given, *made]):
            self.stays = False
        return result
