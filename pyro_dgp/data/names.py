"""Names and words that are the same but for the blanks around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


def by_bare(names: Iterable[Any]) -> dict[str, str]:
    """Return names by what they are without the blanks around them; of those that differ in blanks alone none."""
    names = list(names)
    counts = Counter(str(name).strip() for name in names)
    return {name.strip(): name for name in names if isinstance(name, str) and counts[name.strip()] == 1}


def same_names(given: Iterable[Any], wanted: Iterable[str]) -> dict[str, str]:
    """Return the wanted name of each given one that is the same, but for the blanks around both, and the only one on either side."""
    known = by_bare(wanted)
    return {name: known[bare] for bare, name in by_bare(given).items() if bare in known}


def require_own_names(names: Iterable[Any], what: str) -> None:
    """Raise ``ValueError`` for two columns of one name, which numbers and text can have: 0 and ``"0"``.

    :param what: the table in words, for the message, as the subject of a sentence in the plural.
    """
    if twice := [name for name, count in Counter(map(str, names)).items() if count > 1]:
        raise ValueError(f"{what} have two columns {twice[0]!r}: give each a name of its own")
