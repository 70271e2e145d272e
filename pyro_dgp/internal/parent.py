"""The end of a process with the one that started it."""

from __future__ import annotations

import os
import threading
import time

#: Seconds between two looks at the parent.
PERIOD = 1.0


def end_with_parent() -> None:
    """End this process within a second after the one that started it, however that one ends.

    A thread watches the number of the parent. Files that are being written then are cut off as by a kill. Windows keeps the number of a parent that
    is gone, so that nothing ends there.
    """
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PERIOD)
    os._exit(1)
