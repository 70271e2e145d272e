"""Executors of :mod:`concurrent.futures`, by which engines such as Dask carry out work on many machines."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any


def require_processes(executor: Any) -> None:
    """Raise for what is no executor, and for one of threads."""
    if not isinstance(executor, Executor):
        raise TypeError(
            f"executor is a concurrent.futures.Executor, such as Dask's client.get_executor(), not {type(executor).__name__}"
        )
    if isinstance(executor, ThreadPoolExecutor):
        raise ValueError(
            f"{type(executor).__name__} runs threads, and two programs in threads of one process would change each other's random numbers and "
            "handlers of Pyro: take an executor of processes"
        )
