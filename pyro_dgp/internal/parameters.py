"""Pyro's two parameter worlds: the global store, and parameters that stay in their modules."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import pyro
from pyro.nn import PyroModule
from torch import Tensor, nn


def keep_parameters_local(root: nn.Module) -> None:
    """Let modules that were made outside ``module_local_params=True`` run inside it."""
    if isinstance(root, PyroModule) and hasattr(root._pyro_context, "param_state"):
        return  # submodules share the context
    for module in root.modules():
        if isinstance(module, PyroModule) and not hasattr(module._pyro_context, "param_state"):
            module._pyro_context.param_state = {"params": {}, "constraints": {}}


def require_number(value: object) -> None:
    """Raise for a tensor as the start of a parameter: a sampled tensor would be read once and never drawn again."""
    if isinstance(value, Tensor):
        raise TypeError(
            "a parameter starts at a number, not at a tensor: for a prior assign PyroSample(distribution) to the attribute of the "
            "finished kernel or likelihood, and Pyro samples it"
        )


def modules_of(model: Any) -> list[nn.Module]:
    """The modules that a model runs: the model itself if it is a module.

    For a plain function or object, the modules that it names in its closure, globals, arguments, attributes and containers of these,
    and those that the functions it names name in turn.
    """
    found: dict[int, nn.Module] = {}
    seen: set[int] = set()
    owners = [model] if hasattr(model, "__dict__") else []

    def look(value: Any) -> None:
        if isinstance(value, nn.Module):
            found[id(value)] = value
            return
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, partial):
            parts = [value.func, value.args, value.keywords]
        elif isinstance(value, MethodType):
            owners.append(value.__self__)
            parts = [value.__self__]
        elif isinstance(value, FunctionType) and value.__module__.split(".")[0] not in _NOT_THE_USER_S:
            named = inspect.getclosurevars(value)
            parts = [*named.nonlocals.values(), *named.globals.values()]
        elif isinstance(value, list | tuple):
            parts = list(value)
        elif isinstance(value, dict):
            parts = list(value.values())
        else:
            parts = list(vars(value).values()) if any(value is owner for owner in owners) else []
        for part in parts:
            look(part)

    look(model)
    return list(found.values())


_NOT_THE_USER_S = ("pyro", "torch", "numpy", "pyro_dgp")


@contextmanager
def module_local_parameters(*roots: nn.Module) -> Iterator[None]:
    """A scope in which every module keeps its own parameters and Pyro's global store is left alone.

    :param roots: models and guides made outside the scope that are to run in it.
    """
    for root in roots:
        keep_parameters_local(root)
    before = pyro.settings.get("module_local_params")
    pyro.settings.set(module_local_params=True)
    try:
        yield
    finally:
        pyro.settings.set(module_local_params=before)


@contextmanager
def evaluating(*roots: nn.Module) -> Iterator[None]:
    """A scope in which modules are in evaluation mode: no dropout, no batch statistics."""
    flags = [(module, module.training) for root in roots for module in root.modules()]
    for module, _ in flags:
        module.training = False
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def constant_parameters(*roots: nn.Module) -> Iterator[None]:
    """A scope in which no parameter wants gradients: neither those of modules nor those of Pyro's global store."""
    own = [parameter for root in roots for parameter in root.parameters()]
    trained = [p for p in (*own, *pyro.get_param_store()._params.values()) if p.is_leaf and p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def require_own_parameters(root: nn.Module) -> None:
    """Raise if Pyro's global store holds another object's parameter under a name that ``root`` is about to use.

    Two models or guides of one class share names there: the second would silently take over the first one's values.
    """
    if pyro.settings.get("module_local_params"):
        keep_parameters_local(root)
        return
    store = pyro.get_param_store()
    if not store._params:
        return
    for path, module in root.named_modules():
        if not isinstance(module, PyroModule):
            continue
        networks = [name for name in module._parameters if not name.endswith("_unconstrained")]
        for name in (*module._pyro_params, *networks):
            full = f"{path}.{name}" if path else name
            held = store._params.get(full)
            own = module._parameters.get(name, module._parameters.get(f"{name}_unconstrained"))
            if held is not None and held is not own:
                raise ValueError(
                    f"Pyro's global parameter store holds another object's {full!r}: call pyro.clear_param_store() before "
                    "fitting another model or guide, or train in the scope pyro_dgp.module_local_parameters()"
                )
