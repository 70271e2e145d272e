"""The command ``pyro-dgp sweep``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyro_dgp.comparison.compare_command import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    add_sampling,
    add_training,
    base_settings,
    given_settings,
    with_given,
)
from pyro_dgp.comparison.copies import on_copies
from pyro_dgp.comparison.request import DEVICES
from pyro_dgp.comparison.sweep import Row, sweep
from pyro_dgp.comparison.tables import Column, table
from pyro_dgp.comparison.target_remarks import on_classes_and_counts, on_real_numbers, on_words
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.named import NAMED, find
from pyro_dgp.data.splitting import held_out_rows
from pyro_dgp.data.tasks import TASKS

COLUMNS: tuple[Column, ...] = (
    ("dataset", "data", str),
    ("method", "method", str),
    ("runs", "runs", str),
    ("failed", "failed", str),
    ("nll", "NLL", "{:.3f}".format),
    ("nll_error", "+-", "{:.3f}".format),
    ("rmse", "RMSE", "{:.3f}".format),
    ("crps", "CRPS", "{:.3f}".format),
    ("accuracy", "accuracy", "{:.3f}".format),
    ("brier", "Brier", "{:.3f}".format),
    ("ece", "ECE", "{:.3f}".format),
    ("seconds", "train s", "{:.1f}".format),
)


def add_sweep(commands: Any) -> None:
    """Add the command to those of the parser."""
    command = commands.add_parser(
        "sweep",
        help="run methods over data sets, splits and seeds, one line of JSON a run",
        description="Run methods over data sets, splits and seeds. Each run is a line of JSON in a file the moment it ends, and the same "
        "command goes on in that file. The table at the end has means over splits and seeds, on the standardised target.",
    )
    add = command.add_argument
    add(
        "--data",
        metavar="A,B",
        required=True,
        help=f"files (CSV or Parquet with a header, target last, or .npz with X, y), or of {', '.join(NAMED)}",
    )
    add("--target", help=argparse.SUPPRESS)  # of compare: refused with a word on what stands in its place
    add("--task", choices=TASKS, help="what all targets are; none: guessed from the values of each, and said")
    add("--methods", metavar="A,B", required=True, help="methods to run, see 'pyro-dgp methods'")
    add("--splits", metavar="0-4", default="0", help="train/test splits, such as 0-4 or 0,2 (default: 0)")
    add("--seeds", metavar="0-2", default="0", help="seeds of everything random (default: 0)")
    add_training(add)
    add_sampling(add)
    add("--dtype", choices=["float32", "float64"], default="float64", help="of everything (default: float64)")
    add("--device", choices=DEVICES, default="auto", help="where all runs are made (default: auto)")
    add("--jobs", type=int, metavar="J", default=1, help="runs at a time, each in a process of its own (default: 1)")
    add("--threads", type=int, metavar="T", default=1, help="threads of each (default: 1)")
    add("--output", type=Path, metavar="FILE", default=Path("sweep.jsonl"), help="file of runs (default: sweep.jsonl)")
    command.set_defaults(run=_sweep)


#: Figures of runs that are averaged.
_AVERAGED = ("nll", "rmse", "crps", "accuracy", "brier", "ece", "seconds")


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the numbers that ``0-4`` or ``0,2`` stands for."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"{option} takes numbers from 0, such as 0-4 or 0,2, not {text!r}")
        if int(last or first) < int(first):
            raise ValueError(f"{option} {part.strip()} runs backwards: write {last}-{first}")
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))


def means(rows: Sequence[Row]) -> list[Row]:
    """Return means over splits and seeds for each data set and method, with the standard error of the NLL."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["dataset"], row["method"]), []).append(row)
    return [_mean(dataset, method, own) for (dataset, method), own in groups.items()]


def _mean(dataset: str, method: str, rows: Sequence[Row]) -> Row:
    done = [row for row in rows if "error" not in row]
    result: Row = {"dataset": dataset, "method": method, "runs": len(done)}
    if len(done) < len(rows):
        result["failed"] = len(rows) - len(done)
    for name in [name for name in _AVERAGED if done and all(name in row for row in done)]:
        result[name] = sum(row[name] for row in done) / len(done)
    if len({row.get("device", "cpu") for row in done}) > 1:
        result.pop("seconds", None)  # times of two devices have no mean
    if len(done) > 1:
        variance = sum((row["nll"] - result["nll"]) ** 2 for row in done) / (len(done) - 1)
        result["nll_error"] = (variance / len(done)) ** 0.5
    return result


def _on_copies(dataset: Dataset, splits: Sequence[int]) -> list[str]:
    """Return a sentence on copies among the test rows of splits; of a split that the data lack the run itself speaks."""
    masks = []
    for number in splits:
        with suppress(ValueError):
            masks.append(held_out_rows(dataset, number))
    return on_copies(dataset, masks)


def _sweep(parsed: argparse.Namespace) -> int:
    if parsed.target is not None:
        raise ValueError(
            f"sweep takes the last column of each file for the target and has no --target: write {parsed.target!r} last"
        )
    datasets = [find(Path(name.strip()), None, parsed.task) for name in parsed.data.split(",")]
    for dataset in datasets:
        on_target = (*on_classes_and_counts(dataset), *on_real_numbers(dataset))
        for remark in (*on_words(dataset), *on_target, *_on_copies(dataset, numbers(parsed.splits, "--splits"))):
            print(f"{dataset.name}: {remark}", file=sys.stderr)
    made: list[str] = []

    def say(line: str) -> None:
        made.append(line)
        print(line, file=sys.stderr, flush=True)

    try:
        rows = sweep(
            datasets,
            [name.strip() for name in parsed.methods.split(",") if name.strip()],
            splits=numbers(parsed.splits, "--splits"),
            seeds=numbers(parsed.seeds, "--seeds"),
            settings=with_given(base_settings(parsed), given_settings(parsed)),
            output=parsed.output,
            jobs=parsed.jobs,
            threads=parsed.threads,
            dtype=parsed.dtype,
            device=parsed.device,
            say=say,
        )
    except KeyboardInterrupt:
        print(f"\ninterrupted: finished runs are kept in {parsed.output}; the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    if not made:
        print(f"all {len(rows)} runs came from {parsed.output}: nothing was left to run", file=sys.stderr)
    print(table(means(rows), COLUMNS))
    _say_remarks(rows, parsed.output)
    return _status(rows)


def _say_remarks(rows: Sequence[Row], output: Path) -> None:
    """Say of how many runs there are remarks, where they are, and what the first says."""
    remarked = [row for row in rows if row.get("remarks")]
    if remarked:
        first = remarked[0]
        print(
            f'{len(remarked)} of {len(rows)} runs have remarks on how the fit went, under "remarks" in {output}; the first ({first["method"]} on '
            f"{first['dataset']}): {first['remarks'][0]}",
            file=sys.stderr,
        )


def _status(rows: Sequence[Row]) -> int:
    """Return the exit status, and say how many runs failed."""
    failed = [row for row in rows if "error" in row]
    if failed:
        first = failed[0]
        print(
            f"pyro-dgp: {len(failed)} of {len(rows)} runs failed, the first ({first['method']} on {first['dataset']}) with: {first['error']}",
            file=sys.stderr,
        )
        return EXIT_FAILED
    return 0
