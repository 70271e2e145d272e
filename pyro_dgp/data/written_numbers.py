"""Numbers that are written with signs or separators, which a table takes for words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_dgp.data.lines import place
from pyro_dgp.internal.optional import optional

#: Share of cells that are numbers from which the others are taken for errors, and the column not for words.
NUMBERS = 0.9
#: Signs of currencies, of shares, and blanks of all kinds.
_SIGNS = re.compile(r"[$€£%\s]")
#: A number with points between thousands and a decimal comma.
_POINTS = re.compile(r"[+-]?\d{1,3}(\.\d{3})*,\d+")


def are_numbers(column: Any) -> NDArray[np.bool_]:
    """Tell of each cell of a column of a table whether it can be read as a number."""
    pandas = optional("pandas", extra="compare", what="reading a table")
    return np.asarray(pandas.to_numeric(column, errors="coerce").notna())


def require_plain_numbers(column: Any, name: str, where: str, *, path: Path | None = None) -> None:
    """Raise ``ValueError`` for a column of numbers of which some are written as ``1,000``, ``$5``, ``5 %`` or ``0,5``.

    :param where: the table, for messages.
    :param path: its file, if it comes from one.
    """
    pandas = optional("pandas", extra="compare", what="reading a table")
    bare = are_numbers(pandas.Series([_bare(str(cell)) for cell in column], dtype=object))
    if bare.mean() < NUMBERS:
        return
    written = bare & ~are_numbers(column)
    if written.any():
        row = int(np.argmax(written))
        raise ValueError(
            f"column {name!r} of {where} holds numbers written as {str(column.iloc[row])!r} in {place(row, path, len(column))}: write numbers as 1000.5, "
            "without signs or separators"
        )


def _bare(cell: str) -> str:
    """Return a cell without signs and separators."""
    bare = _SIGNS.sub("", cell)
    return bare.replace(".", "").replace(",", ".") if _POINTS.fullmatch(bare) else bare.replace(",", "")
