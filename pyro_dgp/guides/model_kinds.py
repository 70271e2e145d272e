"""Kinds of the kernels, means and likelihoods of a model, by which the state of another model is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from pyro_dgp.kernels import Kernel
from pyro_dgp.likelihoods import Likelihood
from pyro_dgp.means import Mean


def kinds_of(modules: Sequence[nn.Module]) -> dict[str, str]:
    """Return the kind of each kernel, mean and likelihood of this library inside modules, by its name: ``{"top.kernel": "ArcCosine(order=1)"}``.

    A class of a user's own, whose name may change, is left out.
    """
    return {
        name: _kind(part)
        for module in modules
        for name, part in module.named_modules()
        if isinstance(part, Kernel | Mean | Likelihood) and type(part).__module__.startswith("pyro_dgp.")
    }


def _kind(part: nn.Module) -> str:
    settings = {
        name: value
        for name, value in vars(part).items()
        if _is_plain(value) and not name.startswith("_") and name != "training"
    }
    return f"{type(part).__name__}({', '.join(f'{name}={value!r}' for name, value in sorted(settings.items()))})"


def _is_plain(value: object) -> bool:
    """Tell whether a value is a word, a number or a tuple of such, as the columns of ``ActiveDims`` are."""
    return isinstance(value, str | int | float) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def require_same_kinds(saved: Mapping[str, str], modules: Sequence[nn.Module]) -> None:
    """Raise for the state of a model with other kernels, means or likelihoods, whose parameters may have the same names and shapes.

    :param saved: what :func:`kinds_of` gave for it; empty for a state that has none.
    """
    own = kinds_of(modules)
    for name in sorted(saved.keys() | own.keys()) if saved else ():
        there, here = saved.get(name, "nothing"), own.get(name, "nothing")
        if there != here:
            raise ValueError(
                f"the state is that of a model with {there} at {name!r}, and this model has {here}: build the model as it was when the state was saved"
            )
