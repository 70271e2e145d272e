"""The end of a process with the one that started it."""

from __future__ import annotations

import os
import threading
import time

#: Seconds between two looks at the parent.
PERIOD = 1.0


def end_with(parent: int) -> None:
    """End this process within a second after the one that started it, however that one ends.

    A thread watches the number of the parent. Files that are being written then are cut off as by a kill. Processes that this one started are
    left to themselves. Windows keeps the number of a parent that is gone, so that nothing ends there.

    :param parent: number of the process that started this one.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def end_if_orphaned(parent: int) -> None:
    """End this process if the one of that number is no longer its parent."""
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while True:
        end_if_orphaned(parent)
        time.sleep(PERIOD)
