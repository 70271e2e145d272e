"""Values that modules, losses and optimisers keep outside their ``state_dict``: counters, schedules, buffers that are not persistent."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from pyro.infer import ELBO as PyroELBO
from torch import Tensor, nn

#: Attributes by name, by the path of their owner.
Values = dict[str, dict[str, Any]]

#: Packages whose objects keep caches in attributes that begin with an underscore.
_LIBRARIES = ("torch", "pyro", "pyro_dgp")
#: Attributes of every module or optimiser that other functions take care of.
_KNOWN = frozenset({"training", "defaults", "state", "param_groups"})


class Attributes:
    """Attributes that a ``state_dict`` leaves out and that a file of a state can hold: numbers, words, tensors, and lists and dictionaries of them.

    Those of the library, of Pyro and of torch that begin with an underscore are left out, as caches are.

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
        """Return a copy of those that are no longer as they were when this object was made."""
        changed = {}
        for path, values in _values(self.owners).items():
            start = self._start.get(path, {})
            new = {
                name: value for name, value in values.items() if name not in start or not _is_same(start[name], value)
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
    return {path: copy.deepcopy(dict(_attributes_of(owner))) for path, owner in _objects_in(owners)}


def _set(owners: tuple[Any, ...], values: Values) -> None:
    for path, owner in _objects_in(owners):
        now = dict(_attributes_of(owner))
        for name, value in values.get(path, {}).items():
            old = now.get(name)
            if name not in now or not _is_same(old, value):
                setattr(owner, name, copy.deepcopy(value.to(old.device) if isinstance(old, Tensor) else value))


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
    for name, value in vars(owner).items():
        is_cache = name.startswith("_") and (is_of_a_library or name in _MODULE)
        if name not in _KNOWN and not is_cache and _is_plain(value):
            yield name, value
    if isinstance(owner, nn.Module):
        for name in sorted(owner._non_persistent_buffers_set):
            if owner._buffers.get(name) is not None:
                yield name, owner._buffers[name]


#: Attributes of every module.
_MODULE = frozenset(vars(nn.Module()))


def _is_plain(value: Any) -> bool:
    """Tell whether a file of a state can hold a value as it is."""
    if isinstance(value, Tensor):
        return value.grad_fn is None and not isinstance(value, nn.Parameter) and not value.is_meta
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return value is None or type(value) in (bool, int, float, str)


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal, tensors to the last bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.shape == other.shape and one.dtype == other.dtype
        return same and torch.equal(one.to(other.device), other)
    if type(one) is not type(other):
        return False
    if type(one) is list:
        return len(one) == len(other) and all(map(_is_same, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(_is_same(value, other[key]) for key, value in one.items())
    return bool(one == other)
