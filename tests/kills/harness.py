"""Programs that are killed at a moment and started again, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch

from pyro_dgp.internal.checkpoint import read_state, write_state

RESULT = "result.safetensors"


def context() -> ForkServerContext:
    """Return processes that start from one in which the library has been imported."""
    own = multiprocessing.get_context("forkserver")
    own.set_forkserver_preload(["tests.kills.programs"])
    return own


def _carry_out(name: str, folder: Path) -> None:
    from tests.kills.programs import PROGRAMS, save_often

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    save_often()
    write_state(folder / RESULT, PROGRAMS[name](folder))


@dataclass(frozen=True)
class Life:
    """One start of a program.

    :ivar seconds: how long it lived.
    :ivar code: its exit code; minus 9 if it was killed.
    :ivar unsaved: seconds between its last save and its end; ``None`` where nothing was saved.
    """

    seconds: float
    code: int | None
    unsaved: float | None


def live(name: str, folder: Path, kill_after: float | None = None, *, once_saved: bool = False) -> Life:
    """Start a program, and kill it after some seconds, or as soon as it has saved itself.

    :param folder: where it saves itself, and its result.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process = context().Process(target=_carry_out, args=(name, folder))
    start = time.time()
    process.start()
    while once_saved and process.is_alive() and not _saved(folder):
        time.sleep(0.002)
    process.join(0.0 if once_saved else kill_after)
    if process.is_alive():
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    end = time.time()
    times = [path.stat().st_mtime for path in _saved(folder)]
    return Life(end - start, process.exitcode, end - max(times) if times else None)


def _saved(folder: Path) -> list[Path]:
    """Return the finished files of a program: a save in the making has a name with a dot in front."""
    return [
        path for path in folder.rglob("*") if path.is_file() and path.suffix != ".npy" and not path.name.startswith(".")
    ]


def result(folder: Path) -> dict[str, Any]:
    """Return what a program has found; fails for one that has not come to its end."""
    return read_state(folder / RESULT)


def differences(first: Any, second: Any, name: str = "") -> list[str]:
    """Return the names of numbers that are not the same to the bit."""
    if isinstance(first, torch.Tensor):
        same = isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
        return [] if same else [name]
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return [each for key in first for each in differences(first[key], second[key], f"{name}.{key}")]
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = enumerate(zip(first, second, strict=True))
        return [each for index, (a, b) in pairs for each in differences(a, b, f"{name}[{index}]")]
    return [] if first == second or (first != first and second != second) else [name]
