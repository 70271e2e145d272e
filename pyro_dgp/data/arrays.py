"""Arrays, tensors and tables in memory: as arrays of numbers, and as a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from pyro_dgp.data.categories import encoded_as
from pyro_dgp.data.dataset import Array, Dataset, numbered_outputs, require_real
from pyro_dgp.data.reading import with_task
from pyro_dgp.data.tasks import Task


def of_arrays(name: str, x: Any, y: Any, *, task: str = Task().kind) -> Dataset:
    """Return a data set of inputs ``(N, D)`` and targets ``(N,)`` or ``(N, P)``, with the names of their columns where these are tables.

    Several outputs without names are numbered.

    :param task: kind of the target, one of :data:`~pyro_dgp.data.tasks.TASKS`.
    :raises ValueError: for what holds no numbers, and for targets of another kind.
    """
    columns = tuple(str(column) for column in getattr(x, "columns", ()))
    dataset = Dataset(name, as_array(x), as_array(y), columns=columns)
    if dataset.y.ndim == 2 and dataset.y.shape[1] > 1:
        names = tuple(map(str, getattr(y, "columns", ()))) or numbered_outputs(dataset.y.shape[1])
        dataset = replace(dataset, outputs=names, target=", ".join(names), task=Task(outputs=len(names)))
    return dataset if task == Task().kind else with_task(dataset, task)


def in_order(x: Any, columns: Sequence[str]) -> Array:
    """Inputs with their columns in the order of training: by name where both have names, else as they are.

    :raises ValueError: for a table that lacks a column.
    """
    if not columns or not hasattr(x, "columns"):
        return as_array(x)
    x = encoded_as(x, columns)
    by_name = {str(column): column for column in x.columns}
    missing = [name for name in columns if name not in by_name]
    if missing:
        raise ValueError(
            f"the inputs have no column {missing[0]!r}, which the fit takes: its inputs are {', '.join(columns)}"
        )
    return as_array(x[[by_name[name] for name in columns]])


def as_array(values: Any) -> Array:
    """Numbers as a float64 array, from an array, a tensor or a table.

    :raises ValueError: for what holds no numbers, complex ones, or masked entries.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    kinds = list(getattr(values, "dtypes", ())) if hasattr(values, "columns") else [getattr(values, "dtype", None)]
    if "category" in map(str, kinds):
        raise ValueError(
            "inputs and targets are numbers, and a column holds kinds (category): encode it as columns of 0 and 1, give each class a number, or say "
            "astype(float) if its kinds are numbers"
        )
    require_real(values if isinstance(values, np.ndarray) else _as_it_is(values), "inputs and targets")
    try:
        array: Array = np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"inputs and targets are numbers: {error}; give each class a number") from error
    return array


def _as_it_is(values: Any) -> Any:
    """An array of whatever kind; nothing for what is none, which is refused later."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError):
        return None
