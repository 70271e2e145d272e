"""A guard for what one thread of a process does at a time: the handlers and settings of Pyro belong to the whole process."""

from __future__ import annotations

import os
import threading


class OneThread:
    """Scope that one thread at a time is in, as often as it likes; another one that enters is refused instead of waiting.

    It does not wait, since a thread that it makes wait would go on with random numbers and settings that the first one has changed.

    >>> from pyro_dgp.internal.one_thread import one_thread
    >>> with one_thread, one_thread:
    ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._forget_other_threads)

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ValueError(
                "another thread of this process trains, samples or predicts at the moment, and handlers, settings and random numbers of Pyro "
                "belong to the whole process: let one thread do so at a time, such as by a threading.Lock() around each call, or use processes"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _forget_other_threads(self) -> None:
        """Open the scope in a forked process, which has the forking thread alone and would wait for the others for ever."""
        if not self._lock._is_owned():  # type: ignore[attr-defined]
            self._lock = threading.RLock()


#: The scope of all runs of models in handlers.
one_thread = OneThread()
