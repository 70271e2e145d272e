"""Pyro's global store of parameters, as a module of this library meets it: whose parameter stands there under a name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

import pyro
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

#: Parameters that modules of this library have put into the store, by ``id``. A parameter that was loaded from a file is not among them.
_PUT_THERE: WeakValueDictionary[int, Tensor] = WeakValueDictionary()


def listens() -> bool:
    """Tell whether parameters stay in their modules, or a Pyro handler, such as a trace, hears of those that are read."""
    return bool(pyro.settings.get("module_local_params") or _PYRO_STACK)


def require_own(name: str, own: Tensor | None) -> None:
    """Raise if the store is in use and holds a parameter under this name that another object has put there.

    Pyro would give its values to this object, without a word. Values that were loaded into the store are taken over, as Pyro does.
    """
    if own is None or pyro.settings.get("module_local_params"):
        return
    held = pyro.get_param_store()._params.get(name)
    if held is not None and held is not own and _PUT_THERE.get(id(held)) is held:
        raise ValueError(
            f"Pyro's global parameter store holds another object's {name!r}, whose values this one would take over: call pyro.clear_param_store() "
            "first, or work in the scope pyro_dgp.module_local_parameters(), in which each object keeps its own"
        )
    _PUT_THERE[id(own)] = own


@contextmanager
def unwritten() -> Iterator[None]:
    """A scope that reads the store and leaves it as it was."""
    store = pyro.get_param_store()
    with store.scope(store.get_state()):
        yield
