"""Numbers that are written with signs or separators, which a table takes for words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_dgp.data.lines import place
from pyro_dgp.internal.optional import optional

#: Share of cells that are numbers from which the others are taken for errors, and the column not for words.
NUMBERS = 0.9
#: Words of a column that are looked at first: a column of other words mostly has one among them.
_FIRST = 100
#: Characters of a written number at most.
_LONGEST = 40
#: A number with the sign of a currency or of a share, with signs between thousands or with a decimal comma. Blanks stand between thousands and beside units.
#: A minus may be U+2212, or stand behind.
_WRITTEN = re.compile(
    r"""
    [+\-\u2212]?  ([$€£]\s*[+\-\u2212]?)?
    (
        [0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?         # 1,000.5
      | [0-9]{1,3}(\.[0-9]{3})+,[0-9]+            # 1.000,5
      | [0-9]{1,3}(\s[0-9]{3})+([.,][0-9]+)?      # 1 000,5
      | [0-9]+,[0-9]+                             # 0,5
      | [0-9]+(\.[0-9]*)?                         # 5 and 5.5, as in $5
      | \.[0-9]+
    )
    ([eE][+\-\u2212]?[0-9]+)?
    (\s*[$€£%])?  [\-\u2212]?
    """,
    re.VERBOSE,
)


#: What stands for a missing value in tables, in small letters.
_MISSING = re.compile(
    r"\?|\*|-{1,3}|\.{1,3}|#?n\.?/?a\.?|nan|none|null|nil|missing|unknown|#(div/0|num|ref|value)!|#name\?"
)
#: The beginning of figures that are a code, and of no number as it is written.
_CODE = re.compile(r"[+-]?0[0-9]|\+")


def different(column: Any) -> tuple[NDArray[np.intp], NDArray[np.object_]]:
    """Return the number of each row's word, and the words: the different cells of a column of a table as text."""
    pandas = optional("pandas", extra="compare", what="reading a table")
    cells = [str(cell) for cell in column.to_numpy(dtype=object)]
    rows, words = pandas.factorize(np.array(cells, dtype=object))
    return rows, words


def are_numbers(column: Any) -> NDArray[np.bool_]:
    """Tell of each cell of a column of a table whether it can be read as a number."""
    rows, words = different(column)
    return _plain(words)[rows]


def as_numbers(column: Any) -> Any:
    """Return a column of text, or of whatever objects, that is all numbers as one of numbers, and another one as it is, also codes such as 007."""
    pandas = optional("pandas", extra="compare", what="reading a table")
    cells = list(column[column.notna()])
    if not cells or not all(isinstance(cell, str | Real | Decimal) and not isinstance(cell, bool) for cell in cells):
        return column
    words = list(dict.fromkeys(cell for cell in cells if isinstance(cell, str)))
    if not all_numbers(words[:_FIRST]) or not all_numbers(words):
        return column
    try:
        numbers = pandas.to_numeric(column)
        return (
            numbers
            if pandas.api.types.is_numeric_dtype(numbers)
            else column.map(float, na_action="ignore").astype(float)
        )
    except (OverflowError, ValueError, TypeError):  # numbers beyond floating-point ones
        return column


def all_numbers(words: Sequence[str]) -> bool:
    """Tell whether all words are numbers, and none a code such as 007."""
    return not any(_CODE.match(word) for word in words) and bool(_plain(np.array(words, dtype=object)).all())


def _plain(words: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Tell of each word whether it is a number without signs or separators."""
    pandas = optional("pandas", extra="compare", what="reading a table")
    return np.asarray(pandas.notna(pandas.to_numeric(words, errors="coerce")))


def require_plain_numbers(column: Any, name: str, where: str, *, path: Path | None = None, remedy: str = "") -> None:
    """Raise ``ValueError`` for a column of numbers of which some are written as ``1,000``, ``$5``, ``5 %`` or ``0,5``.

    :param where: the table, for messages.
    :param path: its file, if it comes from one.
    :param remedy: what else to do, for the end of the message.
    """
    rows, words = different(column)
    plain = _plain(words)
    written = ~plain & np.array([_is_written(word.strip()) for word in words], dtype=bool)
    if written.any() and (plain | written)[rows].mean() >= NUMBERS:
        row = int(np.argmax(written[rows]))
        raise ValueError(
            f"column {name!r} of {where} holds numbers written as {words[rows[row]]!r} in {place(row, path, len(column))}: write numbers as -1000.5, "
            f"with a hyphen for the minus, without separators of thousands, units or currency signs{remedy}"
        )


def require_no_marks(column: Any, name: str, where: str, *, path: Path | None = None, remedy: str = "") -> None:
    """Raise ``ValueError`` for a column of numbers of which the others are marks of missing values, such as ``?``.

    :param where: the table, for messages.
    :param path: its file, if it comes from one.
    :param remedy: what else to do, for the end of the message.
    """
    rows, words = different(column)
    plain = _plain(words)
    if (
        not plain.any()
        or plain.all()
        or any(_CODE.match(word) for word in words[plain])
        or not all(_MISSING.fullmatch(word.strip().lower()) for word in words[~plain])
    ):
        return
    is_mark = ~plain[rows]
    row = int(np.argmax(is_mark))
    raise ValueError(
        f"column {name!r} of {where} holds numbers and {words[rows[row]]!r} in {place(row, path, len(column))}, which stands for a missing value: drop or fill such "
        f"rows, {int(is_mark.sum())} in all{remedy}"
    )


def _is_written(word: str) -> bool:
    """Tell of a word whether it is a number, with signs and separators or without."""
    if word[:1] == "(" and word[-1:] == ")":  # as accounts write what is below zero
        word = word[1:-1].strip()
    return len(word) <= _LONGEST and _WRITTEN.fullmatch(word) is not None
