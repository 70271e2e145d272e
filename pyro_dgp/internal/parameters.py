"""Pyro's two parameter worlds: the global store, and parameters that stay in their modules."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import isfinite
from numbers import Real
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar
from weakref import ref

import pyro
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn
from torch.distributions import transform_to

from pyro_dgp.internal.global_store import pyro_parameters, take_over_loaded
from pyro_dgp.internal.one_thread import one_thread
from pyro_dgp.internal.user_warning import warn_user

_Kind = TypeVar("_Kind")


def keep_parameters_local(root: nn.Module) -> None:
    """Let modules that were made outside ``module_local_params=True`` run inside it."""
    if isinstance(root, PyroModule) and hasattr(root._pyro_context, "param_state"):
        return  # submodules share the context
    for module in root.modules():
        if isinstance(module, PyroModule) and not hasattr(module._pyro_context, "param_state"):
            module._pyro_context.param_state = {"params": {}, "constraints": {}}


def require_number(value: object) -> None:
    """Raise for a start of a parameter that is no finite number. A sampled tensor would be read once and never drawn again."""
    if isinstance(value, Tensor):
        raise TypeError(
            "a parameter starts at a number, not at a tensor: for a prior assign PyroSample(distribution) to the attribute of the "
            "finished kernel or likelihood, and Pyro samples it"
        )
    if not isinstance(value, Real):
        raise TypeError(
            f"a parameter starts at a number, not at {type(value).__name__}: for several values assign a tensor to the "
            "attribute of the finished kernel or likelihood"
        )
    if not isfinite(value):
        raise ValueError(f"a parameter starts at a finite number, not at {value}: give such a number")


def require_shape(value: Tensor, shape: tuple[int, ...], label: str) -> None:
    """Raise unless the values of a parameter, which may be a draw from a prior, end in its shape. Leading axes are batches."""
    if shape and tuple(value.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"{label} has shape {tuple(value.shape)} where {shape} is wanted: write a prior as "
            f"PyroSample(distribution.expand({list(shape)}).to_event({len(shape)}))"
        )


def modules_of(model: Any) -> list[nn.Module]:
    """The modules that a model runs: the model itself if it is a module.

    For a plain function or object, the modules that it names in its closure, globals, imported files, default and bound arguments,
    attributes, ``__call__`` method and containers of these, and those that the functions it names name in turn.
    """
    return _named_by(model, nn.Module)


def trainable_of(function: Any) -> list[str]:
    """Descriptions of what a plain function names (see :func:`modules_of`) that an optimiser could train and does not find."""
    modules = [
        f"a {type(m).__name__}" for m in _named_by(function, nn.Module) if next(m.parameters(), None) is not None
    ]
    tensors = ["a tensor that requires a gradient" for t in _named_by(function, Tensor) if t.requires_grad]
    return modules + tensors


def _named_by(root: Any, kind: type[_Kind]) -> list[_Kind]:
    """The objects of one kind that a function or object names."""
    found: dict[int, _Kind] = {}
    seen: set[int] = set()
    left: list[tuple[Any, int]] = [(root, 0)]
    while left:
        value, depth = left.pop()
        if isinstance(value, kind):
            found[id(value)] = value
            continue
        if id(value) in seen or (isinstance(value, nn.Module) and value is not root):
            continue
        seen.add(id(value))
        is_own = value is root or (depth < _DEEPEST and not _is_of_a_library(type(value).__module__))
        left += [(part, depth + is_own) for part in reversed(_parts_of(value, is_own=is_own))]
    return list(found.values())


def _parts_of(value: Any, *, is_own: bool) -> list[Any]:
    """Return what an object names or holds: a function, a container, or an object of the user's own."""
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, FunctionType):
        return _named_in(value)
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if not is_own:
        return []
    called = type(value).__call__ if callable(value) and not isinstance(value, type) else None
    return [*getattr(value, "__dict__", {}).values(), called]


def _named_in(function: FunctionType) -> list[Any]:
    """Return what a function of the user's names: in its closure, in its file, and in files that it imports."""
    path = function.__code__.co_filename
    module = function.__module__ or ""  # a class that exec makes may have none
    package = sys.modules.get(module.split(".")[0])
    if _is_of_a_library(module) and path.startswith(str(Path(package.__file__ or "").parent) if package else ""):
        return []
    named = inspect.getclosurevars(function)
    values = [*named.nonlocals.values(), *named.globals.values()]
    values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    files = [value for value in values if isinstance(value, ModuleType) and not _is_of_a_library(value.__name__)]
    return values + [vars(file)[name] for file in files for name in function.__code__.co_names if name in vars(file)]


def _is_of_a_library(module: str) -> bool:
    """Tell whether a module of Python is one that cannot name a user's modules."""
    package = module.split(".")[0]
    return package in _NOT_THE_USER_S or (package in sys.stdlib_module_names and package != "types")


_NOT_THE_USER_S = ("pyro", "torch", "numpy", "pandas", "matplotlib", "scipy", "sklearn", "pyro_dgp")
#: How many objects deep attributes are looked at.
_DEEPEST = 3


@contextmanager
def module_local_parameters(*roots: Any) -> Iterator[None]:
    """A scope in which every module keeps its own parameters and Pyro's global store is left alone.

    :param roots: models and guides made outside the scope that are to run in it; also functions, and models in a handler such as ``poutine.condition``.
    :raises ValueError: while another thread is in such a scope, since the setting is that of the whole process.
    """
    with one_thread:
        yield from _local_parameters(roots)


def _local_parameters(roots: Iterable[Any]) -> Iterator[None]:
    modules = [module for root in roots for module in modules_of(root)]
    for module in modules:
        keep_parameters_local(module)
    before = pyro.settings.get("module_local_params")
    pyro.settings.set(module_local_params=True)
    try:
        yield
    except NotImplementedError as error:
        if "pyro.param statements" not in str(error):
            raise
        calls = " and ".join(f"pyro.param({name!r}, ...)" for name in _forget_statements(modules)) or "pyro.param"
        raise ValueError(_statement_message(f"the model, or a network of the guide, calls {calls}")) from error
    except AttributeError as error:
        if "'param_state'" not in str(error):
            raise
        raise ValueError(
            "the model runs a module that was not found in it: give the model to the scope, module_local_parameters(model, guide); a model that is a "
            "function names its modules in its closure, its globals or its arguments, or is written as a PyroModule that has them as attributes"
        ) from error
    finally:
        pyro.settings.set(module_local_params=before)


def _forget_statements(roots: list[nn.Module]) -> list[str]:
    """Drop the values of ``pyro.param`` statements that modules keep, so that they run again without these; return their names."""
    own = {id(parameter) for root in roots for parameter in root.parameters()}
    parts = [part for root in roots for part in root.modules() if isinstance(part, PyroModule)]
    forgotten = []
    for context in {id(part._pyro_context): part._pyro_context for part in parts}.values():
        values: dict[str, Tensor] = context.param_state["params"]
        strays = [name for name, value in values.items() if id(_leaf(value)) not in own]
        for name in strays:
            del values[name]
            context.param_state["constraints"].pop(name, None)
        forgotten += strays
    return forgotten


def check_parameters_found(trace: Trace, modules: Iterable[nn.Module]) -> None:
    """Look for parameters of a model that are in none of its modules; nothing is known where modules share Pyro's store.

    :param trace: one of a run of the model, just made, with gradients.
    :raises ValueError: for a ``pyro.param``, whose value is in Pyro's store.
    :warns UserWarning: for a module that the model makes in each call.
    """
    if not pyro.settings.get("module_local_params"):
        return
    own = {id(parameter) for module in modules for parameter in module.parameters()}
    store, lost = pyro.get_param_store(), []
    for name, node in trace.nodes.items():
        if node["type"] != "param":
            continue
        value = node["value"]
        leaf = _leaf(value)
        if leaf is not None and id(leaf) not in own and leaf is store._params.get(name):
            del store[name]
            raise ValueError(_statement_message(f"the model calls pyro.param({name!r}, ...)"))
        if any(id(tensor) not in own for tensor in _leaves(value)):
            lost.append(name)
    if lost:
        warn_user(
            f"the model makes a module in each call, or has it where it is not found, so that no optimiser trains its parameters {', '.join(lost)}: make the module "
            "once, as an attribute of the model, or freeze it where the values are meant to stay, as in Gaussian(variance=0.1).requires_grad_(False)"
        )


def _leaf(value: Any) -> Any:
    """Return the tensor that a value of Pyro's store is computed from; None where its module is gone."""
    return value.unconstrained() if hasattr(value, "unconstrained") else value


def _leaves(value: Tensor) -> list[Tensor]:
    """Return the tensors with gradients that a value was computed from."""
    if value.grad_fn is None:
        return [value] if value.requires_grad else []
    found, seen, left = [], set(), [value.grad_fn]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        left += [parent for parent, _ in node.next_functions if parent is not None]
    return found


def _statement_message(statement: str) -> str:
    return (
        f"{statement}, which keeps its value in Pyro's global store, where fit and predict do not look: make it an attribute of a "
        "PyroModule that the model names, as in self.scale = PyroParam(torch.tensor(1.0), constraint=constraints.positive); a reparameterization such as "
        "LocScaleReparam() takes a number, LocScaleReparam(centered=0.0)"
    )


@contextmanager
def evaluating(*roots: nn.Module) -> Iterator[None]:
    """A scope in which modules are in evaluation mode: no dropout, no batch statistics."""
    training = [module for root in roots for module in root.modules() if module.training]
    _set_training(training, False)
    try:
        yield
    finally:
        _set_training(training, True)


def _set_training(modules: Iterable[nn.Module], training: bool) -> None:
    for module in modules:
        own = vars(module)
        if "training" in own:  # without the checks of an assignment, which samplers would make at every step
            own["training"] = training
        else:  # a module of TorchScript
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


def shared_parameter(*roots: nn.Module) -> str | None:
    """Return a name that two parameters of different modules have in Pyro, or ``None``.

    Modules that are attributes of a ``PyroModule`` are named by their path. Those in a plain ``torch.nn.Module``, in its
    containers, or beside a function have no path, so that two of a kind have the same names.
    """
    owners: dict[str, int] = {}
    for root in roots:
        for module in root.modules():
            for name, parameter in pyro_parameters(module):
                if owners.setdefault(name, id(parameter)) != id(parameter):
                    return name
    return None


def require_names_of_their_own(*roots: nn.Module) -> None:
    """Raise if two modules have a parameter of one name in Pyro, which would train as one."""
    name = shared_parameter(*roots)
    if name is not None:
        raise ValueError(
            f"two modules of the model have a parameter {name!r}, and Pyro would train one for both: make them attributes of one PyroModule "
            "(pyro.nn.PyroModule in the place of torch.nn.Module, PyroModule[torch.nn.ModuleList] for lists), or train by pyro_dgp.fit"
        )


#: How far what is behind a number between two bounds, or above one, goes: to about 1e-13 above it.
_FAR = 30.0


@torch.no_grad()
def limits_of_parameters(*roots: nn.Module, lowest: float, highest: float) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return the parameters behind numbers that have bounds, such as positive ones, each with its lowest and its highest values.

    Numbers of other kinds, such as real ones, factors and ordered ones, have no limits.

    :param lowest: the lowest positive number, and the highest, as shares of the present one. Numbers with other bounds come as near to these as 1e-13.
    """
    found = []
    for module in (module for root in roots for module in root.modules() if isinstance(module, PyroModule)):
        for name, (constraint, _) in module._pyro_params.items():
            own = module._parameters.get(f"{name}_unconstrained")
            while isinstance(constraint, type(constraints.independent(constraints.real, 0))):
                constraint = constraint.base_constraint
            lower, upper = (getattr(constraint, bound, None) for bound in ("lower_bound", "upper_bound"))
            if own is None or (lower is None and upper is None):
                continue
            if upper is None and not bool(torch.as_tensor(lower).any()):
                transform: Any = transform_to(constraint)
                low, high = (transform.inv(share * transform(own)) for share in (lowest, highest))
            else:
                low, high = own - _FAR, own + _FAR
            found.append((own, torch.minimum(low, own), torch.maximum(high, own)))
    return found


def show_networks_to_svi(*roots: nn.Module) -> None:
    """Let stock ``SVI`` train the weights of networks where modules keep their own parameters.

    ``SVI`` asks each parameter of a step for its ``unconstrained``. Pyro's global store gives plain weights this attribute, a
    weak reference to themselves, and takes it away when they are pickled; modules with parameters of their own do not.
    """
    if not pyro.settings.get("module_local_params"):
        return
    for root in roots:
        for module in root.modules():
            for name, weights in module._parameters.items():
                if weights is not None and not name.endswith("_unconstrained"):
                    weights.unconstrained = ref(weights)  # type: ignore[attr-defined]


def require_own_parameters(*roots: nn.Module) -> None:
    """Raise if Pyro's global store holds another object's parameter under a name that one of ``roots`` is about to use.

    Two models or guides of one class share names there: the second would silently take over the first one's values. A frozen
    parameter of a network enters the store here as it is, since Pyro would set ``requires_grad`` and train it.
    """
    if pyro.settings.get("module_local_params"):
        for root in roots:
            keep_parameters_local(root)
        return
    take_over_loaded(*roots)
    store = pyro.get_param_store()
    owners: dict[str, int] = {}
    for root in roots:
        for module in root.modules():
            for name, own in pyro_parameters(module):
                if owners.setdefault(name, id(own)) != id(own):
                    require_names_of_their_own(*roots)  # raises
                held = store._params.get(name)
                if held is not None and held is not own:
                    raise ValueError(
                        f"Pyro's global parameter store holds another object's {name!r}: call pyro.clear_param_store() before "
                        "fitting another model or guide (trained values stay in their modules), or train in the scope module_local_parameters(model, guide)"
                    )
                is_plain = own is not None and own is module._parameters.get(name.rpartition(".")[2])
                if own is not None and is_plain and held is None and not own.requires_grad:
                    store._constraints[name] = constraints.real
                    store._params[name], store._param_to_name[own] = own, name
