"""Recorded graphs of tensor operations through a compiler of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

#: Options of PyTorch's own compiler. Random numbers are those of torch. The sizes of results, which cannot change, are not looked at in every call. What took five
#: operations or more is kept rather than computed again where it is used: square roots of distances are used in several places.
_OPTIONS: dict[str, Any] = {"fallback_random": True, "size_asserts": False, "realize_opcount_threshold": 5}


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
    with torch.no_grad():
        return inductor.standalone_compile(
            graph, list(points), dynamic_shapes="from_example_inputs", options={"config_patches": _OPTIONS}
        )


def _detach_constants(graph: GraphModule) -> None:
    """Let constants that were computed with gradients, which no compiler copies, stand without them, in the same memory."""
    for module in graph.modules():
        for store in (module._buffers, vars(module)):
            for name, value in list(store.items()):
                if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf:
                    store[name] = value.detach()
