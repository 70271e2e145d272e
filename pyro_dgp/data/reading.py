"""Data sets from files: CSV, Parquet and NumPy archives."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_dgp.data.categories import (
    are_in_order,
    are_kinds,
    class_numbers,
    is_words,
    kinds_as_words,
    kinds_in,
    one_hot,
    words_of,
)
from pyro_dgp.data.dataset import Dataset, check, numbered_outputs, require_real
from pyro_dgp.data.separators import require_commas
from pyro_dgp.data.tasks import TASKS, guessed_task, task_of
from pyro_dgp.data.written_numbers import as_numbers, require_plain_numbers
from pyro_dgp.internal.errors import first_line, shown
from pyro_dgp.internal.optional import optional
from pyro_dgp.internal.untrusted_files import UnreadableError, memory, read_npz, require_plain


def load(path: str | Path, target: str | None = None, task: str | None = None) -> Dataset:
    """Read a data set from a file and check it.

    Columns of words become inputs of 0 and 1, one for each word, ``colour=red``, and one for two words, ``sex=male, not female``. A target of words is one of classes.

    :param path: ``.npz`` with ``X``, ``y`` (one column, or several) and, if there, ``splits`` (1 = test), or CSV or Parquet with a header.
    :param target: the target's column, or several with commas between; the last one of a table if not given.
    :param task: kind of the target, one of :data:`~pyro_dgp.data.tasks.TASKS`. If not given it is the word ``task`` of an archive, or guessed: two classes for 0 and 1, classes for
        words and for 0, ..., C - 1 with C from 3 to 10, and real numbers for all else.
    :raises ValueError: one sentence that says what is wrong with the file and what to do.
    """
    path = Path(path)
    require_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        dataset, said = _from_npz(path, target)
        if task is None and said not in (None, *TASKS):
            known = ", ".join(TASKS)
            raise ValueError(
                f"'task' in {path.name!r} is {said!r:.40}: choose from {known}, leave it out, or give --task"
            )
        task = said if task is None else task
    elif suffix in (".csv", ".parquet"):
        dataset = _from_table(path, target)
    else:
        raise ValueError(f"{path.name!r} is neither CSV, Parquet nor .npz: convert it to one of them")
    check(dataset, path)
    return with_task(dataset, task)


def require_file(path: Path) -> None:
    """Raise ``ValueError`` for a path given to ``--data`` that is no plain file."""
    try:
        require_plain(path)
    except UnreadableError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise ValueError(f"there is no file {str(path)!r}: check the path given to --data") from error
        raise ValueError(f"{str(path)!r} cannot be read ({error}): check the path given to --data") from error


def with_task(dataset: Dataset, task: str | None) -> Dataset:
    """Return a data set with the task of that kind, or with the one that its targets look like.

    :raises ValueError: for targets of another kind.
    """
    if task is None and dataset.labels:
        task = "binary" if len(dataset.labels) == 2 else "multiclass"
    if task in ("regression", "counts") and dataset.labels:
        raise ValueError(
            f"the target {dataset.target!r} of {dataset.name!r} holds words, which are classes: leave --task out"
        )
    found = guessed_task(dataset.y) if task is None else task_of(task, dataset.y, dataset.name)
    return replace(dataset, task=found)


def _from_npz(path: Path, target: str | None) -> tuple[Dataset, str | None]:
    """The data set of an archive, and the task that it names, if it names one."""
    if target is not None:
        raise ValueError(f"--target names a column of a table, and {path.name!r} is .npz with its target in 'y'")
    arrays = read_arrays(path)
    x, y, splits = arrays["X"], arrays["y"], arrays.get("splits")
    if x.ndim != 2:
        raise ValueError(f"'X' in {path.name!r} has shape {x.shape}: it must be (N, D)")
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim not in (1, 2) or len(y) != len(x):
        raise ValueError(f"'y' in {path.name!r} has shape {y.shape} for {len(x)} rows of X: it must be (N,) or (N, P)")
    if splits is not None and (splits.ndim != 2 or len(splits) != len(x)):
        raise ValueError(f"'splits' in {path.name!r} has shape {splits.shape}: it must be (N, K), 1 for test rows")
    if splits is not None and not np.isin(splits, (0, 1)).all():
        raise ValueError(
            f"'splits' in {path.name!r} hold other numbers than 0 and 1: give masks (N, K), 1 at the rows that are tested"
        )
    said = str(arrays["task"]) if "task" in arrays else None
    outputs = () if y.ndim == 1 else numbered_outputs(y.shape[1])
    masks = None if splits is None else splits == 1
    made = Dataset(
        path.stem, x.astype(float), y.astype(float), splits=masks, target=", ".join(outputs) or "y", outputs=outputs
    )
    return made, said


def read_arrays(path: Path, needed: Sequence[str] = ("X", "y")) -> dict[str, NDArray[Any]]:
    """The arrays ``X``, ``y`` and, if there, ``splits`` and the word ``task``."""
    try:
        arrays = read_npz(path, ("X", "y", "splits", "task"))
    except UnreadableError as error:
        raise ValueError(
            f"{path.name!r} cannot be read as .npz ({error}): save it with numpy.savez(X=..., y=...)"
        ) from error
    for name in needed:
        if name not in arrays:
            raise ValueError(f"{path.name!r} has no array {name!r}: save it with numpy.savez(X=..., y=...)")
    for name in set(arrays) - {"task"}:
        if arrays[name].dtype.kind not in "biufc":
            raise ValueError(f"{name!r} in {path.name!r} holds {arrays[name].dtype}, not numbers: encode it first")
        require_real(arrays[name], f"the values of {name!r} in {path.name!r}")
    return arrays


def _from_table(path: Path, target: str | None) -> Dataset:
    table = read_table(path)
    target = str(table.columns[-1]) if target is None and len(table.columns) else target
    target = target or ""
    several = [] if target in table.columns else [name.strip() for name in target.split(",")]
    if unknown := [name for name in several if name not in table.columns]:
        columns = ", ".join(shown(str(column)) for column in table.columns[:20])
        raise ValueError(f"{path.name!r} has no column {unknown[0]!r}: its columns are {columns}")
    if len(several) == 1:
        target, several = several[0], []
    if len(set(several)) < len(several):
        raise ValueError(f"--target names a column twice: {', '.join(several)}")
    inputs = one_hot(table.drop(columns=several or [target]), repr(path.name), path)
    if taken := [name for name in several or [target] if name in inputs.columns]:
        raise ValueError(
            f"column {taken[0]!r} of {path.name!r} has the name that a word of another column gets: rename it"
        )
    labels: list[str] = []
    if several:
        require_numbers(table[several], repr(path.name))
        y = table[several].to_numpy(dtype=float, na_value=np.nan)
    elif is_words(table[target]):
        labels = words_of(table[target], target, repr(path.name), path=path)
        y = class_numbers(table[target], labels)
    else:
        y = table[target].to_numpy(dtype=float, na_value=np.nan)
    return Dataset(
        path.stem,
        inputs.to_numpy(dtype=float, na_value=np.nan),
        y,
        columns=tuple(map(str, inputs.columns)),
        target=", ".join(several) or target,
        labels=tuple(labels),
        outputs=tuple(several),
        is_ordered=not several and are_in_order(table[target]),
    )


def read_table(path: Path, kinds: Collection[str] = ()) -> Any:
    """A table, as pandas has it, from CSV or Parquet with a header. Blanks around names and words are left out; a cell of blanks is an empty one.

    :param kinds: columns that stay text, as it is written, also where it is all numbers: ``3.10`` is no 3.1 there.
    :raises ValueError: one sentence for a file that cannot be read or has no rows.
    :raises ImportError: if the package is missing that reads such files.
    """
    pandas = optional("pandas", extra="compare", what=f"reading {path.name!r}")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        optional("pyarrow", extra="parquet", what=f"reading {path.name!r}")
    if suffix not in (".csv", ".parquet"):
        raise ValueError(f"{path.name!r} is neither CSV, Parquet nor .npz: convert it to one of them")
    if suffix == ".csv":
        require_commas(path)
    try:
        table = _without_blanks(_read_csv(path, pandas, kinds) if suffix == ".csv" else _read_parquet(path), kinds)
    except Exception as error:  # whatever bytes of another format make of the parsers
        reason = (
            str(error).strip().splitlines()[0]
            if isinstance(error, ValueError) and str(error).strip()
            else first_line(error)
        )
        is_encoded = suffix == ".csv" and isinstance(error, UnicodeDecodeError)
        remedy = "save it as UTF-8" if is_encoded else "check the file"
        raise ValueError(f"{path.name!r} cannot be read as {suffix[1:]} ({reason}): {remedy}") from error
    if table.empty and len(table.columns):
        raise ValueError(f"{path.name!r} has zero rows: give a file with data")
    return table


def _without_blanks(table: Any, kinds: Collection[str]) -> Any:
    """Return a table without the blanks around names and words. Names are words; text that is all numbers is one of numbers, as in CSV; kinds are words.

    :param kinds: columns whose text stays text.
    """
    names = [str(name).strip() for name in table.columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"it names the column {str(twice[0])!r} twice: give each column a name of its own")
    table.columns = names
    for name in names:
        if are_kinds(table[name]):
            table[name] = kinds_as_words(table[name])
        elif is_words(table[name]):
            words = table[name].map(_without_blanks_around)
            table[name] = words if name in kinds else as_numbers(words)
    return table


def _without_blanks_around(cell: Any) -> Any:
    """Return a word without the blanks around it, nothing for blanks alone, and what is no word as it is."""
    return (cell.strip() or None) if isinstance(cell, str) else cell


def _read_parquet(path: Path) -> Any:
    """A table from Parquet, unless it says that it is larger than the memory of this machine."""
    parquet = optional("pyarrow.parquet", extra="parquet", what=f"reading {path.name!r}")
    with parquet.ParquetFile(path) as file:
        size = 8.0 * file.metadata.num_rows * file.metadata.num_columns
        if size > memory():
            raise ValueError(f"its columns have {size:.3g} bytes, more than the memory of this machine")
        table = file.read().to_pandas()
        for name in set(kinds_in(file.schema_arrow)) & set(table.columns):
            table[name] = table[name].astype("category")
        return table


def _read_csv(path: Path, pandas: Any, kinds: Collection[str]) -> Any:
    """A table from CSV, of which the first line names every column once.

    :param kinds: columns that are text.
    """
    written = [] if path.stat().st_size == 0 else _names(path, pandas)
    names = [name.strip() for name in written]
    numeric = [name for name in names if _is_number(name)]
    if names and len(numeric) == len(names) and names != [str(number) for number in range(len(names))]:
        raise ValueError(
            f"its first line holds numbers, {', '.join(names[:3])}, and no names of columns: add a line with a name for each"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"its first line names the column {twice[0]!r} twice: give each column a name of its own")
    if "" in names:
        raise ValueError(
            f"column {names.index('') + 1} has no name; if it numbers the rows, write the file without it, as by to_csv(index=False)"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            options = {
                "index_col": False,
                "low_memory": False,
                "dtype": {name: str for name in written if name.strip() in kinds},
            }
            table = pandas.read_csv(path, **options)
            _require_names(names, table)
            return _with_blank_lines(path, pandas, options, table=table) if len(names) == 1 else table
    except pandas.errors.ParserWarning as error:
        raise ValueError("rows have more fields than the first line has names: give every column a name") from error


def _with_blank_lines(path: Path, pandas: Any, options: Mapping[str, Any], *, table: Any) -> Any:
    """Return a table of one column with an empty cell for each blank line below its name: such a line is a row without a value, but for those at the end."""
    with path.open(encoding="utf-8-sig") as file:
        is_blank = [not line.strip() for line in file]
    every = pandas.read_csv(path, header=is_blank.index(False), skip_blank_lines=False, **options)
    every = every.iloc[: len(every) - is_blank[::-1].index(False)]
    return table if len(table) == len(every) else every


def _require_names(names: Sequence[str], table: Any) -> None:
    """Raise where the first line is a row of data: it has a number for each column of numbers, and for a column of words a word that occurs in it."""
    words = [at for at in range(len(names)) if is_words(table.iloc[:, at])]
    numbers = [name for at, name in enumerate(names) if at not in words]
    again = [names[at] for at in words if names[at] in {str(cell).strip() for cell in table.iloc[:, at]}]
    if numbers and again and all(map(_is_number, numbers)):
        raise ValueError(
            f"its first line holds numbers, {', '.join(numbers[:3])}, and {again[0]!r}, which occurs below, as a row of data does: add a line with a name for "
            "each column"
        )


def _names(path: Path, pandas: Any) -> list[str]:
    """The names in the first line, as they are written there."""
    line = pandas.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, skip_blank_lines=True)
    return [str(name) for name in line.iloc[0]]


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def require_numbers(table: Any, name: str) -> None:
    """Raise ``ValueError`` if a column of a table, as pandas has it, holds something else than numbers."""
    for column in table.columns:
        if is_words(table[column]):
            require_plain_numbers(table[column], str(column), name)
            raise ValueError(f"column {str(column)!r} of {name} does not hold numbers: encode or drop it")
