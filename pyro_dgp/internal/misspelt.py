"""Names of attributes that are nearly those of a module's parameters."""

from __future__ import annotations

from difflib import get_close_matches

from torch import nn

#: Where a module keeps what ``getattr`` finds by name.
_KEPT_IN = ("_parameters", "_buffers", "_modules", "_pyro_params", "_pyro_samples")
#: How near a name is to that of a parameter, of 1, to be taken for a misspelt one.
_NEAR = 0.8


def require_spelling(module: nn.Module, name: str, value: object) -> None:
    """Raise for a new attribute of a module of this library whose name is nearly that of a parameter.

    Private names are free, names that go on after a parameter's by ``_`` or a digit, submodules, and all attributes of a user's own class.

    :raises AttributeError: with the name that is meant.
    """
    own, kind = vars(module), type(module)
    if name in own or name.startswith("_") or any(name in own.get(kept, ()) for kept in _KEPT_IN):
        return
    if hasattr(kind, name) or kind.__module__.partition(".")[0] != "pyro_dgp":
        return
    meant = get_close_matches(name, [*own.get("_pyro_params", ()), *own.get("_pyro_samples", ())], 1, _NEAR)
    goes_on = bool(meant) and name.startswith(meant[0]) and (name[len(meant[0])] in "_0123456789")
    if meant and not goes_on and not isinstance(value, nn.Module):
        raise AttributeError(f"{kind.__name__} has no parameter {name!r}: did you mean {meant[0]}?")
