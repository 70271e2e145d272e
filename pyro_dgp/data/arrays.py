"""Arrays, tensors and tables in memory: as arrays of numbers, and as a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from pyro_dgp.data.categories import (
    are_in_order,
    are_kinds,
    class_numbers,
    encoded_as,
    is_words,
    kinds_as_words,
    one_hot,
    or_its_source,
    sources_of,
    words_of,
    words_of_training,
)
from pyro_dgp.data.dataset import Array, Dataset, as_table, numbered_outputs, require_real
from pyro_dgp.data.names import require_own_names
from pyro_dgp.data.reading import with_task
from pyro_dgp.data.tasks import Task
from pyro_dgp.data.written_numbers import all_numbers, as_numbers
from pyro_dgp.internal.optional import optional


def of_arrays(name: str, x: Any, y: Any, *, task: str = Task().kind) -> Dataset:
    """Return a data set of inputs ``(N, D)`` and targets ``(N,)`` or ``(N, P)``, with the names of their columns where these are tables.

    Several outputs without names are numbered. Targets that are words, or kinds of a table (``category``), are classes. Columns of words among the inputs of a table
    become columns of 0 and 1, as those of a file do.

    :param task: kind of the target, one of :data:`~pyro_dgp.data.tasks.TASKS`.
    :raises ValueError: for what holds no numbers, and for targets of another kind.
    """
    _require_one_order(x, y)
    x, y = _encoded(as_table(x)), as_table(y)
    columns = tuple(str(column) for column in getattr(x, "columns", ()))
    if (words := _column_of_words(y)) is not None:
        labels = words_of(words, "y", "the targets")
        numbers, in_order = class_numbers(words, labels), are_in_order(words)
        dataset = Dataset(name, as_array(x), numbers, columns=columns, labels=tuple(labels), is_ordered=in_order)
        return with_task(dataset, None if task == Task().kind else task)
    dataset = Dataset(name, as_array(x), as_array(y), columns=columns, task=Task(is_guessed=True))
    if dataset.y.ndim == 2 and dataset.y.shape[1] > 1:
        names = tuple(map(str, getattr(y, "columns", ()))) or numbered_outputs(dataset.y.shape[1])
        dataset = replace(dataset, outputs=names, target=", ".join(names), task=Task(outputs=len(names)))
    return dataset if task == Task().kind else with_task(dataset, task)


def _require_one_order(x: Any, y: Any) -> None:
    """Raise ``ValueError`` for two tables of pandas whose rows have the same names in another order: rows are taken in their order."""
    if not (hasattr(x, "iloc") and hasattr(y, "iloc")) or len(x) != len(y) or x.index.equals(y.index):
        return
    if x.index.is_unique and set(x.index) == set(y.index):
        raise ValueError(
            "the rows of inputs and targets have the same index in another order, and are taken in their order: give y.loc[x.index] if the index names rows, and "
            "y.to_numpy() if they are paired as they stand"
        )


def _encoded(x: Any) -> Any:
    """Return a table of pandas with columns of 0 and 1 in the place of those of words, and all other inputs as they are."""
    if not hasattr(x, "columns") or not hasattr(x, "iloc"):
        return x
    require_real(_as_it_is(x), "inputs and targets")
    require_own_names(x.columns, "the inputs")
    if not any(is_words(x[name]) for name in x.columns):
        return x
    x = x.copy()
    for name in x.columns:
        if is_words(x[name]) and not are_kinds(x[name]):
            x[name] = as_numbers(x[name])
    return one_hot(x, "the inputs")


def numbered(y: Any, labels: Sequence[str]) -> Any:
    """Return targets that are words as the numbers of classes, where these have names, and all others as they are.

    Numbers are names where the names of the classes are numbers, else numbers of classes.

    :raises ValueError: for a word or a number that is no name of a class.
    """
    words = _column_of_words(y) if labels else None
    if words is None:
        return _numbered_by_value(y, labels) if labels and all_numbers(labels) else y
    return class_numbers(words_of_training(words, labels, "the target"), labels)


def named(numbers: Any, labels: Sequence[str]) -> Any:
    """Return numbers of classes as :func:`numbered` takes them: as the names of the classes where these are numbers."""
    if not labels or not all_numbers(labels):
        return numbers
    return np.array([float(label) for label in labels])[np.asarray(numbers).astype(int)]


def _numbered_by_value(y: Any, labels: Sequence[str]) -> Any:
    """Return numbers as the numbers of the classes that have them as names."""
    is_single = str(getattr(y, "dtype", "")).endswith("float32")
    values, known = as_array(y), np.array([float(label) for label in labels])
    number = np.argmin(np.abs(values[..., None] - known), -1)
    rounded = known.astype(np.float32).astype(float) if is_single else known
    if (unknown := values[rounded[number] != values]).size:
        raise ValueError(f"the targets hold {unknown[0]:g}, which training had not: it had {', '.join(labels)}")
    return number.astype(float)


def _column_of_words(y: Any) -> Any:
    """Return targets as a column of a table if they are words or kinds, which are classes; nothing if they are numbers, or several columns."""
    if hasattr(y, "columns") and hasattr(y, "iloc") and len(y.columns) == 1:
        y = y.iloc[:, 0]
    if isinstance(y, Tensor) or hasattr(y, "columns"):
        return None
    values = y if hasattr(y, "dtype") else _as_it_is(y)
    if values is None or getattr(values, "ndim", 0) != 1 or getattr(values.dtype, "kind", "O") not in "UO":
        return None
    pandas = optional("pandas", extra="compare", what="targets that are words")
    column = values if isinstance(values, pandas.Series) else pandas.Series(values.astype(object))
    if are_kinds(column):
        return kinds_as_words(column)
    cells = list(column[column.notna()])
    if not cells or not all(isinstance(cell, str) for cell in cells) or not is_words(as_numbers(column)):
        return None
    return column.map(str.strip, na_action="ignore")


def in_order(x: Any, columns: Sequence[str]) -> Array:
    """Inputs with their columns in the order of training: by name where both have names, else as they are.

    :raises ValueError: for a table that lacks a column.
    """
    if not columns or not hasattr(x, "columns"):
        return as_array(x)
    x = as_table(x)
    require_own_names([name for name in x.columns if str(name) in columns], "the inputs")
    x = encoded_as(x, columns)
    by_name = {str(column): column for column in x.columns}
    missing = [name for name in columns if name not in by_name]
    if missing:
        raise ValueError(
            f"the inputs have no column {or_its_source(missing[0])}, which the fit takes: its inputs are {', '.join(sources_of(columns))}"
        )
    return as_array(x[[by_name[name] for name in columns]])


def as_array(values: Any) -> Array:
    """Numbers as a float64 array, from an array, a tensor or a table.

    :raises ValueError: for what holds no numbers, complex ones, or masked entries.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if type(values).__module__.startswith("pyarrow"):
        values = values.to_pandas()  # which keeps dates apart from numbers
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
