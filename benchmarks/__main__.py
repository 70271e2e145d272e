"""``python -m benchmarks speed|profile|accuracy|scaling [--quick] [--json FILE] [--figures DIR]``: the four studies that are repeated most.

``--json`` takes a file for a list of rows; that of ``accuracy`` has one line of JSON for each run, to which a resumed study adds.

``speed`` and ``scaling`` need ``pip install 'pyro-dgp[benchmarks]'`` (GPyTorch). The other studies run as ``python -m benchmarks.studies.NAME``;
``benchmarks/README.md`` lists them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.common.drawing import draw_profile, draw_scaling, draw_speed
from benchmarks.studies import (
    accuracy_beside_published,
    profile_of_a_step,
    scaling_of_time_and_memory,
    speed_beside_gpytorch,
)

Row = dict[str, float | int | str]


def write(rows: Iterable[Row], described: Callable[[Row], str], path: Path | None) -> list[Row]:
    """Print a line for each row as it comes, and write all rows so far as JSON: an interrupted run leaves what it measured."""
    kept = []
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    for row in rows:
        kept.append(row)
        print(described(row), flush=True)
        if path is not None:
            path.write_text(json.dumps(kept, indent=2))
    return kept


def require_places(arguments: argparse.Namespace) -> None:
    """Make the folders of results, or end the program with one sentence, before anything is timed."""
    file = getattr(arguments, "json", None) or getattr(arguments, "out", None)
    try:
        if arguments.figures is not None:
            arguments.figures.mkdir(parents=True, exist_ok=True)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.open("a").close()
    except OSError as error:
        raise SystemExit(f"nothing can be written to {error.filename}: {error.strerror}") from None


def require_gpytorch() -> None:
    """End the program with one sentence where GPyTorch is missing, before anything is timed."""
    try:
        import gpytorch  # noqa: F401
    except ImportError:
        raise SystemExit("GPyTorch is not installed: pip install 'pyro-dgp[benchmarks]'") from None


def run_speed(arguments: argparse.Namespace) -> None:
    """Time training steps beside GPyTorch."""
    require_gpytorch()
    measured = speed_beside_gpytorch.measure_all(arguments.quick, arguments.compiled)
    rows = write(measured, speed_beside_gpytorch.described, arguments.json)
    if arguments.figures is not None:
        draw_speed(rows, arguments.figures / "speed.png")


def run_profile(arguments: argparse.Namespace) -> None:
    """Divide the time of a training step among its parts."""
    rows = write(profile_of_a_step.measure_all(arguments.quick), profile_of_a_step.described, arguments.json)
    if arguments.figures is not None:
        draw_profile(rows, profile_of_a_step.KINDS, arguments.figures / "profile.png")


def run_scaling(arguments: argparse.Namespace) -> None:
    """Measure the growth of time and memory."""
    require_gpytorch()
    measured = scaling_of_time_and_memory.measure_all(arguments.quick, arguments.threads)
    rows = write(measured, scaling_of_time_and_memory.described, arguments.json)
    for name, slope in scaling_of_time_and_memory.exponents(rows).items():
        print(f"time grows as {name} to the power {slope:.2f}")
    if arguments.figures is not None:
        draw_scaling(rows, arguments.figures / "scaling.png")


def main() -> None:
    """Run one of the four studies from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="speed|profile|accuracy|scaling")
    for name, run, module in (
        ("speed", run_speed, speed_beside_gpytorch),
        ("profile", run_profile, profile_of_a_step),
        ("scaling", run_scaling, scaling_of_time_and_memory),
    ):
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        command.add_argument("--quick", action="store_true", help="few cases, few repeats: shows that it runs")
        command.add_argument("--json", type=Path, metavar="FILE", help="file for all rows")
        command.add_argument("--figures", type=Path, metavar="DIR", help="folder for the figure")
        command.set_defaults(run=run)
        if name == "speed":
            command.add_argument("--compiled", action="store_true", help="time CompiledObjective too")
        if name == "scaling":
            command.add_argument("--threads", type=int, default=1)
    command = commands.add_parser("accuracy", help=(accuracy_beside_published.__doc__ or "").splitlines()[0])
    accuracy_beside_published.add_arguments(command)
    command.set_defaults(run=accuracy_beside_published.run)
    arguments = parser.parse_args()
    require_places(arguments)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
