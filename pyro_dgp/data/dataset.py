"""A data set as a value, and the check that a method can be trained on it."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_dgp.data.lines import place
from pyro_dgp.data.names import same_names
from pyro_dgp.data.tasks import Task

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Dataset:
    """Inputs ``(N, D)`` and targets ``(N,)``, or ``(N, P)`` of P outputs, in their own units.

    :ivar splits: test masks ``(N, K)``, one column for each split, where the data bring splits of their own.
    :ivar columns: names of the inputs, where they have any.
    :ivar target: name of the target.
    :ivar outputs: names of the outputs, where there are several.
    :ivar task: the kind of the target; real numbers if not given.
    :ivar labels: names of the classes, where they have any.
    :ivar is_ordered: whether the data declare an order of the classes, in which ``labels`` stand.
    """

    name: str
    x: Array
    y: Array
    _: KW_ONLY
    splits: NDArray[np.bool_] | None = None
    columns: tuple[str, ...] = ()
    target: str = "y"
    task: Task = Task()
    labels: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    is_ordered: bool = False

    def column(self, number: int) -> str:
        """The name of an input in quotes, or its number where inputs have no names."""
        return repr(self.columns[number]) if self.columns else str(number)

    def fingerprint(self) -> str:
        """A short hash of the values, which tells data sets of one name apart."""
        parts = (self.x, self.y) if self.splits is None else (self.x, self.y, self.splits)
        return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()[:16]


def numbered_outputs(count: int) -> tuple[str, ...]:
    """Return the names of outputs that have none: ``y0``, ``y1``, ..."""
    return tuple(f"y{number}" for number in range(count))


def as_table(values: Any) -> Any:
    """Return a table of another library, such as Arrow or Polars, as one of pandas, and all other values as they are."""
    is_other = hasattr(values, "columns") and hasattr(values, "to_pandas") and not hasattr(values, "iloc")
    return values.to_pandas() if is_other else values


def by_output(y: Any, outputs: Sequence[str]) -> Any:
    """Return targets with their columns in the order of the outputs: those of a table by name, blanks around it aside, all else as it is.

    Outputs of an array have numbers for names (:func:`numbered_outputs`), which say nothing of a table with none of them.

    :raises ValueError: for a table that lacks an output, or has another column or one of them twice.
    """
    y = as_table(y)
    if not outputs or not hasattr(y, "columns"):
        return y
    same = same_names(y.columns, outputs)
    names = [same.get(column, str(column)) for column in y.columns]
    by_name = dict(zip(names, y.columns, strict=True))
    if tuple(outputs) == numbered_outputs(len(outputs)) and not set(names) & set(outputs):
        return y
    remedy = f"give the columns {', '.join(outputs)}, which may be in any order"
    if missing := [name for name in outputs if name not in by_name]:
        raise ValueError(f"the targets have no column {missing[0]!r}: {remedy}")
    if other := [name for name in names if name not in outputs]:
        raise ValueError(f"the targets have the column {other[0]!r}, which is no output: {remedy}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"the targets have the column {twice[0]!r} twice: {remedy}")
    return y[[by_name[name] for name in outputs]]


def check(dataset: Dataset, path: Path | None = None) -> None:
    """Raise ``ValueError`` with one sentence for data that no method could be trained on.

    :param path: the file that the data come from, for messages.
    """
    _check_shapes(dataset)
    _check_numbers(dataset, path)
    if len(dataset.y) < 10:
        rows = "1 row" if len(dataset.y) == 1 else f"{len(dataset.y)} rows"
        raise ValueError(f"{dataset.name!r} has {rows}: at least 10 are needed to train and test")


def hold_times(values: Any) -> bool:
    """Tell whether an array holds dates or spans of time, or objects that are."""
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    times = (np.datetime64, np.timedelta64, datetime.date, datetime.timedelta)
    return kind in ("M", "m") or (kind == "O" and any(isinstance(each, times) for each in values.flat))


def require_real(values: Any, what: str) -> None:
    """Raise ``ValueError`` for masked entries of an array, for dates and spans of time, whose numbers depend on a unit, and for complex numbers, of which a part would be lost.

    :param what: the values in words, for messages, as the subject of a sentence in the plural.
    """
    if np.ma.is_masked(values):
        raise ValueError(
            f"{what} hold masked entries ({int(np.ma.getmaskarray(values).sum())}): drop or fill such rows"
        )
    if hold_times(values):
        raise ValueError(
            f"{what} hold dates or spans of time: give them as numbers, such as days, (dates - numpy.datetime64('2000-01-01')) / numpy.timedelta64(1, 'D')"
        )
    if np.iscomplexobj(values):
        is_real = not np.imag(values).any()
        remedy = (
            "give their .real, which is all of them"
            if is_real
            else "give real and imaginary parts as columns of their own"
        )
        raise ValueError(f"{what} hold complex numbers: {remedy}")


def _check_shapes(dataset: Dataset) -> None:
    name, x, y = dataset.name, dataset.x, dataset.y
    require_real(x, f"the inputs of {name!r}")
    require_real(y, f"the targets of {name!r}")
    if x.ndim != 2 or y.ndim not in (1, 2) or len(y) != len(x) or y.shape[1:] == (1,):
        one = "; one input is x[:, None]" if x.ndim == 1 else "; one target is y[:, 0]" if y.ndim == 2 else ""
        raise ValueError(
            f"{name!r} has inputs {x.shape} and targets {y.shape}: they must be (N, D) and (N,), or (N, P) of several outputs{one}"
        )
    if len(x) == 0:
        raise ValueError(f"{name!r} has zero rows: give a file with data")
    if x.shape[1] == 0:
        raise ValueError(f"{name!r} has no input columns besides the target: give at least one")


def _check_numbers(dataset: Dataset, path: Path | None) -> None:
    for label, values in (("input", dataset.x), ("target", dataset.y.reshape(len(dataset.y), -1))):
        bad = ~np.isfinite(values)
        if not bad.any():
            continue
        row, column = map(int, np.argwhere(bad)[0])
        named = dataset.outputs[column] if dataset.outputs else dataset.target
        where = f"input column {dataset.column(column)}" if label == "input" else f"the target {named!r}"
        remedy = (
            "drop such rows ({}), or, where some of several outputs are missing, train a model with MissingOutputs by fit(objective, x, y)"
            if label == "target"
            else "drop or fill such rows ({})"
        )
        raise ValueError(
            f"{dataset.name!r} has NaN or infinity in {where}, {place(row, path, len(dataset.x))}, as an empty cell or the word n/a gives: "
            + remedy.format(f"{int(bad.any(1).sum())} in all")
        )
