"""Files of states: nested dictionaries and lists of tensors, numbers and words, written whole or not at all, and read without running code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

#: Version of the format; a file of a later one is refused.
VERSION = 1
#: Key of a dictionary that stands for a tensor, with the tensor's name in the file.
_TENSOR = "tensor of the file"


class StateError(ValueError):
    """A file that holds no state, or one of a later version."""


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a state under another name, and rename the file when it is whole.

    :param state: dictionaries with words as keys, lists and tuples, which are read as lists, tensors, numbers, words and ``None``.
    :raises TypeError: for anything else.
    :raises OSError: where the file cannot be written.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from pyro_dgp.internal.checkpoint import read_state, write_state
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_state(Path(folder, "a"), {"steps": 3, "values": [torch.ones(2), None]})
    ...     read_state(Path(folder, "a"))
    {'steps': 3, 'values': [tensor([1., 1.]), None]}
    """
    tensors: dict[str, Tensor] = {}
    words = json.dumps(_encoded(state, tensors))
    whole = save(tensors, {"version": str(VERSION), "state": words})
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_state(path: Path) -> dict[str, Any]:
    """Read a state, with all tensors on the CPU.

    :raises StateError: for a file that holds none, or one of a later version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            version = int(facts.get("version", "0"))
            if version > VERSION:
                raise StateError(f"its format is version {version}, and this program reads up to {VERSION}")
            state: dict[str, Any] = _decoded(json.loads(facts["state"]), file)
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        raise (
            error if isinstance(error, StateError) else StateError(f"it is no file of this program: {error}")
        ) from error
    return state


def _encoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what JSON can hold, and add the tensors in it to those of the file."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {_TENSOR: name}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(
                f"keys of a state are words, got {next(key for key in value if not isinstance(key, str))!r}"
            )
        return {key: _encoded(each, tensors) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(each, tensors) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a state holds tensors, numbers and words, not {type(value).__name__}")


def _decoded(value: Any, file: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            return file.get_tensor(value[_TENSOR])
        return {key: _decoded(each, file) for key, each in value.items()}
    return [_decoded(each, file) for each in value] if isinstance(value, list) else value
