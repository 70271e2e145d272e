"""Pyro's global store of parameters, as a module of this library meets it: whose parameter stands there under a name."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import pyro
import pyro.nn.module as pyro_modules
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

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
    if held is own or _PUT_THERE.get(id(held)) is not held:
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
