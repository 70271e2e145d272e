"""Facts that tell a run of an optimiser from others: kinds and numbers of loss, model and guide, what is trained, and by what."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from types import FunctionType
from typing import Any

import numpy as np
import torch
from pyro.infer import ELBO as PyroELBO
from torch import Tensor, nn

#: Settings of an optimiser that say how its steps are computed, not which.
_HOW = ("capturable", "differentiable", "foreach", "fused", "params", "param_names")

#: Types of values that can be compared, besides records.
_PLAIN = (
    *(Real, complex, str, np.generic, type, FunctionType, torch.dtype, PyroELBO),
    *(dict, list, tuple, set, frozenset),
)

#: How deep a value is looked into.
_DEEPEST = 5
#: Characters of a value that is written out, at most.
_LONGEST = 1000


def facts_of_run(objective: nn.Module, optimizer: torch.optim.Optimizer, *, is_saved: bool) -> dict[str, Any]:
    """Return what a run is told apart by besides its data and its numbers of steps and rows, by the words of a message.

    :param is_saved: whether the run is saved; the optimiser alone is looked at where it is not.
    """
    facts = facts_of_optimizer(optimizer)
    return facts | facts_of_modules(objective) | facts_of_parameters(objective, optimizer) if is_saved else facts


def facts_of_modules(objective: nn.Module) -> dict[str, Any]:
    """Return kind and plain attributes of a loss, and the kinds of all modules, by the words of a message."""
    facts: dict[str, Any] = {}
    for path, module in objective.named_modules():
        of_path = f" of {path}" if path else ""
        facts[f"kind of {path or 'the objective'}"] = type(module).__qualname__
        for loss in (value for value in vars(module).values() if isinstance(value, PyroELBO)):
            facts[f"loss{of_path}"] = type(loss).__qualname__
            facts |= plain_values(vars(loss), f"the loss{of_path}")
    return facts


def attributes_of_modules(objective: nn.Module) -> dict[str, Any]:
    """Return the plain attributes of all modules, such as a number of samples, by the words of a message.

    Those that begin with an underscore are left out, since caches are among them.
    """
    facts: dict[str, Any] = {}
    for path, module in objective.named_modules():
        public = {name: value for name, value in sorted(vars(module).items()) if not name.startswith("_")}
        settings = {name: value for name, value in public.items() if not isinstance(value, PyroELBO)}
        facts |= plain_values(settings, path or "the objective")
        facts.pop(f"training of {path or 'the objective'}", None)
    return facts


def facts_of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the kind of an optimiser and the settings of its groups of parameters, by the words of a message."""
    inner = [value for value in vars(optimizer).values() if isinstance(value, torch.optim.Optimizer)]
    facts: dict[str, Any] = {"kind of the optimizer": " and ".join(type(each).__name__ for each in (optimizer, *inner))}
    for number, group in enumerate(optimizer.param_groups):
        settings = {name: value for name, value in group.items() if name not in _HOW and value is not False}
        facts |= plain_values(settings, f"group {number} of the optimizer")
    return facts


def facts_of_parameters(objective: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return whether each parameter is trained, in which group of the optimiser, and its shape, by the words of a message."""
    groups = {id(each): number for number, group in enumerate(optimizer.param_groups) for each in group["params"]}
    facts = {}
    for name, each in objective.named_parameters():
        trained = f"trained in group {groups[id(each)]}" if each.requires_grad and id(each) in groups else "fixed"
        facts[f"parameter {name}"] = f"{trained}, of shape {tuple(each.shape)}"
    return facts


def plain_values(values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the values that can be compared, by their names and that of their owner. ``None`` is as good as no value."""
    known = {name: value for name, value in values.items() if value is not None and _is_plain(value)}
    return {f"{name} of {owner}": _short(plain(value)) for name, value in known.items()}


def _short(value: Any) -> Any:
    """Return a plain value, or the checksum of a long one."""
    words = json.dumps(value)
    return value if len(words) <= _LONGEST else f"with checksum {zlib.crc32(words.encode())}"


def _is_plain(value: Any) -> bool:
    """Tell whether a value is more than an object of an unknown kind: numbers and words, functions, and what holds them."""
    if isinstance(value, Tensor | np.ndarray):
        return _is_number(value)
    return isinstance(value, _PLAIN) or is_dataclass(value)


def _is_number(value: Any) -> bool:
    """Tell whether a tensor or an array is a single number."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_meta and not value.is_complex()
    return bool(value.size == 1 and np.issubdtype(value.dtype, np.number) and not np.iscomplexobj(value))


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it: numbers, words, lists and dictionaries, equal in every process; of other objects the kind alone.

    >>> from pyro_dgp.training.run_facts import plain
    >>> plain({"betas": (0.9, 0.999), "kinds": {int}, "of": object()})
    {'betas': [0.9, 0.999], 'kinds': ['int'], 'of': 'object'}
    """
    if isinstance(value, np.generic) or (isinstance(value, Tensor | np.ndarray) and _is_number(value)):
        value = value.item()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Real):
        number = int(value) if isinstance(value, Integral) else float(value)
        return "nan" if math.isnan(number) else number
    if isinstance(value, complex | torch.dtype):
        return str(value)
    if isinstance(value, type | FunctionType):
        return value.__qualname__
    return type(value).__qualname__ if depth == _DEEPEST else _plain_container(value, depth + 1)


def _plain_container(value: Any, depth: int) -> Any:
    """Return a dictionary, a list or a record as JSON has it."""
    if isinstance(value, dict):
        return {str(plain(key, depth)): plain(each, depth) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, depth) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(each, depth) for each in value), key=repr)
    if isinstance(value, PyroELBO):
        return {"kind": type(value).__qualname__, **plain(vars(value), depth)}
    if is_dataclass(value):
        held = {field.name: plain(getattr(value, field.name, None), depth) for field in fields(value)}
        return {"kind": type(value).__qualname__, **held}
    return type(value).__qualname__
