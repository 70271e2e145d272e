"""Files of states: nested dictionaries and lists of tensors, numbers and words, written whole or not at all, and read without running code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pyro_dgp.internal.errors import first_line
from pyro_dgp.internal.untrusted_files import UnreadableError, require_plain
from pyro_dgp.internal.whole_file import write_whole

#: Version of the format; a file of a later one is refused.
VERSION = 1
#: Keys of a dictionary that stands for a tensor: the tensor's name in the file, and its strides where they are not those of its shape.
_TENSOR, _STRIDES = "tensor of the file", "strides"


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
    write_whole(path, lambda part: part.write_bytes(whole))


def read_state(path: Path) -> dict[str, Any]:
    """Read a state, with all tensors on the CPU and in the memory layout that they had, since rounding in linear algebra hangs on it.

    :raises StateError: for a file that holds none, or one of a later version.
    """
    try:
        require_plain(path)
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            version = int(facts.get("version", "0"))
            if version > VERSION:
                raise StateError(f"its format is version {version}, and this program reads up to {VERSION}")
            state = _decoded(json.loads(facts["state"]), file)
    except StateError:
        raise
    except (
        SafetensorError,
        OSError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        RuntimeError,
        MemoryError,
    ) as error:
        reason = str(error) if isinstance(error, UnreadableError) else first_line(error)
        raise StateError(f"it is no file of this program: {reason}") from error
    if not isinstance(state, dict):
        raise StateError("it is no file of this program: its state has no names")
    return state


def _encoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what JSON can hold, and add the tensors in it to those of the file."""
    if isinstance(value, Tensor):
        name, copy = str(len(tensors)), value.detach().cpu().clone()
        tensors[name] = copy.contiguous()
        has_own_strides = copy.stride() != torch.empty(copy.shape, device="meta").stride()
        return {_TENSOR: name} | ({_STRIDES: list(copy.stride())} if has_own_strides else {})
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
        if _TENSOR in value:
            return _laid_out(file.get_tensor(value[_TENSOR]), value.get(_STRIDES))
        return {key: _decoded(each, file) for key, each in value.items()}
    return [_decoded(each, file) for each in value] if isinstance(value, list) else value


def _laid_out(values: Tensor, strides: Any) -> Tensor:
    """Return a copy in memory of its own, which begins where linear algebra wants it to, unlike a part of a file.

    :param strides: what the file says, whole numbers of a tensor without gaps, or nothing.
    :raises ValueError: for others.
    """
    if strides is None or not values.numel():
        return values.clone()
    if not isinstance(strides, list) or not all(isinstance(each, int) for each in strides):
        raise ValueError(f"the strides {strides!r:.40} are no whole numbers")
    expected = 1
    for stride, size in sorted(pair for pair in zip(strides, values.shape, strict=True) if pair[1] != 1):
        if stride != expected:
            raise ValueError(f"the strides {strides} are not those of a tensor of shape {tuple(values.shape)}")
        expected *= size
    return torch.empty_strided(values.shape, strides, dtype=values.dtype).copy_(values)
