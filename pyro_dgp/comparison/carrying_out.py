"""Carrying out the runs of a sweep: in this process, in processes that it starts, or by an executor of an engine."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, as_completed, wait
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, runtime_checkable

import torch

from pyro_dgp.comparison.files import Row
from pyro_dgp.internal.executors import require_processes
from pyro_dgp.internal.parent import end_with
from pyro_dgp.internal.user_warning import warn_user

#: Libraries whose threads are counted by variables of the environment.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

#: Seconds after which an idle process ends.
_IDLE_SECONDS = 300


@runtime_checkable
class Work(Protocol):
    """A run of a sweep."""

    def row(self) -> Row:
        """Carry the run out; an error of it is in the row."""

    def failed(self, error: str) -> Row:
        """Return the row of a run that had no end."""


@dataclass(frozen=True)
class Workers:
    """Workers that carry out the runs of a sweep.

    :ivar jobs: number of processes on this machine.
    :ivar threads: threads of each.
    :ivar executor: engine that carries the runs out in the place of processes of this machine.
    """

    jobs: int = 1
    _: KW_ONLY
    threads: int = 1
    executor: Executor | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.threads < 1:
            raise ValueError(f"jobs and threads are at least 1, got {self.jobs} and {self.threads}")
        if self.executor is not None:
            require_processes(self.executor)

    def carry_out(self, runs: Sequence[Work]) -> Iterator[Row]:
        """Carry out runs and iterate over their rows as they end."""
        if self.executor is not None:
            return by_executor(runs, self.executor, self.threads)
        return here(runs, self.threads) if self.jobs == 1 else in_processes(runs, self.jobs, self.threads)


@dataclass(frozen=True)
class Pool:
    """Processes of this machine, each of some threads."""

    jobs: int
    threads: int

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """A scope with an executor of the processes.

        A process that was idle for long, or whose memory grew, ends between two runs and is started anew: no run is lost by it, so the
        engine's warning of a possible memory leak is not passed on. All of them end with this process, on Windows only where it ends by itself.
        """
        # Of its own: joblib's shared executor cannot be used beside joblib.Parallel.
        from joblib.externals.loky import ProcessPoolExecutor

        warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given", category=UserWarning)
        env = dict.fromkeys(_THREADS, str(self.threads))
        executor = ProcessPoolExecutor(
            self.jobs, timeout=_IDLE_SECONDS, env=env, initializer=end_with, initargs=(os.getpid(),)
        )
        try:
            yield executor
        finally:
            executor.shutdown(kill_workers=True)


def here(runs: Sequence[Work], threads: int) -> Iterator[Row]:
    """Carry out one run after another in this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for run in runs:
            yield run.row()
    finally:
        torch.set_num_threads(before)


def in_processes(runs: Sequence[Work], jobs: int, threads: int) -> Iterator[Row]:
    """Carry out runs in processes of this machine, and go on where one of these is killed.

    The runs that were under way then are made once more, each alone, so that one which ends its process by itself, such as by its memory,
    is known.
    """
    waiting, pool = deque(runs), Pool(jobs, threads)
    while waiting:
        lost: list[Work] = []
        yield from _until_broken(waiting, lost, pool, at_a_time=jobs)
        if lost:
            warn_user(
                f"a process of the sweep was ended from outside (killed, or out of memory): the {len(lost)} runs under way are made again, one at a "
                "time, and the others go on"
            )
        for run in lost:
            again: list[Work] = []
            yield from _until_broken(deque([run]), again, pool, at_a_time=1)
            for each in again:
                yield each.failed(
                    "its process was ended twice, the second time alone: give it more memory, or fewer rows, points or samples"
                )


def _until_broken(waiting: deque[Work], lost: list[Work], pool: Pool, *, at_a_time: int) -> Iterator[Row]:
    """Carry out waiting runs, some at a time. When a process is killed, those under way are added to ``lost``."""
    running: dict[Future[Row], Work] = {}
    with pool.executor() as executor:
        while running or (waiting and not lost):
            while waiting and not lost and len(running) < at_a_time:
                run = waiting.popleft()
                try:
                    running[executor.submit(_carried_out, run, pool.threads)] = run
                except BrokenExecutor:
                    lost.append(run)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run = running.pop(future)
                if isinstance(future.exception(), BrokenExecutor):
                    lost.append(run)
                else:
                    yield _outcome(future, run)


def by_executor(runs: Sequence[Work], executor: Executor, threads: int) -> Iterator[Row]:
    """Hand all runs to an executor, which carries them out where and when it sees fit.

    A run that the executor gives up has the executor's error.
    """
    futures = {executor.submit(_carried_out, run, threads): run for run in runs}
    try:
        for future in as_completed(futures):
            yield _outcome(future, futures[future])
    finally:
        for future in futures:
            future.cancel()


def _outcome(future: Future[Row], run: Work) -> Row:
    try:
        return future.result()
    except Exception as error:  # of the engine: those of the run are in its row
        return run.failed(f"{type(error).__name__}: {error}")


def _carried_out(run: Work, threads: int) -> Row:
    torch.set_num_threads(threads)
    return run.row()
