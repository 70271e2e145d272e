"""The command ``pyro-dgp advise``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyro_dgp.comparison.advice import advise
from pyro_dgp.comparison.compare_command import EXIT_INTERRUPTED, Once, add_numbers, given_settings, with_given
from pyro_dgp.data.named import NAMED, find
from pyro_dgp.data.tasks import TASKS
from pyro_dgp.zoo.settings import Settings


def add_advise(commands: Any) -> None:
    """Add the command to those of the parser."""
    command = commands.add_parser(
        "advise",
        help="choose a method for one data set by fits to parts of it",
        description="Fit a few methods to parts of the training rows of one data set, and say which one to take, why, and what else is "
        "close. The test rows of the split are not looked at.",
    )
    add = command.add_argument
    add(
        "--data",
        type=Path,
        metavar="FILE",
        required=True,
        help=f"CSV or Parquet with a header, or .npz with X, y; or one of {', '.join(NAMED)}",
    )
    add(
        "--target",
        metavar="COLUMN",
        action=Once,
        help="target column of a table, or several with commas between; none: the last",
    )
    add("--task", choices=TASKS, help="what the target is; none: guessed from its values, and said")
    add_numbers(add)
    add("--split", type=int, metavar="K", help="train/test split (default: 0)")
    add("--seed", type=int, metavar="I", help="of everything random (default: 0)")
    add("--dtype", choices=["float32", "float64"], default="float64", help="of everything (default: float64)")
    add("--jobs", type=int, metavar="J", default=1, help="fits at a time, each in a process of its own (default: 1)")
    add("--threads", type=int, metavar="T", default=1, help="threads of each (default: 1)")
    command.set_defaults(run=_advise)


def _advise(parsed: argparse.Namespace) -> int:
    dataset = find(parsed.data, parsed.target, parsed.task)
    given = given_settings(parsed)
    settings = with_given(Settings(), given)
    inputs = dataset.x.shape[1]
    words = " (one for each word of a column of words)" if any("=" in column for column in dataset.columns) else ""
    print(f"{dataset.name!r}: {len(dataset.x)} rows, {inputs} inputs{words}, target {dataset.target!r}, {dataset.task}")
    print(
        "fits of three or four methods follow, some minutes on one core unless rows or epochs are few", file=sys.stderr
    )
    try:
        advice = advise(
            dataset,
            settings=settings,
            jobs=parsed.jobs,
            threads=parsed.threads,
            dtype=parsed.dtype,
            say=lambda sentence: print(sentence, file=sys.stderr, flush=True),
        )
    except KeyboardInterrupt:
        print("\ninterrupted: nothing was written", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(f"\n{advice}\n\nthis took {advice.seconds:.0f} s; the next command:\n")
    kept = {name: value for name, value in given.items() if value == getattr(advice.settings, name)}
    output = shlex.join(["--output", f"{dataset.name}-{advice.method}"])
    print(f"pyro-dgp compare {shlex.join(_options(parsed, kept))} {advice.options} {output}")
    return 0


def _options(parsed: argparse.Namespace, settings: Mapping[str, object]) -> list[str]:
    """Return the options that ``compare`` shares, where they are given and are not the defaults."""
    named = {"data": parsed.data, "target": parsed.target, "task": parsed.task, **settings}
    named |= {} if parsed.dtype == "float64" else {"dtype": parsed.dtype}
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in named.items() if value is not None]
    return [word for pair in pairs for word in pair]
