"""Sweeps: methods over data sets, splits and seeds, one line of JSON a run, in a file that a later call goes on with."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.comparison.carrying_out import Workers
from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.fingerprint import fingerprint
from pyro_dgp.comparison.lock import locked_file
from pyro_dgp.comparison.request import Named, Request, Say, check_choice, device_of, for_task, is_made_by_hand
from pyro_dgp.comparison.run_lines import VERSION, append_line, name_of, read_lines, require_folder, require_same
from pyro_dgp.data.arrays import as_array
from pyro_dgp.data.dataset import Dataset, check
from pyro_dgp.data.splitting import Split, split
from pyro_dgp.internal.one_thread import one_thread
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.rescaled import default_dtype
from pyro_dgp.prediction.scores import scores
from pyro_dgp.training.checkpoints import Checkpoints
from pyro_dgp.zoo.inference import Fitted
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class Run:
    """One method on one split of one data set, from one seed.

    :ivar settings: with the split and the seed of this run.
    :ivar dtype: of everything, ``float32`` or ``float64``.
    :ivar device: where it runs, ``cpu``, ``cuda``, or ``auto`` for the GPU of the machine that makes it, if it has one. On another device it is
        a repetition: a GPU has other random numbers.
    :ivar folder: where runs are saved as they go, once a minute, each in a folder of its own; nowhere if not given.
    """

    dataset: Dataset
    method: Method
    settings: Settings
    dtype: str = "float64"
    device: str = "cpu"
    folder: Path | None = None

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

    @property
    def _kept(self) -> Path | None:
        """Folder of this run alone: another one for other settings or data, or on another device, whose random numbers are others."""
        if self.folder is None:
            return None
        words = json.dumps([self.key, self.config, device_of(self.device)], sort_keys=True, default=str)
        return self.folder / hashlib.sha256(words.encode()).hexdigest()[:16]

    def forget(self) -> None:
        """Remove what was saved of this run, and the folder if there is nothing of another one."""
        if self._kept is not None:
            shutil.rmtree(self._kept, ignore_errors=True)
            with suppress(OSError):  # other runs are in it, or it is gone
                self._kept.parent.rmdir()

    def row(self) -> Row:
        """Fit and score; a run that fails has its error in the place of scores."""
        start = time.perf_counter()
        try:
            figures = {**self.figures(), "device": device_of(self.device)}
        except Exception as error:  # whatever it is, the other runs of the sweep go on
            figures = {"error": f"{type(error).__name__}: {error}"}
        return {**self.key, **figures, "total_seconds": time.perf_counter() - start, "version": VERSION, **self.config}

    def failed(self, error: str) -> Row:
        """Return the row of a run that had no end, with what ended it."""
        return {**self.key, "error": error, "total_seconds": 0.0, "version": VERSION, **self.config}

    def figures(self) -> Row:
        """Fit and score on standardised targets."""
        with self._scope():
            fitted, part = self._fitted()
            return {
                **scores(self._predicted(fitted, part), part.y_test, torch.as_tensor(part.target.scale)),
                "n_train": fitted.rows,
                "n_test": len(part.x_test),
                "steps": fitted.steps,
                "seconds": fitted.seconds,
                **fitted.diagnostics,
                "remarks": list(fitted.remarks),
            }

    def held_out(self) -> tuple[Prediction, Tensor]:
        """Fit, and return the prediction of the test rows, and their targets as the model has them."""
        with self._scope():
            fitted, part = self._fitted()
            return self._predicted(fitted, part), part.y_test

    @contextmanager
    def _scope(self) -> Iterator[None]:
        with one_thread, default_dtype(getattr(torch, self.dtype)):
            yield

    def _fitted(self) -> tuple[Fitted, Split]:
        settings = self.settings
        device = device_of(self.device)
        part = split(self.dataset, settings.split, dtype=getattr(torch, self.dtype), device=device)
        given = self.method.inference.given_rows(settings, len(part.x_train))
        x, y = part.x_train[given], part.y_train[given]
        torch.manual_seed(settings.seed)
        model = self.method.architecture.untrained(x, y, settings)
        torch.manual_seed(settings.seed)
        inference, kept = self.method.inference, self._kept
        with nullcontext() if kept is None else Checkpoints(kept / "training"):
            saving = inference if kept is None else inference.saving_to(kept)
            return saving.run(model, x, y, settings=settings, progress=lambda *_: None), part

    def _predicted(self, fitted: Fitted, part: Split) -> Prediction:
        torch.manual_seed(self.settings.seed)
        return fitted.predict(part.x_test)


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
    device: str = "auto",
    say: Say | None = None,
    executor: Executor | None = None,
) -> list[Row]:
    """Run every method on every split of every data set, from every seed, and return a row for each run.

    Each run is a line of JSON in the file ``output`` the moment it ends. A later call goes on in the file: runs that it holds are not made
    again, and one that was cut off goes on where it was saved last, once a minute. A run that fails has ``error`` in the place of scores, and is
    made again.

    Where one of the processes of ``jobs`` is killed, the runs under way are made once more and the others go on, with a warning of one
    sentence. An executor decides by itself whether a lost run is made again; what it gives up is a run that fails.

    :param datasets: data sets with names of their own, such as :func:`~pyro_dgp.load` reads.
    :param methods: names of the table, or pairs of a name and an inference, as :func:`~pyro_dgp.compare` takes.
    :param splits: numbers of train/test splits.
    :param seeds: seeds of all that is random in a run.
    :param settings: for all methods; their split and seed are those of each run.
    :param jobs: number of processes.
    :param threads: threads of each.
    :param dtype: of everything, ``float32`` or ``float64``.
    :param device: where all of them run: ``cpu``, ``cuda``, or ``auto`` for the GPU where there is one. A later
        call may name another one: runs that have ended stay, and one that was cut off begins anew.
    :param executor: engine that carries the runs out in the place of ``jobs``, on other machines if it has any: a
        ``concurrent.futures.Executor`` of processes, such as ``client.get_executor()`` of Dask.
    :param say: gets a line after each run: how many there are, and when the last will end.
    :raises ValueError: for data that no method can be trained on; for a device that is not there; for an executor of threads; for a file that holds a run with other settings or data, or that another sweep writes, before
        anything is run.
    :raises OSError: for a row that cannot be written; the rows before it stay in the file.

    >>> from pyro_dgp import Settings, load_named, sweep
    >>> small = Settings(inducing=5, epochs=1)
    >>> rows = sweep([load_named("diabetes")], ["svgp"], splits=(0, 1), settings=small)
    >>> [(row["dataset"], row["method"], row["split"], row["n_test"]) for row in rows]
    [('diabetes', 'svgp', 0, 44), ('diabetes', 'svgp', 1, 44)]
    """
    if executor is None:
        device_of(device)  # raises where it is not here: another machine may have one
    datasets = [_checked(dataset) for dataset in datasets]
    runs = planned(
        datasets, methods, splits=splits, seeds=seeds, settings=settings or Settings(), dtype=dtype, device=device
    )
    return complete(runs, output=output, workers=Workers(jobs, threads=threads, executor=executor), say=say)


def _checked(dataset: Dataset) -> Dataset:
    """Return a data set whose values are arrays of real numbers; raise where it is none, or cannot be trained on."""
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"a sweep takes data sets, such as load('prices.csv') or Dataset('prices', x, y), not {type(dataset).__name__}"
        )
    dataset = replace(dataset, x=_array(dataset.x), y=_array(dataset.y))
    check(dataset)
    return dataset


def _array(values: Any) -> Any:
    """Return values as an array; one of numbers as it is, since the fingerprint of the data is that of its bytes."""
    return values if type(values) is np.ndarray and values.dtype.kind in "fiub" else as_array(values)


def complete(
    runs: Sequence[Run],
    *,
    output: str | Path | None = None,
    workers: Workers = Workers(),
    say: Say | None = None,
) -> list[Row]:
    """Make those of the runs that the file ``output`` lacks, and return a row for each, as :func:`sweep` does.

    :param workers: where they are made.
    :raises ValueError: for a file that holds a run with other settings or data, before anything is run.
    """
    path = None if output is None else Path(output)
    if path is None:
        return _made(runs, {}, None, workers=workers, say=say)
    require_folder(path)
    with locked_file(path):
        found = read_lines(path)
        require_same(path, found, [run.key for run in runs], [run.config for run in runs])
        return _made(runs, found, path, workers=workers, say=say)


def planned(
    datasets: Sequence[Dataset],
    methods: Sequence[Named],
    *,
    splits: Sequence[int],
    seeds: Sequence[int],
    settings: Settings,
    dtype: str = "float64",
    device: str = "cpu",
) -> list[Run]:
    """Return the runs of a sweep: all of one split and seed, then those of the next."""
    names = [dataset.name for dataset in datasets]
    if not names or not splits or not seeds:
        raise ValueError("a sweep has at least one data set, one split and one seed: name them")
    if len(set(names)) < len(names):
        raise ValueError(f"two data sets are called {max(names, key=names.count)!r}: give each a name of its own")
    request = Request(methods=methods, settings=settings, dtype=dtype, device=device)
    check_choice(request)
    return [
        Run(dataset, method, for_task(replace(settings, split=number, seed=seed), dataset.task), dtype, device)
        for number, seed, dataset, method in itertools.product(splits, seeds, datasets, request.chosen())
    ]


def _made(
    runs: Sequence[Run],
    found: Mapping[tuple[Any, ...], Row],
    path: Path | None,
    *,
    workers: Workers,
    say: Say | None,
) -> list[Row]:
    """Make the runs that were not found, and return the rows of all."""
    wanted = [run for run in runs if name_of(run.key) not in found]
    rows, clock = dict(found), Clock([run.method.name for run in wanted], workers.jobs)
    under_way = None if path is None or workers.executor is not None else path.with_name(f".{path.name}.under-way")
    saved = {name_of(run.key): replace(run, folder=under_way) for run in wanted}
    for row in workers.carry_out(list(saved.values())):
        rows[name_of(row)] = row
        if path is not None:
            append_line(path, row)
        saved[name_of(row)].forget()
        clock.ended(row)
        if say is not None:
            say(clock.line(row))
    return [rows[name_of(run.key)] for run in runs]


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
        if said := len(row.get("remarks", ())):
            result += f", {said} remark{'s' if said > 1 else ''}"
        end = time.strftime("%H:%M", time.localtime(time.time() + left))
        ahead = f", the last ends at about {end} (in {_duration(left)})" if self.waiting else ""
        failed = f", {self.failed} failed" if self.failed else ""
        name = f"{row['dataset']} {row['method']} split {row['split']} seed {row['seed']}"
        return f"{done} of {self.total} runs{failed}{ahead}; {name}: {result}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
