"""Locks: a folder of results, or a file of runs, is written by one run at a time."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

#: File in a folder of results that is locked while a run writes there.
FOLDER_LOCK = ".lock"

#: Byte that Windows locks, behind the words in the file, which stay readable.
_FAR = 1 << 30


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder of results.

    :raises ValueError: if another run is in it.
    """
    with _locked(folder / FOLDER_LOCK, f"the folder {str(folder)!r}"):
        yield


def require_unlocked(folder: Path) -> None:
    """Raise ``ValueError`` if a run is in a folder of results; nothing in it is changed."""
    lock = folder / FOLDER_LOCK
    try:
        handle = os.open(lock, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode) and not _take(handle):
            raise ValueError(_in_use(f"the folder {str(folder)!r}", lock))
    finally:
        os.close(handle)


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Keep other runs from a file, by a lock beside it.

    :raises ValueError: if another run writes it.
    """
    with _locked(path.with_name(f"{FOLDER_LOCK}-{path.name}"), f"the file {str(path)!r}"):
        yield


@contextmanager
def _locked(lock: Path, what: str) -> Iterator[None]:
    """Hold the lock of a file of its own. The operating system frees it when the process ends, however it ends."""
    try:
        handle = _opened(lock)
    except OSError as error:
        raise ValueError(f"{what} cannot be written to ({error.strerror}): name another --output") from error
    if handle is None:
        raise ValueError(_in_use(what, lock))
    try:
        with suppress(OSError):  # on a full disk the lock holds without words
            os.truncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        _release(handle, lock)


def _opened(lock: Path) -> int | None:
    """Open and lock the file; nothing if another process, or another part of this one, has the lock."""
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode) or not _take(handle):
            os.close(handle)
            return None
        if _is_same(handle, lock):
            return handle
        os.close(handle)  # the run that had it has removed the file in between


def _take(handle: int) -> bool:
    """Take the lock, without waiting; where the file system has no locks, as some network drives, there is none to wait for."""
    try:
        if sys.platform == "win32":
            os.lseek(handle, _FAR, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _is_same(handle: int, lock: Path) -> bool:
    """Tell whether the file that was opened is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(handle), lock.stat())
    except FileNotFoundError:
        return False


def _release(handle: int, lock: Path) -> None:
    """Remove the file and free the lock; where an open file cannot be removed, or is gone with its folder, it only is freed."""
    with suppress(OSError):
        lock.unlink()
    os.close(handle)


def _in_use(what: str, lock: Path) -> str:
    return f"{what} is in use by another run ({_holder(lock)}): wait until it ends, or name another --output"


def _holder(lock: Path) -> str:
    try:
        return lock.read_text(errors="replace").strip().splitlines()[0][:100]
    except (OSError, IndexError):
        return "it has just begun"
