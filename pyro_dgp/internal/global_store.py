"""Pyro's global store of parameters, as a module of this library meets it: whose parameter stands there under a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

import pyro
import pyro.nn.module as pyro_modules
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor, nn

#: Parameters that modules of this library have put into the store, by ``id``. One that was loaded from a file is not among them.
_PUT_THERE: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
#: Key of the names that a call has put into the store, in the cache that Pyro keeps for the length of the call.
_NAMES = "names that this call has put into the parameter store"


def is_in_use() -> bool:
    """Tell whether modules share their parameters through the store."""
    return not pyro_modules._MODULE_LOCAL_PARAMS


def may_read(name: str, own: Tensor, cache: dict[str, Any]) -> bool:
    """Tell whether a module may read a parameter through the store; raise where it may not and a Pyro handler would hear of another object's.

    Pyro gives the values that stand under a name to every object that has a parameter of this name, without a word. Here they are refused if another
    object has put them there. Values that were loaded into the store are taken over, as Pyro does. Where no handler listens, such as a trace, an object
    reads its own values, and the store stays as it is.

    :param own: the object's own parameter.
    :param cache: that of the call, in which the names that it puts into the store are kept. They are taken out again before an error.
    """
    store = pyro.get_param_store()
    held = store._params.get(name)
    if held is None:
        _PUT_THERE[id(own)] = own
        cache.setdefault(_NAMES, []).append(name)
        return True
    if held is own:
        if _PUT_THERE.get(id(own)) is not own:  # loaded, and taken over by this object
            _PUT_THERE[id(own)] = own
        return True
    if _PUT_THERE.get(id(held)) is not held:
        return True
    if not _PYRO_STACK:
        return False
    for put in cache.pop(_NAMES, []):
        if put in store:
            del store[put]
    raise ValueError(
        f"Pyro's global parameter store holds another object's {name!r}, whose values this one would take over: call pyro.clear_param_store() first "
        "(trained values stay in their modules), or work in the scope module_local_parameters(model), in which each object keeps its own; where both objects "
        "belong to one model, make them attributes of one PyroModule"
    )


def pyro_parameters(module: nn.Module) -> Iterator[tuple[str, Tensor | None]]:
    """Iterate over the parameters of a module by the names that they have in Pyro."""
    if not isinstance(module, PyroModule):
        return
    if not module._parameters and not module._pyro_params:
        return
    networks = [name for name in module._parameters if not name.endswith("_unconstrained")]
    prefix = f"{module._pyro_name}." if module._pyro_name else ""
    for name in (*module._pyro_params, *networks):
        yield prefix + name, module._parameters.get(name, module._parameters.get(f"{name}_unconstrained"))


def loaded(*roots: nn.Module) -> list[tuple[str, Tensor, Tensor]]:
    """Return names, own parameters and the values in the store where these were loaded for modules: for all their parameters together.

    Values count as loaded where each parameter has some of its shape and its kind in the store, under a name that is that of no other parameter, and no part of this
    library has put them there. A store that another model or guide of the same parts filled, or that holds a few such names by chance, has none.
    """
    store = pyro.get_param_store()
    if not is_in_use() or not store._params:
        return []
    found, names = [], set[str]()
    for module in (module for root in roots for module in root.modules()):
        for name, own in pyro_parameters(module):
            if own is None:
                continue
            held = store._params.get(name)
            if held is None or name in names:
                return []
            names.add(name)
            if held is own:
                continue
            declared: Any = module._pyro_params
            constraint = declared.get(name.rpartition(".")[2], (constraints.real,))[0]
            is_alike = type(store._constraints.get(name)) is type(constraint) and held.shape == own.shape
            if not is_alike or _PUT_THERE.get(id(held)) is held:
                return []
            found.append((name, own, held))
    return found


def take_over_loaded(*roots: nn.Module) -> None:
    """Give modules the values that were loaded into the store for them. From then on the store holds the parameters of these modules."""
    store = pyro.get_param_store()
    for name, own, held in loaded(*roots):
        with torch.no_grad():
            own.copy_(held)
        store._param_to_name.pop(held, None)
        store._params[name], store._param_to_name[own] = own, name
        _PUT_THERE[id(own)] = own


def require_none_loaded(*roots: nn.Module) -> None:
    """Raise before work outside the store where other values than a module's own were loaded into it: nobody knows which are meant.

    :raises ValueError: with the remedies.
    """
    differing = [name for name, own, held in loaded(*roots) if not torch.equal(own.detach(), held.detach().to(own))]
    if differing:
        raise ValueError(
            f"Pyro's global parameter store holds other values of all parameters here, such as {differing[0]!r}, as after pyro.get_param_store().load(file): to take them, "
            "call guide(x, y), or model(x) where there is no guide; to keep the present ones, call pyro.clear_param_store()"
        )
