"""A device beside the processor, for machines that have none.

Tensors on it say that they lie on torch's ``meta`` device and hold ordinary tensors. What they are combined with must lie there too, as on a
GPU: tensors of the processor are refused, unless they are single numbers or indices. Random numbers there are others than the processor's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ELSEWHERE = torch.device("meta")

#: Operations between devices, and those that take indices from the processor.
_TRANSFERS = ("copy_", "_to_copy")
_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")


class Elsewhere(Tensor):
    """A tensor on the virtual device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        """Make a tensor that says that it lies there."""
        return Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=ELSEWHERE,
            requires_grad=held.requires_grad,
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __repr__(self) -> str:
        return f"Elsewhere({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    # Methods that torch carries out without a dispatch.
    def tolist(self) -> Any:
        return self.held.tolist()

    def item(self) -> Any:
        return self.held.item()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        return torch.tensor(data, dtype=options.get("dtype", self.dtype)).to(self.device)

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert a tensor of the virtual device to numpy: use Tensor.cpu() first")

    def __array__(self, *_: Any) -> Any:
        return self.numpy()


def _is_elsewhere(device: Any) -> bool:
    return device is not None and torch.device(device).type == ELSEWHERE.type


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to what lies in lists and tuples: operations take no other containers, and a walk over those alone is short."""
    if type(value) in (list, tuple):
        return type(value)(_mapped(change, each) for each in value)
    return change(value)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Carry out an operation on what the tensors hold."""
    name, wanted = func.overloadpacket.__name__, kwargs.get("device")
    there: list[Elsewhere] = []
    here: list[Tensor] = []

    def held(value: Any) -> Any:
        if isinstance(value, Elsewhere):
            there.append(value)
            return value.held
        if isinstance(value, Tensor) and value.dim():
            here.append(value)
        return value

    plain = _mapped(held, args)
    options = {key: _mapped(held, value) for key, value in kwargs.items()}
    if there and here and name not in _TRANSFERS and not (name in _INDEXING and isinstance(args[0], Elsewhere)):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} got {[tuple(each.shape) for each in there]} elsewhere and "
            f"{[tuple(each.shape) for each in here]} on the processor"
        )
    if wanted is not None:
        ends_there = _is_elsewhere(wanted)
    else:
        ends_there = isinstance(args[0], Elsewhere) if name == "copy_" else bool(there)
    if _is_elsewhere(wanted):
        options["device"] = torch.device("cpu")
    if ends_there and torch.Tag.nondeterministic_seeded in func.tags:
        with _other_numbers():
            result = func(*plain, **options)
    else:
        result = func(*plain, **options)
    if not ends_there:
        return result
    known = {id(each.held): each for each in there}  # an operation in place returns the tensor that it was given

    def elsewhere(value: Any) -> Any:
        if type(value) is not Tensor:
            return value
        return known[id(value)] if id(value) in known else Elsewhere(value)

    return _mapped(elsewhere, result)


@contextmanager
def _other_numbers() -> Iterator[None]:
    """A scope whose random numbers follow from the generator and are not those that it gives the processor."""
    seed = int(torch.randint(2**40, (), dtype=torch.int64))
    before = torch.get_rng_state()
    torch.random.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


class _Dispatch(TorchDispatchMode):
    """Operations that make tensors there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Functions that torch carries out with tensors of its own ``meta`` device, which have no values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and _is_elsewhere(kwargs.get("device")):
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(each) if isinstance(each, list | tuple) else each for each in index)
            args = (args[0], index, *args[2:])
        if func in _PRODUCTS and isinstance(args[0], Elsewhere) and args[0].dim() == 1:
            # torch would take the new axis away in place, of which a tensor of this class knows nothing
            return func(args[0].unsqueeze(0), *args[1:], **kwargs).squeeze(-2 if args[1].dim() > 1 else 0)
        if func == Tensor.data.__set__ and isinstance(args[0], Elsewhere):
            args[0].held = args[1].held
            return None
        return func(*args, **kwargs)


class _Generator(torch.Generator):
    """A generator of the processor, also where one is wanted there."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu" if _is_elsewhere(device) else device)  # type: ignore[call-arg]


@contextmanager
def virtual_device(monkeypatch: Any) -> Iterator[torch.device]:
    """A scope in which the virtual device can be used."""
    supported = ["cpu", ELSEWHERE.type]
    optimizer = importlib.import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: supported)
    monkeypatch.setattr(torch, "Generator", _Generator)
    with _Dispatch(), _Functions():
        yield ELSEWHERE
