"""Recorded graphs of tensor operations through a compiler of PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from pyro_dgp.internal.errors import first_line

logger = logging.getLogger("pyro_dgp")

#: Options of PyTorch's own compiler. Random numbers are those of torch. The sizes of results, which cannot change, are not looked at in every call. What took five
#: operations or more is kept rather than computed again where it is used: square roots of distances are used in several places.
_OPTIONS: dict[str, Any] = {"fallback_random": True, "size_asserts": False, "realize_opcount_threshold": 5}

#: Options beside these where all is on the processor. The kernels of a program are called from C++, in one library, and not from Python: a small program
#: takes a tenth to a third less time, and is made in half the time.
_ALL_IN_CPP: dict[str, Any] = {"cpp_wrapper": True}


def compiled(graph: GraphModule, points: Sequence[Tensor], backend: Any) -> Callable[..., Sequence[Tensor]]:
    """Return a graph as a program for tensors of these shapes and types, without gradients.

    Programs of PyTorch's own compiler are called as they are, where PyTorch has the means (from 2.8 on): a call of what ``torch.compile`` returns begins with a
    check of its arguments, which takes as long as the work of a small program, and a compiled program comes from the disk in half the time.

    :param backend: backend of ``torch.compile``: a name, ``inductor`` for PyTorch's own compiler, or a function.
    """
    if backend != "inductor":
        return torch.compile(graph, backend=backend, dynamic=False)  # type: ignore[no-any-return]
    import torch._inductor as inductor

    if not hasattr(inductor, "standalone_compile"):
        return torch.compile(graph, backend=backend, dynamic=False, options=_OPTIONS)  # type: ignore[no-any-return]
    _detach_constants(graph)

    def made(options: dict[str, Any]) -> Callable[..., Sequence[Tensor]]:
        with torch.no_grad():
            program: Callable[..., Sequence[Tensor]] = inductor.standalone_compile(
                graph, list(points), dynamic_shapes="from_example_inputs", options={"config_patches": options}
            )
        return program

    if any(point.is_cuda for point in points):
        return made(_OPTIONS)
    try:
        with _without_remarks(), torch.no_grad():
            program = made(_OPTIONS | _ALL_IN_CPP)
            program(*points)  # which may be what fails
        return program
    except Exception as problem:  # an operation that PyTorch cannot call from C++
        logger.info("a program is called from Python: %s", first_line(problem))
        return made(_OPTIONS)


@contextmanager
def _without_remarks() -> Iterator[None]:
    """A scope in which the compiler does not remark that an operation is called the longer way."""
    remarks = logging.getLogger("torch._inductor.ir")
    level = remarks.level
    remarks.setLevel(logging.ERROR)
    try:
        yield
    finally:
        remarks.setLevel(level)


def _detach_constants(graph: GraphModule) -> None:
    """Let constants that were computed with gradients, which no compiler copies, stand without them, in the same memory."""
    for module in graph.modules():
        for store in (module._buffers, vars(module)):
            for name, value in list(store.items()):
                if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf:
                    store[name] = value.detach()
