"""Columns of words in a table: classes of a target, and inputs as one column of 0 and 1 for each word."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_dgp.data.dataset import hold_times
from pyro_dgp.data.lines import place
from pyro_dgp.data.names import by_bare, same_names
from pyro_dgp.data.written_numbers import (
    NUMBERS,
    all_numbers,
    are_numbers,
    different,
    require_no_marks,
    require_plain_numbers,
)
from pyro_dgp.internal.optional import optional

#: Most different words of a column: more are names or free text.
MOST_WORDS = 50
#: Characters of a word at most: longer ones are free text.
MOST_CHARACTERS = 200
#: The other remedy in a message: for a column whose numbers are names of kinds.
_KINDS = "; if its numbers name kinds, write them as words, such as k1"
#: What stands between the name of a column and a word of it.
_IS = "="
#: Sign between the word that is 1 and the one that is 0, of a column of two words.
_NOT = ", not "


def is_words(column: Any) -> bool:
    """Tell whether a column of a table holds words and not numbers."""
    pandas = optional("pandas", extra="compare", what="reading a table")
    return not pandas.api.types.is_numeric_dtype(column)


def are_kinds(column: Any) -> bool:
    """Tell whether a column of a table was declared as one of kinds, ``category`` in pandas, whatever they are."""
    pandas = optional("pandas", extra="compare", what="reading a table")
    return isinstance(column.dtype, pandas.CategoricalDtype)


def kinds_in(schema: Any) -> list[str]:
    """Return the columns of a Parquet file that pandas wrote from kinds: those of numbers stand in the file as numbers."""
    try:
        columns = (schema.pandas_metadata or {}).get("columns", [])
        return [str(column["name"]) for column in columns if column["pandas_type"] == "categorical"]
    except (ValueError, TypeError, KeyError, AttributeError):  # a record of another program
        return []


def are_in_order(column: Any) -> bool:
    """Tell whether a column of a table was declared as one of kinds that have an order, or its kinds are numbers."""
    return are_kinds(column) and (bool(column.cat.ordered) or all_numbers(list(column.cat.categories)))


def kinds_as_words(column: Any) -> Any:
    """Return a column of kinds whose kinds are words without blanks around them, in their order if they were declared with one."""
    pandas = optional("pandas", extra="compare", what="reading a table")
    missing = column.isna().to_numpy()
    words = [None if gone else str(cell).strip() or None for cell, gone in zip(column, missing, strict=True)]
    order = list(dict.fromkeys(str(kind).strip() for kind in column.cat.categories)) if column.cat.ordered else None
    return pandas.Series(pandas.Categorical(words, categories=order, ordered=order is not None), index=column.index)


def words_of(column: Any, name: str, where: str, *, path: Path | None = None) -> list[str]:
    """Return the different words of a column: in the order that the column declares, else sorted, as numbers where all are numbers.

    :param where: the table, for messages.
    :param path: its file, if it comes from one.
    :raises ValueError: for empty cells, for numbers written with signs or separators, for too many words, and for a few words among numbers.
    """
    if column.isna().any():
        row = int(np.flatnonzero(column.isna().to_numpy())[0])
        raise ValueError(
            f"column {name!r} of {where} is empty in {place(row, path, len(column))}, as a cell that says NA or None is: drop or fill such "
            f"rows, {int(column.isna().sum())} in all"
        )
    if hold_times(column.to_numpy()):
        raise ValueError(
            f"column {name!r} of {where} holds dates or spans of time: write it as numbers, such as days since the first, or as words"
        )
    if not are_kinds(column):
        require_plain_numbers(column, name, where, path=path, remedy=_KINDS)
        require_no_marks(column, name, where, path=path, remedy=_KINDS)
    words = _sorted(different(column)[1].tolist(), column)
    most = min(MOST_WORDS, max(2, len(column) // 2))
    if len(words) > most:
        rule = f"and at most {most} are made columns" + ("" if most == MOST_WORDS else ", one for two rows")
        raise ValueError(
            f"column {name!r} of {where} does not hold numbers ({_first_word(column, path)}) but {len(words)} different words in {len(column)} rows, as "
            f"names, dates and free text do, {rule}: correct that cell, or encode or drop the column"
        )
    if not are_kinds(column) and are_numbers(column).mean() >= NUMBERS:
        raise ValueError(
            f"column {name!r} of {where} holds numbers and the word {_first_word(column, path)}: correct that cell, or drop the row{_KINDS}"
        )
    if (longest := max(map(len, words), default=0)) > MOST_CHARACTERS:
        raise ValueError(
            f"column {name!r} of {where} holds a word of {longest} characters, and at most {MOST_CHARACTERS} make a word: encode or drop it"
        )
    return words


def _sorted(words: Sequence[str], column: Any) -> list[str]:
    if are_kinds(column) and column.cat.ordered:
        return [kind for kind in map(str, column.cat.categories) if kind in set(words)]
    return sorted(words, key=float) if all_numbers(words) else sorted(words)


def _first_word(column: Any, path: Path | None) -> str:
    """Return the first cell that is no number, with its row."""
    row = int(np.argmax(~are_numbers(column)))
    return f"{str(column.iloc[row])[:MOST_CHARACTERS]!r} in {place(row, path, len(column))}"


def class_numbers(column: Any, words: Sequence[str]) -> NDArray[np.float64]:
    """Return the number of each row's word among the words."""
    numbers = {word: float(number) for number, word in enumerate(words)}
    return np.array([numbers[str(word)] for word in column])


def one_hot(table: Any, where: str, path: Path | None = None) -> Any:
    """Return a table with a column of 0 and 1, ``colour=red``, for each word of each column of words.

    Two words need one column, whose name has both: ``sex=male, not female``.

    :raises ValueError: for a word that holds ``, not ``, with which new rows could be taken for others, and for a column that has the name of one that is made.
    """
    pandas = optional("pandas", extra="compare", what="reading a table")
    columns: dict[str, Any] = {}
    for name in table.columns:
        if not is_words(table[name]):
            columns[str(name)] = table[name]
            continue
        words = words_of(table[name], str(name), where, path=path)
        if taken := [word for word in words if _NOT in word]:
            raise ValueError(
                f"column {str(name)!r} of {where} holds {taken[0]!r}, and {_NOT!r} stands between two words in the names of the columns that are made of "
                "them: write it otherwise, without the comma"
            )
        rows, given = different(table[name])
        shown = {f"{words[1]}{_NOT}{words[0]}": words[1]} if len(words) == 2 else {word: word for word in words}
        for text, word in shown.items():
            made = f"{name}{_IS}{text}"
            _require_own_name(made, str(name), table, where)
            columns[made] = (given[rows] == word).astype(float)
    return pandas.DataFrame(columns, index=table.index)


def _require_own_name(made: str, name: str, table: Any, where: str) -> None:
    """Raise ``ValueError`` if the column that is made of a word of another could be taken for a column of the table, or for one made of it."""
    if made in table.columns:
        raise ValueError(f"column {made!r} of {where} has the name that a word of column {name!r} gets: rename it")
    if (other := _source(made, table)) not in (name, None):
        raise ValueError(
            f"column {other!r} of {where} has the name that the beginning of a word of column {name!r} gets: rename it"
        )


def _source(made: str, table: Any) -> str | None:
    """Return the column of a table that a column was made of, by its name: the longest one that it begins with, of words where there is one."""
    ends = [at for at, sign in enumerate(made) if sign == _IS and made[:at] in table.columns]
    words = [at for at in ends if is_words(table[made[:at]])]
    return made[: max(words or ends)] if ends else None


def or_its_source(name: str) -> str:
    """Return the name of a column that is missing, for a message, with that of the column of words that it may be made of."""
    source, sign, _ = name.partition(_IS)
    return f"{name!r}, nor {source!r} of words to make it of" if sign else repr(name)


def sources_of(columns: Sequence[str]) -> list[str]:
    """Return the names of the columns that inputs are made of: several with a column of words before the sign are made of that."""
    sources = [name.partition(_IS)[0] for name in columns]
    named = zip(columns, sources, strict=True)
    return list(dict.fromkeys(source if sources.count(source) > 1 else name for name, source in named))


def words_of_columns(columns: Sequence[str], x: NDArray[np.float64]) -> dict[str, list[str]]:
    """Return the words of each column of words that inputs were made of, by its name.

    They are read from the names of the inputs that are 0 or 1. A single one, such as ``colour=red``, that has no second word is that of a number.
    """
    words: dict[str, list[str]] = {}
    for name, values in zip(columns, x.T, strict=False):
        source, made = made_of(name, values)
        words.setdefault(source, []).extend(made)
    return {source: each for source, each in words.items() if len(each) > 1}


def made_of(name: str, values: NDArray[np.float64]) -> tuple[str, list[str]]:
    """Return the column of words that an input of 0 and 1 was made of, by its name, with the word that is 1 and, of two, the one that is 0; no words for a number."""
    source, sign, words = name.partition(_IS)
    return source, words.split(_NOT) if sign and bool(np.isin(values, (0, 1)).all()) else []


def possible_sources(columns: Sequence[str]) -> set[str]:
    """Return the names of all columns of words that inputs may be made of."""
    return {column[:at] for column in columns for at, sign in enumerate(column) if sign == _IS}


def encoded_as(table: Any, columns: Sequence[str]) -> Any:
    """Return a table with the columns that training had, those of words made of the table's own columns of words.

    Names and words are the same as those of training if they differ in the blanks around them alone, unless that leaves a choice.

    :raises ValueError: for a word that training did not have.
    """
    table = _named_as(table, columns)
    made: dict[str, list[str]] = {}
    for column in columns:
        name = None if column in table.columns else _source(column, table)
        if name is not None:
            made.setdefault(name, []).append(column[len(name) + len(_IS) :])
    for name, words in made.items():
        known = [part for word in words for part in word.split(_NOT)]
        meant = words_of_training(table[name], known, f"column {name!r} of the new rows")
        for word in words:
            table[f"{name}{_IS}{word}"] = (meant == word.split(_NOT)[0]).astype(float)
    return table


def unused_columns(table: Any, columns: Sequence[str]) -> list[bool]:
    """Tell of each column of a table whether no column that training had is it or is made of it."""
    named = _named_as(table, columns)
    used = {*columns, *(_source(column, named) for column in columns if column not in named.columns)}
    return [name not in used for name in named.columns]


def words_of_training(column: Any, known: Sequence[str], what: str) -> NDArray[np.object_]:
    """Return the word of training that each cell of a column stands for.

    Text is the word itself, or the one that differs in the blanks around it alone. A number is the word that has its value: 1 stands for ``1.0``.

    :param what: the column in words, for messages, as a subject in the singular.
    :raises ValueError: for a cell that stands for no word, and for a number that stands for several, as 3.1 does for ``3.1`` and ``3.10``.
    """
    pandas = optional("pandas", extra="compare", what="reading a table")
    if (empty := column.isna().to_numpy()).any():
        raise ValueError(
            f"{what} is empty in {place(int(empty.argmax()))}: drop or fill such rows, {int(empty.sum())} in all"
        )
    given = column.to_numpy(dtype=getattr(column.dtype, "numpy_dtype", None))
    try:
        rows, cells = pandas.factorize(given)
    except TypeError:  # lists and arrays
        rows, cells = pandas.factorize(np.array(list(map(str, given)), dtype=object))
    same, values = by_bare(known), {word: _value(word) for word in known}
    meant = np.empty(len(cells), dtype=object)
    for number, cell in enumerate(cells):
        word = str(cell)
        alike = (
            []
            if isinstance(cell, str)
            else [each for each in known if values[each] is not None and values[each] == _value(word)]
        )
        if len(alike) > 1:
            raise ValueError(
                f"{what} holds the number {word}, which stands for {' and '.join(alike)}: give the column as text"
            )
        meant[number] = alike[0] if alike else word if word in known else same.get(word.strip())
        if meant[number] is None:
            held = np.flatnonzero(rows == number)
            raise ValueError(
                f"{what} holds {word!r}, which training had not: it had {', '.join(sorted(known))}; correct or drop the rows that hold it, {len(held)} in "
                f"all, the first of them {place(int(held[0]))}"
            )
    return meant[rows]


def _value(word: str) -> Decimal | str | None:
    """Return the number that a word is, also a code such as 007, or which of true and false; nothing for another word."""
    if (small := word.strip().lower()) in ("true", "false"):
        return small
    try:
        return Decimal(word)
    except InvalidOperation:
        return None


def _named_as(table: Any, columns: Sequence[str]) -> Any:
    """Return a table whose columns have the names of training, also those that columns were made of."""
    table = table.rename(columns=same_names(table.columns, columns))
    missing = [column for column in columns if column not in table.columns]
    sources = possible_sources(missing)
    others = [name for name in table.columns if name not in columns]
    return table.rename(columns=same_names(others, sources))
