"""Values that modules, losses and optimisers keep outside their ``state_dict``: counters, schedules, buffers that are not persistent."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pyro.infer import ELBO as PyroELBO
from torch import Tensor, nn

from pyro_dgp.internal.tensors import are_same

#: Attributes by name, by the path of their owner, each as :func:`_encoded` has it.
Values = dict[str, dict[str, Any]]

#: Packages whose objects keep caches in attributes that begin with an underscore.
_LIBRARIES = ("torch", "pyro", "pyro_dgp")
#: Attributes that other functions take care of.
_OF_MODULES, _OF_OPTIMIZERS = (
    frozenset({"training", *vars(nn.Module())}),
    frozenset({"defaults", "state", "param_groups"}),
)
#: Most numbers of a tensor or entries of a list. What is larger is data, which training does not change.
MOST = 1_000_000
#: How deep lists and dictionaries are looked into.
_DEEPEST = 5
#: First entry of a list that stands for a value which JSON does not have.
_KIND = "kind of the value"


class Attributes:
    """Attributes that a ``state_dict`` leaves out: numbers, words, tensors, arrays, and lists, tuples and dictionaries of them.

    Those of the library, of Pyro and of torch that begin with an underscore are left out, as caches are, and so is what has more than a million numbers.

    :param owners: modules, with all modules and losses inside, and optimisers.

    >>> import torch
    >>> from pyro_dgp.internal.attributes import Attributes
    >>> module = torch.nn.Linear(1, 1)
    >>> module.steps = 0
    >>> attributes = Attributes(module)
    >>> module.steps = 3
    >>> attributes.changed()
    {'0:': {'steps': 3}}
    """

    def __init__(self, *owners: nn.Module | torch.optim.Optimizer) -> None:
        self.owners = owners
        self._start = _values(owners)

    def changed(self) -> Values:
        """Return those that are no longer as they were when this object was made."""
        changed = {}
        for path, values in _values(self.owners).items():
            start = self._start.get(path, {})
            new = {
                name: value for name, value in values.items() if name not in start or not are_same(start[name], value)
            }
            if new:
                changed[path] = new
        return changed

    def set(self, changed: Values) -> None:
        """Give attributes the values that another run of the program had, and all others those that they began with."""
        _set(self.owners, {path: values | changed.get(path, {}) for path, values in self._start.items()})


def snapshot(module: nn.Module) -> dict[str, Any]:
    """Return a copy of the state of a module, with the attributes that its ``state_dict`` leaves out."""
    return {"tensors": copy.deepcopy(module.state_dict()), "attributes": _values((module,))}


def restore(module: nn.Module, state: dict[str, Any]) -> None:
    """Set what :func:`snapshot` returned."""
    module.load_state_dict(state["tensors"])
    _set((module,), state["attributes"])


def _values(owners: tuple[Any, ...]) -> Values:
    """Return a copy of all attributes."""
    return {
        path: {name: _encoded(value) for name, value in _attributes_of(owner)} for path, owner in _objects_in(owners)
    }


def _set(owners: tuple[Any, ...], values: Values) -> None:
    for path, owner in _objects_in(owners):
        now = dict(_attributes_of(owner))
        for name, value in values.get(path, {}).items():
            if name in now and are_same(_encoded(now[name]), value):
                continue
            old, new = now.get(name), _decoded(value)
            if isinstance(old, Tensor) and isinstance(new, Tensor):
                new = new.to(old.device)
            if name not in now or not _filled(old, new):
                setattr(owner, name, new)


def _objects_in(owners: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Iterate over objects, and over modules and losses inside, with paths that are the same in every run of a program."""
    for number, owner in enumerate(owners):
        if not isinstance(owner, nn.Module):
            yield f"{number}:", owner
            continue
        for path, module in owner.named_modules():
            yield f"{number}:{path}", module
            losses = {name: value for name, value in vars(module).items() if isinstance(value, PyroELBO)}
            yield from ((f"{number}:{path}:{name}", loss) for name, loss in losses.items())


def _attributes_of(owner: Any) -> Iterator[tuple[str, Any]]:
    is_of_a_library = type(owner).__module__.partition(".")[0] in _LIBRARIES
    known = _OF_OPTIMIZERS if isinstance(owner, torch.optim.Optimizer) else _OF_MODULES
    for name, value in vars(owner).items():
        is_cache = name.startswith("_") and is_of_a_library
        if name not in known and not is_cache and _is_plain(value):
            yield name, value
    if isinstance(owner, nn.Module):
        for name in sorted(owner._non_persistent_buffers_set):
            if _is_plain(owner._buffers.get(name)) and owner._buffers[name] is not None:
                yield name, owner._buffers[name]


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Tell whether a value can be copied into a file of a state, and back."""
    if isinstance(value, Tensor):
        is_value = value.grad_fn is None and not isinstance(value, nn.Parameter) and not value.is_nested
        return is_value and value.layout is torch.strided and not value.is_meta and value.numel() <= MOST
    if isinstance(value, np.ndarray):
        return value.size <= MOST and value.dtype.kind in "biuf"
    if type(value) in (list, tuple, deque):
        return len(value) <= MOST and depth < _DEEPEST and all(_is_plain(each, depth + 1) for each in value)
    if type(value) is dict:
        keys = all(type(key) in (str, int) for key in value)
        return keys and depth < _DEEPEST and all(_is_plain(each, depth + 1) for each in value.values())
    is_scalar = isinstance(value, np.generic) and value.dtype.kind in "biuf"
    return value is None or type(value) in (bool, int, float, str) or is_scalar


def _encoded(value: Any) -> Any:
    """Return a copy of a value as lists, tensors, numbers and words."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return [_KIND, kind, str(value.dtype), torch.from_numpy(np.array(value)).clone()]
    if type(value) is list:
        return [_KIND, "list", *map(_encoded, value)]
    if type(value) is tuple:
        return [_KIND, "tuple", *map(_encoded, value)]
    if type(value) is deque:
        return [_KIND, "deque", value.maxlen, *map(_encoded, value)]
    if type(value) is dict:
        return [_KIND, "dict", *([key, _encoded(each)] for key, each in value.items())]
    return value


def _decoded(value: Any) -> Any:
    """Return the value that :func:`_encoded` was given."""
    if isinstance(value, Tensor):
        return value.clone()
    if not isinstance(value, list):
        return value
    _, kind, *parts = value
    if kind in ("array", "number"):
        array = np.array(parts[1].cpu().numpy(), dtype=parts[0])
        return array if kind == "array" else array[()]
    if kind == "deque":
        return deque(map(_decoded, parts[1:]), parts[0])
    if kind == "dict":
        return {key: _decoded(each) for key, each in parts}
    return list(map(_decoded, parts)) if kind == "list" else tuple(map(_decoded, parts))


@torch.no_grad()
def _filled(old: Any, value: Any) -> bool:
    """Put a value into the object that is there, which others may hold too; return whether it can be put there."""
    if isinstance(old, Tensor) and isinstance(value, Tensor) and old.shape == value.shape and old.dtype == value.dtype:
        try:
            old.copy_(value)
        except RuntimeError:  # an expanded tensor, or one of the inference mode
            return False
    elif isinstance(old, np.ndarray) and isinstance(value, np.ndarray) and old.shape == value.shape:
        old[...] = value
    elif type(old) is list and type(value) is list:
        old[:] = value
    elif type(old) is dict and type(value) is dict:
        old.clear()
        old.update(value)
    elif type(old) is deque and type(value) is deque and old.maxlen == value.maxlen:
        old.clear()
        old.extend(value)
    else:
        return False
    return True
