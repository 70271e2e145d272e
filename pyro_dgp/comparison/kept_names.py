"""Names of columns, outputs and classes, by which the fits of a folder take new rows: others are those of other data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.keep import FOLDER
from pyro_dgp.internal.untrusted_files import UnreadableError, read_json

#: Entry of the config of a row that has the names, and what each of them is called in a kept fit and in a message.
NAMES = "names"
_IN_A_FIT = {"columns": "columns", "target": "target_name", "outputs": "outputs", "labels": "labels"}
_IN_WORDS = {"columns": "the column", "target": "the target", "outputs": "the output", "labels": "the class"}


def require_same_names(output: Path, row: Row, names: Mapping[str, Any] | None) -> None:
    """Raise ``ValueError`` for a row of columns, outputs or classes of other names.

    Rows of earlier versions have no names: those of their kept fit count. Without one nothing is predicted by names.

    :param names: those of now; nothing is compared if not given.
    """
    kept = row["config"].get(NAMES, _of_fit(output, row["method"]))
    if not isinstance(kept, dict) or names is None:
        return
    for kind, words in _IN_WORDS.items():
        was, now = _listed(kept.get(kind)), _listed(names.get(kind))
        if was == now:
            continue
        at = next(
            (at for at, pair in enumerate(zip(was, now, strict=False)) if pair[0] != pair[1]), min(len(was), len(now))
        )
        before, after = (repr(each[at]) if at < len(each) else "without a name" for each in (was, now))
        raise ValueError(
            f"the results in {str(output)!r} are of other names ({words} {before} in {row['method']}, now {after}): give the data the names that they had, or "
            "name another --output"
        )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _of_fit(output: Path, method: str) -> dict[str, Any] | None:
    """The names in a kept fit; nothing where there is none that can be read."""
    try:
        facts = read_json(output / FOLDER / f"{method}.json")
    except UnreadableError:
        return None
    if not isinstance(facts, dict):
        return None
    return {kind: facts.get(name, []) for kind, name in _IN_A_FIT.items()}
