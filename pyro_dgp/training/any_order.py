"""Models and guides for which rows in another order are other data, which no stream can train."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import numpy as np
from torch import Tensor

from pyro_dgp.guides.variational import Variational, held_rows


def require_any_order(guide: Variational, rows: int) -> None:
    """Raise for a model or guide for which rows in another order are other data, where a stream gives its rows at random."""
    remedy = "read the rows into memory and use fit"
    if guide.structure.joins_data_rows:
        reason = "a part of the model joins rows of function values"
    elif held := held_rows(guide):
        reason = f"the guide holds a value of the latent site {held[0]!r} for each training row"
        remedy += f", or give a network that finds it, Variational(..., networks={{{held[0]!r}: network}})"
    elif guide.structure.inputs is None and (name := _held_by_model(guide, rows)) is not None:
        reason = f"the model holds {name!r} with an entry for each of the {rows} rows"
    else:
        return
    raise ValueError(f"{reason}, and a stream gives rows in random order: {remedy}")


def _held_by_model(guide: Variational, rows: int) -> str | None:
    """Return the name of a tensor that a module of the model, or a function around it, holds with an axis of so many rows; ``None`` for none."""
    places: list[Mapping[str, Any]] = []
    for module in itertools.chain.from_iterable(root.modules() for root in guide.model_modules):
        places += [vars(module), module._parameters, module._buffers]
    if isinstance(guide.model, FunctionType):
        around = inspect.getclosurevars(guide.model)
        places += [around.nonlocals, around.globals]
    held = (
        (name, value) for place in places for name, value in place.items() if isinstance(value, Tensor | np.ndarray)
    )
    return next((name for name, value in held if rows in value.shape), None)
