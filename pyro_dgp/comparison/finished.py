"""Results that a folder has already: which of them are whole, and belong to what is asked for now."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyro_dgp.comparison.files import TABLE, Row, read_curves, require_arviz
from pyro_dgp.comparison.keep import FOLDER
from pyro_dgp.comparison.kept_names import NAMES, require_same_names
from pyro_dgp.comparison.own_model import GLOBALS
from pyro_dgp.comparison.request import MOST_CHARACTERS, Say, is_file_name
from pyro_dgp.internal.untrusted_files import UnreadableError, read_json, require_plain

#: Version of the rows of the table; those of a later one are refused.
VERSION = 1

#: Figures of a row that table and figure show: numbers, or nothing.
_NUMBERS = (
    *("n_train", "n_test", "n_validation", "folds", "layers", "width", "inducing", "samples", "steps", "beta"),
    *("nll", "rmse", "crps", "accuracy", "brier", "ece", "nll_original", "rmse_original", "crps_original"),
    *("train_seconds", "seconds_per_step", "predict_seconds", "peak_memory_mb", "divergences", "r_hat_max", "ess_min"),
)

#: Scores that every row has: of real numbers and counts, or of classes.
_SCORES = ({"nll", "rmse", "crps"}, {"nll", "accuracy", "brier", "ece"})


def finished_rows(
    output: Path,
    config: Mapping[str, Any],
    inferences: Mapping[str, str],
    *,
    asked: Collection[str],
    allows: Callable[[Row, str], bool],
    say: Say,
) -> list[Row]:
    """Return the rows of the methods whose files are all there and whole; one whose are not is said.

    :param inferences: fingerprints of the inferences that were made by hand, by method.
    :param asked: names of the methods that are asked for now.
    :param allows: tells whether a row may have another value of a setting.
    :raises ValueError: if the table was made with other settings, or by another inference under one of the names, or is no table of
        results.
    """
    path = output / TABLE
    if not path.exists() and not path.is_symlink():
        return []
    try:
        rows = _checked(read_json(path))
    except UnreadableError as error:
        raise ValueError(f"{str(path)!r} is not a result of this program ({error}): name another --output") from error
    _require_same(output, rows, config, inferences, allows=allows)
    kept = []
    for row in rows:
        broken = broken_file(output, row["method"])
        if broken is None:
            kept.append(row)
            continue
        remedy = (
            "it is made again" if row["method"] in asked else "it is left out; name it in --methods to make it again"
        )
        say(f"{row['method']}: its file {str(output / broken[0])!r} cannot be read ({broken[1]}): {remedy}")
    return kept


def _require_same(
    output: Path,
    rows: Sequence[Row],
    config: Mapping[str, Any],
    inferences: Mapping[str, str],
    *,
    allows: Callable[[Row, str], bool],
) -> None:
    """Raise for rows of other settings, of columns of other names, or of other inferences under the same names."""
    different = [
        f"{key} {row['config'][key]!r} in {row['method']}, now {config.get(key)!r}{_changed_global(key, row, config)}"
        if key in row["config"]
        else f"{key} is not known of {row['method']}, now {config.get(key)!r}"
        for row in rows
        for key in sorted({*config, *row["config"]} - {NAMES, GLOBALS}, key=list({**config, **row["config"]}).index)
        if row["config"].get(key) != config.get(key) and not allows(row, key)
    ]
    if different:
        raise ValueError(
            f"the results in {str(output)!r} were made with other settings ({different[0]}): "
            "repeat those, or name another --output"
        )
    for row in rows:
        require_same_names(output, row, config.get(NAMES))
    changed = [name for row in rows if inferences.get(name := row["method"]) not in (None, row.get("inference"))]
    if changed:
        raise ValueError(
            f"the results of {changed[0]!r} in {str(output)!r} were made by another inference: give this one another name, or name "
            "another --output"
        )


def _changed_global(key: str, row: Row, config: Mapping[str, Any]) -> str:
    """Name the first global value by which the code of a model differs, for the end of a message; nothing where none is known."""
    was, now = row["config"].get(GLOBALS), config.get(GLOBALS)
    if key != "model_code" or not isinstance(was, dict) or not isinstance(now, dict):
        return ""
    changed = [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]
    return f": the global {changed[0]!r}, or what it reads, has changed" if changed else ""


def _checked(rows: Any) -> list[Row]:
    """Return rows as they are, if they can be shown.

    :raises UnreadableError: with what is wrong with the first that cannot.
    """
    if not isinstance(rows, list):
        raise UnreadableError(f"it holds {_kind(rows)} and no list of rows")
    for number, row in enumerate(rows):
        if reason := _wrong(row):
            raise UnreadableError(f"row {number} {reason}")
    names = [row["method"] for row in rows]
    if len(set(names)) < len(names):
        raise UnreadableError(f"it has {max(names, key=names.count)!r} twice")
    return rows


def _wrong(row: Any) -> str | None:
    """Return what is wrong with a row, if something is."""
    if not isinstance(row, dict):
        return f"is {_kind(row)}"
    version = row.get("version", VERSION)
    if not isinstance(version, int) or version > VERSION:
        return f"is of version {version!r:.20}, and this program reads up to {VERSION}"
    name = row.get("method")
    if not isinstance(name, str) or not is_file_name(name) or len(name) > MOST_CHARACTERS:
        return f"has the method {name!r:.40}"
    if not isinstance(row.get("config"), dict):
        return "has no config"
    if not any(set(row) >= names for names in _SCORES):
        return "has no scores"
    per_fold = [key for key in row if key.endswith("_per_fold")]
    wrong = [key for key in _NUMBERS if not _is_number(row.get(key))]
    wrong += [key for key in per_fold if not isinstance(row[key], list) or not all(map(_is_number, row[key]))]
    wrong += [key for names in _SCORES if set(row) >= names for key in names if row[key] is None]
    return f"has {_kind(row[wrong[0]])} as {wrong[0]!r}" if wrong else None


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _kind(value: Any) -> str:
    kinds = {dict: "a dictionary", list: "a list", str: "words", bool: "a truth value", type(None): "nothing"}
    return kinds.get(type(value), "a number")


def broken_file(output: Path, method: str) -> tuple[str, str] | None:
    """Return the name of a file of a method that is missing or broken, and the reason; nothing if all are there.

    What would take long is not read: the data of the ArviZ file, and the arrays of the fit.
    """
    fit = f"{FOLDER}/{method}"
    checks: dict[str, Callable[[], object]] = {
        f"{method}.nc": lambda: require_arviz(output / f"{method}.nc"),
        f"{method}.npz": lambda: read_curves(output, method),
    }
    if any((output / f"{fit}.{end}").exists() for end in ("json", "npz")):  # a fit that cannot be kept has neither
        checks[f"{fit}.json"] = lambda: read_json(output / f"{fit}.json")
        checks[f"{fit}.npz"] = lambda: _require_archive(output / f"{fit}.npz")
    for name, check in checks.items():
        try:
            check()
        except UnreadableError as error:
            return name, str(error)
    return None


def _require_archive(path: Path) -> None:
    """Raise ``UnreadableError`` for an archive that was cut off, which its end tells."""
    require_plain(path)
    if not zipfile.is_zipfile(path):
        raise UnreadableError("it is cut off, or no archive")
