"""The two files of a kept fit, read without trust: plain values of the kinds that they must have, and arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from pyro_dgp.internal.untrusted_files import UnreadableError, read_json, read_npz
from pyro_dgp.zoo.presets import PRESETS
from pyro_dgp.zoo.settings import Settings

#: Version of the files; those of a later one are refused.
VERSION = 1

#: Array of predictions at a few training rows, which tell whether a restored fit is the one that was saved.
PROBE = "probe"


def read_fit(fits: Path, method: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return plain values and arrays of a fit.

    :raises ValueError: one sentence for files that cannot be read, or are no fit.
    """
    try:
        facts = read_json(fits / f"{method}.json")
        _require_facts(facts, method)
        arrays = read_npz(fits / f"{method}.npz")
        _require_rows(facts, arrays)
        return facts | {"predictor": _decoded_state(facts["predictor"])}, arrays
    except UnreadableError as error:
        raise ValueError(
            f"the fit of {method!r} in {str(fits)!r} cannot be read ({error}): run the comparison again"
        ) from error


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_scaler(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"mean", "scale"} and all(map(_are_numbers, value.values()))


def _are_numbers(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _is_model(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("is_file"), bool)
    )


#: What each plain value must be.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "is_named": lambda value: isinstance(value, bool),
    "model": _is_model,
    "settings": lambda value: isinstance(value, dict),
    "dtype": lambda value: value in ("float32", "float64"),
    "inputs": _is_scaler,
    "target": _is_scaler,
    "columns": _are_words,
    "target_name": lambda value: isinstance(value, str),
    "predictor": lambda value: isinstance(value, dict),
}

#: Values that fits of older programs lack.
_LATER: dict[str, Callable[[Any], bool]] = {"labels": _are_words, "outputs": _are_words}

#: Types of the values of a setting, by its annotation.
_TYPES: dict[str, Any] = {"int": int, "float": int | float, "str": str, "None": type(None)}


def _require_facts(facts: Any, method: str) -> None:
    if not isinstance(facts, dict):
        raise UnreadableError("its plain values have no names")
    version = facts.get("version", VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise UnreadableError(f"its format is version {version!r:.20}, and this program reads up to {VERSION}")
    wrong = [name for name, is_right in _KINDS.items() if name not in facts or not is_right(facts[name])]
    wrong += [name for name, is_right in _LATER.items() if name in facts and not is_right(facts[name])]
    if wrong:
        raise UnreadableError(f"its {wrong[0]!r} is missing, or of another kind")
    if facts.get("method") != method:
        raise UnreadableError(f"it is the fit of {facts.get('method')!r:.40}")
    known = {field.name: str(field.type) for field in fields(Settings)}
    for name, value in facts["settings"].items():
        if name not in known:
            raise UnreadableError(f"it has the setting {name!r:.40}, which this program has not")
        if not isinstance(value, tuple(_TYPES[part.strip()] for part in known[name].split("|"))):
            raise UnreadableError(f"its setting {name!r} is of another kind")
    if (preset := facts["settings"].get("preset")) not in (None, *PRESETS):
        raise UnreadableError(f"it is of the preset {preset!r:.40}, which this program has not")


def _require_rows(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise where the training rows are missing, or are no rows."""
    if missing := [name for name in ("x_train", "y_train", "given", PROBE) if name not in arrays]:
        raise UnreadableError(f"it has no array {missing[0]!r}")
    x, y, given = arrays["x_train"], arrays["y_train"], arrays["given"]
    if str(x.dtype) != facts["dtype"] or x.ndim != 2 or y.ndim not in (1, 2) or len(y) != len(x):
        raise UnreadableError(f"its training rows have shapes {x.shape} and {y.shape}")
    if given.dtype != np.int64 or given.ndim != 1 or (len(given) and not 0 <= given.min() <= given.max() < len(x)):
        raise UnreadableError("the numbers of its training rows are of others")
    if np.size(facts["inputs"]["mean"]) != x.shape[1] or np.size(facts["inputs"]["scale"]) != x.shape[1]:
        raise UnreadableError(f"its inputs have {x.shape[1]} columns, and their means others")
    if arrays[PROBE].dtype.kind != "f":
        raise UnreadableError(f"its array {PROBE!r} holds {arrays[PROBE].dtype}")
    if strange := [name for name, values in arrays.items() if values.dtype.kind not in "biuf"]:
        raise UnreadableError(f"its array {strange[0]!r:.40} holds {arrays[strange[0]].dtype}, not numbers")


def encoded(value: Any) -> Any:
    """Return plain values as JSON has them, tuples and sets told apart from lists.

    :raises ValueError: for anything else.
    """
    if isinstance(value, Mapping):
        return {"dict": [[encoded(key), encoded(held)] for key, held in value.items()]}
    if isinstance(value, tuple | set | frozenset):
        kind = "tuple" if isinstance(value, tuple) else "set"
        return {kind: [encoded(held) for held in (value if kind == "tuple" else sorted(value))]}
    if isinstance(value, list):
        return [encoded(held) for held in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"a state that it depends on is {type(value).__name__}, which is neither an array nor a plain value"
    )


def _decoded_state(value: Any) -> dict[str, Any]:
    """Return the plain values that a predictor depends on.

    :raises UnreadableError: for what :func:`encoded` does not write.
    """
    try:
        state = _decoded(value)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise UnreadableError("its 'predictor' is of another kind") from error
    if not isinstance(state, dict):
        raise UnreadableError("its 'predictor' has no names")
    return state


def _decoded(value: Any) -> Any:
    """Return the inverse of :func:`encoded`."""
    if isinstance(value, list):
        return [_decoded(held) for held in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "dict":
        return {_decoded(key): _decoded(own) for key, own in held}
    return {"tuple": tuple, "set": set}[kind](map(_decoded, held))
