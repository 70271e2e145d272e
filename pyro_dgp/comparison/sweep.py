"""Sweeps: methods over data sets, splits and seeds, one line of JSON a run, in a file that a later call goes on with."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from pyro_dgp.comparison.carrying_out import by_executor, here, in_processes, require_processes
from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.fingerprint import fingerprint
from pyro_dgp.comparison.request import Named, Request, Say, check_choice, for_task, is_made_by_hand
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.splitting import split
from pyro_dgp.internal.one_thread import one_thread
from pyro_dgp.prediction.rescaled import default_dtype
from pyro_dgp.prediction.scores import scores
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class Run:
    """One method on one split of one data set, from one seed.

    :ivar settings: with the split and the seed of this run.
    :ivar dtype: of everything, ``float32`` or ``float64``.
    """

    dataset: Dataset
    method: Method
    settings: Settings
    dtype: str = "float64"

    @property
    def key(self) -> Row:
        """Names and numbers that tell the run from others of the sweep."""
        return {
            "dataset": self.dataset.name,
            "method": self.method.name,
            "split": self.settings.split,
            "seed": self.settings.seed,
        }

    @property
    def config(self) -> Row:
        """Values that a run under the same key must share with it."""
        own = {"inference": fingerprint(self.method.inference)} if is_made_by_hand(self.method) else {}
        return {"data": self.dataset.fingerprint(), "dtype": self.dtype, "settings": asdict(self.settings), **own}

    def row(self) -> Row:
        """Fit and score; a run that fails has its error in the place of scores."""
        start = time.perf_counter()
        try:
            figures = self.figures()
        except Exception as error:  # whatever it is, the other runs of the sweep go on
            figures = {"error": f"{type(error).__name__}: {error}"}
        return {**self.key, **figures, "total_seconds": time.perf_counter() - start, **self.config}

    def failed(self, error: str) -> Row:
        """Return the row of a run that had no end, with what ended it."""
        return {**self.key, "error": error, "total_seconds": 0.0, **self.config}

    def figures(self) -> Row:
        """Fit and score on standardised targets."""
        with one_thread, default_dtype(getattr(torch, self.dtype)):
            return self._figures()

    def _figures(self) -> Row:
        settings = self.settings
        part = split(self.dataset, settings.split, dtype=getattr(torch, self.dtype))
        given = self.method.inference.given_rows(settings, len(part.x_train))
        x, y = part.x_train[given], part.y_train[given]
        torch.manual_seed(settings.seed)
        model = self.method.architecture.build(x, settings)
        torch.manual_seed(settings.seed)
        fitted = self.method.inference.run(model, x, y, settings=settings, progress=lambda *_: None)
        torch.manual_seed(settings.seed)
        return {
            **scores(fitted.predict(part.x_test), part.y_test, torch.as_tensor(part.target.scale)),
            "n_train": fitted.rows,
            "n_test": len(part.x_test),
            "steps": fitted.steps,
            "seconds": fitted.seconds,
            **fitted.diagnostics,
            "remarks": list(fitted.remarks),
        }


def sweep(
    datasets: Sequence[Dataset],
    methods: Sequence[Named],
    *,
    splits: Sequence[int] = (0,),
    seeds: Sequence[int] = (0,),
    settings: Settings | None = None,
    output: str | Path | None = None,
    jobs: int = 1,
    threads: int = 1,
    dtype: str = "float64",
    say: Say | None = None,
    executor: Executor | None = None,
) -> list[Row]:
    """Run every method on every split of every data set, from every seed, and return a row for each run.

    Each run is a line of JSON in the file ``output`` the moment it ends. A later call goes on in the file: runs that it holds are not made
    again. A run that fails has ``error`` in the place of scores, and is made again.

    Where one of the processes of ``jobs`` is killed, the runs under way are made once more and the others go on, with a warning of one
    sentence. An executor keeps its own counsel: what it gives up is a run that fails.

    :param datasets: data sets with names of their own, such as :func:`~pyro_dgp.load` reads.
    :param methods: names of the table, or pairs of a name and an inference, as :func:`~pyro_dgp.compare` takes.
    :param splits: numbers of train/test splits.
    :param seeds: seeds of all that is random in a run.
    :param settings: for all methods; their split and seed are those of each run.
    :param jobs: number of processes.
    :param threads: threads of each.
    :param dtype: of everything, ``float32`` or ``float64``.
    :param executor: engine that carries the runs out in the place of ``jobs``, on other machines if it has any: a
        ``concurrent.futures.Executor`` of processes, such as ``client.get_executor()`` of Dask.
    :param say: gets a line after each run: how many there are, and when the last will end.
    :raises ValueError: for an executor of threads; for a file that holds a run with other settings or data, before anything is run.

    >>> from pyro_dgp import Settings, load_named, sweep
    >>> small = Settings(inducing=5, epochs=1)
    >>> rows = sweep([load_named("diabetes")], ["svgp"], splits=(0, 1), settings=small)
    >>> [(row["dataset"], row["method"], row["split"], row["n_test"]) for row in rows]
    [('diabetes', 'svgp', 0, 44), ('diabetes', 'svgp', 1, 44)]
    """
    runs = planned(datasets, methods, splits=splits, seeds=seeds, settings=settings or Settings(), dtype=dtype)
    if jobs < 1 or threads < 1:
        raise ValueError(f"jobs and threads are at least 1, got {jobs} and {threads}")
    if executor is not None:
        require_processes(executor)
    path = None if output is None else Path(output)
    found = {} if path is None else _finished(path, runs)
    wanted = [run for run in runs if _name(run.key) not in found]
    clock = Clock([run.method.name for run in wanted], jobs)
    for row in _carried_out(wanted, jobs, threads, executor):
        found[_name(row)] = row
        if path is not None:
            _append(path, row)
        clock.ended(row)
        if say is not None:
            say(clock.line(row))
    return [found[_name(run.key)] for run in runs]


def planned(
    datasets: Sequence[Dataset],
    methods: Sequence[Named],
    *,
    splits: Sequence[int],
    seeds: Sequence[int],
    settings: Settings,
    dtype: str = "float64",
) -> list[Run]:
    """Return the runs of a sweep: all of one split and seed, then those of the next."""
    names = [dataset.name for dataset in datasets]
    if not names or not splits or not seeds:
        raise ValueError("a sweep has at least one data set, one split and one seed: name them")
    if len(set(names)) < len(names):
        raise ValueError(f"two data sets are called {max(names, key=names.count)!r}: give each a name of its own")
    request = Request(methods=methods, settings=settings, dtype=dtype)
    check_choice(request)
    return [
        Run(dataset, method, for_task(replace(settings, split=number, seed=seed), dataset.task), dtype)
        for number, seed, dataset, method in itertools.product(splits, seeds, datasets, request.chosen())
    ]


def _name(row: Row) -> tuple[Any, ...]:
    return row["dataset"], row["method"], row["split"], row["seed"]


def _carried_out(runs: Sequence[Run], jobs: int, threads: int, executor: Executor | None) -> Iterator[Row]:
    """Carry out runs and iterate over their rows as they end."""
    if executor is not None:
        return by_executor(runs, executor, threads)
    return here(runs, threads) if jobs == 1 else in_processes(runs, jobs, threads)


def _finished(path: Path, runs: Sequence[Run]) -> dict[tuple[Any, ...], Row]:
    """Read the rows of runs that a file holds. A last line that was cut off is removed from the file.

    :raises ValueError: for a file of anything else, and for a run that was made with other settings.
    """
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {str(path.parent)!r}: make it, or name another --output")
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
        path.write_text("".join(lines))
    try:
        rows = {_name(row): row for row in map(json.loads, lines) if "error" not in row}
        for row in rows.values():
            row["settings"] = (
                asdict(Settings()) | row["settings"]
            )  # a setting that is newer than the file had its default
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is no file of a sweep ({error}): name another --output") from error
    for run in runs:
        row = rows.get(_name(run.key))
        other = [] if row is None else [name for name, value in run.config.items() if row.get(name) != value]
        if row is not None and other:
            raise ValueError(
                f"{str(path)!r} holds {run.key} with {_difference(other[0], row, run.config)}: repeat that, or name another --output"
            )
    return {name: rows[name] for name in (_name(run.key) for run in runs) if name in rows}


def _difference(name: str, row: Row, config: Row) -> str:
    if name != "settings":
        return f"other {name}"
    then, now = row["settings"], config["settings"]
    field = next(each for each in now if then.get(each) != now[each])
    return f"{field} {then.get(field)!r}, now {now[field]!r}"


def _append(path: Path, row: Row) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


class Clock:
    """Tells when a sweep will end, from the times of the runs that have ended.

    :param waiting: method of each run.
    :param jobs: number of runs at a time.
    """

    def __init__(self, waiting: Sequence[str], jobs: int) -> None:
        self.waiting, self.jobs, self.total = list(waiting), jobs, len(waiting)
        self.seconds: dict[str, list[float]] = {}
        self.failed = 0

    def ended(self, row: Row) -> None:
        """Note a run that has ended."""
        self.waiting.remove(row["method"])
        self.seconds.setdefault(row["method"], []).append(row["total_seconds"])
        self.failed += "error" in row

    def left(self) -> float:
        """Return the seconds that are left: of a method that has not ended yet, as many as of the others."""
        known = {method: mean(times) for method, times in self.seconds.items()}
        other = mean(known.values()) if known else 0.0
        return sum(known.get(method, other) for method in self.waiting) / self.jobs

    def line(self, row: Row) -> str:
        """Return the line that is said after a run."""
        done, left = self.total - len(self.waiting), self.left()
        result = f"failed: {row['error']}" if "error" in row else f"NLL {row['nll']:.3f}"
        end = time.strftime("%H:%M", time.localtime(time.time() + left))
        ahead = f", the last ends at about {end} (in {_duration(left)})" if self.waiting else ""
        failed = f", {self.failed} failed" if self.failed else ""
        name = f"{row['dataset']} {row['method']} split {row['split']} seed {row['seed']}"
        return f"{done} of {self.total} runs{failed}{ahead}; {name}: {result}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
