"""Reads of values that a recorded function cannot make: its program would keep what they gave while it was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Methods that give values to Python or NumPy without an operation of torch's.
_READS = (Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.tolist)


class ReadValueError(RuntimeError):
    """A part of a recorded function reads values, or has a size that depends on values."""


@contextmanager
def values_unread() -> Iterator[None]:
    """A scope in which ``make_fx`` records a function, and a read of values that depend on its arguments is refused.

    Constants, such as a mask of the data of a sampler, may be read; parameters, buffers and batches of an objective are arguments. What ``make_fx`` refuses by
    itself, such as ``item()``, is left to it.

    :raises ReadValueError: for such a read.

    >>> import torch
    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> from pyro_dgp.internal.unread_values import ReadValueError, values_unread
    >>> def positive(x):
    ...     with values_unread():
    ...         return x[x > 0].sum()
    >>> try:
    ...     make_fx(positive)(torch.ones(2))
    ... except ReadValueError as error:
    ...     print(error)
    the size of a part of it depends on values (aten.index), and a program has fixed sizes: torch.where keeps the size
    """
    with _NoReads(), _NoSizes():
        yield


class _NoReads(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS and _is_traced(args[0]):
            raise ReadValueError(
                "a part of it gives values to Python or NumPy, and a program would keep those it was recorded with"
            )
        return func(*args, **(kwargs or {}))


class _NoSizes(TorchDispatchMode):
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_sized = torch.Tag.dynamic_output_shape in getattr(func, "tags", ()) or "_to_sparse" in str(func)
        if is_sized and any(map(_is_traced, _deciding(func, args, kwargs))):
            raise ReadValueError(
                f"the size of a part of it depends on values ({func.overloadpacket}), and a program has fixed sizes: torch.where keeps the size"
            )
        return func(*args, **(kwargs or {}))


def _deciding(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments on whose values the size of a result depends: of an index the masks, of other operations all."""
    if func is not torch.ops.aten.index.Tensor:
        return tree_leaves((args, kwargs))
    return [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]


def _is_traced(value: Any) -> bool:
    """Tell whether a value depends on the arguments of the function that is recorded, or is drawn at random; others are constants."""
    mode = get_proxy_mode()
    slot = None if mode is None or not isinstance(value, Tensor) else get_proxy_slot(value, mode.tracer, None)
    waiting, seen = [] if slot is None else [slot.proxy.node], set()
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder" or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return True
        waiting += [each for each in node.all_input_nodes if each not in seen]
        seen.update(node.all_input_nodes)
    return False
