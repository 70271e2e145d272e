"""Arguments of a call of a model by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Containers within containers that are looked into, at most.
_MOST_DEEP = 5


def signature_of(model: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a model, which for a module is that of ``forward``; ``None`` where it has none, as what is written in C."""
    try:
        return inspect.signature(getattr(model, "forward", model))
    except (TypeError, ValueError):
        return None


def arguments_by_name(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a call in their order, by the names that the model has for them.

    Those that it gathers, ``*more`` and ``**extra``, are named one by one: ``more[0]``, and the name in the call. A model without a signature, or with one that the
    call does not fit, has positions, from 0, as names of arguments by position.
    """
    signature = signature_of(model)
    try:
        bound = None if signature is None else signature.bind(*args, **kwargs)
    except TypeError:
        bound = None
    if signature is None or bound is None:
        return {f"[{number}]": value for number, value in enumerate(args)} | dict(kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            named |= {f"{name}[{number}]": each for number, each in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[name] = value
    return named


def inputs_and_targets(model: Callable[..., Any], named: Mapping[str, Any]) -> set[str]:
    """Return the names of inputs and targets among the arguments of a call: the first two of the model, or of the call where the model gathers them.

    :param named: the arguments by their names.
    """
    signature = signature_of(model)
    gathers = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    own = [] if signature is None else [name for name, each in signature.parameters.items() if each.kind not in gathers]
    return set(own[:2]) if len(own) >= 2 else {*own, *list(named)[:2], "y"}


def tensors_in(value: Any, depth: int = 0) -> list[Tensor]:
    """Return the tensors that an argument is or holds: itself, a NumPy array of numbers as a tensor, those of a list, tuple or mapping.

    :param depth: number of containers around it.
    """
    if isinstance(value, Tensor):
        return [value] if value.layout == torch.strided else []
    if isinstance(value, np.ndarray):
        try:
            return [torch.as_tensor(value if value.flags.writeable else value.copy())]
        except (TypeError, ValueError):  # text, objects, and numbers that torch has no type for
            return []
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [each for part in parts for each in tensors_in(part, depth + 1)] if depth < _MOST_DEEP else []


def remedy_for(name: str, call: str) -> str:
    """Say how a call gives the model an argument that it does not give so far.

    :param name: the argument, as :func:`arguments_by_name` has it.
    :param call: the call with the argument by its name.
    """
    if name.endswith("]"):
        return "let the model name it, forward(self, x, y=None, exposure=None), since arguments beside inputs and targets are given by name"
    return f"pass {call}, or the model's default by that name if it is meant"
