"""The sign between the columns of a text file, looked at before the file is read as a table."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from pyro_dgp.internal.errors import shown

#: Signs that other programs put between columns.
_SIGNS = {b";": "semicolons", b"\t": "tabs", b"|": "vertical bars"}
#: Text in quotes, in which every sign may stand.
_QUOTED = re.compile(rb'"[^"]*("|$)')
#: Bytes of a line that are looked at.
_MOST = 2**16


def require_commas(path: Path) -> None:
    """Raise ``ValueError`` for a CSV file whose columns are separated by something else than commas, or whose first line is no UTF-8.

    A sign in the only name of a column is one of its name where the line below does not have it.
    """
    lines = _first_lines(path)
    if not lines:
        return
    if b"\0" in lines[0]:
        raise ValueError(
            f"{path.name!r} cannot be read as csv (it is text of another encoding, such as UTF-16): save it as UTF-8"
        )
    bare = [_QUOTED.sub(b"", line) for line in lines]
    found = [sign for sign in _SIGNS if all(sign in line for line in bare)]
    if b"," in bare[0] or not found:
        return
    sign = max(found, key=bare[0].count)
    first = lines[0].removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n").decode("utf-8", "replace")
    raise ValueError(
        f"{path.name!r} separates columns by {_SIGNS[sign]} ({shown(repr(first))}): separate columns by commas, and write decimals with a point"
    )


def _first_lines(path: Path) -> list[bytes]:
    """Return the first two lines of a file that are not empty; fewer where there are none, or it cannot be read."""
    lines: list[bytes] = []
    with suppress(OSError), path.open("rb") as file:
        while len(lines) < 2 and (line := file.readline(_MOST)):
            if line.strip():
                lines.append(line)
    return lines
