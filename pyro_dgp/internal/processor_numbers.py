"""Random numbers that are the same on every device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map


class ProcessorNumbers(TorchDispatchMode):
    """A scope in which the processor's generator draws the random numbers of all devices.

    A draw costs transfers: it is for comparisons of devices, not for training. Draws from a generator of their own stay as they are.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out on the processor what draws random numbers; everything else runs as it is."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
        device = kwargs.get("device") or (tensors[0].device if tensors else torch.device("cpu"))
        here = kwargs | ({"device": torch.device("cpu")} if "device" in kwargs else {})
        drawn = func(*tree_map(_on_processor, args), **tree_map(_on_processor, here))
        if func._schema.is_mutable:
            return args[0].copy_(drawn)
        return tree_map(lambda each: each.to(device) if isinstance(each, Tensor) else each, drawn)


def _on_processor(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value
