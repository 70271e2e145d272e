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
