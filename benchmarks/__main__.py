"""``python -m benchmarks speed|profile|accuracy|scaling [--quick] [--json FILE] [--figures DIR]``: what the README's tables come from.

``--json`` gets a list of rows; that of ``accuracy`` is one line of JSON for each run, to which a resumed run adds.

``speed`` and ``scaling`` need ``pip install 'pyro-dgp[benchmarks]'`` (GPyTorch); the studies of single methods are modules of their own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import accuracy, profiling, scaling, speed
from benchmarks.common.drawing import draw_profile, draw_scaling, draw_speed

Row = dict[str, float | int | str]


def write(rows: Iterable[Row], described: Callable[[Row], str], path: Path | None) -> list[Row]:
    """Print a line for each row as it comes; all so far as JSON, so that a run that is interrupted leaves what it had."""
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
    """Make the folders of results, and end with a word where that cannot be done, before anything is timed."""
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
    """End with a word where it is missing, before anything is timed."""
    try:
        import gpytorch  # noqa: F401
    except ImportError:
        raise SystemExit("GPyTorch is not installed: pip install 'pyro-dgp[benchmarks]'") from None


def run_speed(arguments: argparse.Namespace) -> None:
    """Training steps beside GPyTorch's."""
    require_gpytorch()
    rows = write(speed.measure_all(arguments.quick, arguments.compiled), speed.described, arguments.json)
    if arguments.figures is not None:
        draw_speed(rows, arguments.figures / "speed.png")


def run_profile(arguments: argparse.Namespace) -> None:
    """Where a step's time goes."""
    rows = write(profiling.measure_all(arguments.quick), profiling.described, arguments.json)
    if arguments.figures is not None:
        draw_profile(rows, profiling.KINDS, arguments.figures / "profile.png")


def run_scaling(arguments: argparse.Namespace) -> None:
    """Growth of time and memory."""
    require_gpytorch()
    rows = write(scaling.measure_all(arguments.quick, arguments.threads), scaling.described, arguments.json)
    for name, slope in scaling.exponents(rows).items():
        print(f"time grows as {name} to the power {slope:.2f}")
    if arguments.figures is not None:
        draw_scaling(rows, arguments.figures / "scaling.png")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="speed|profile|accuracy|scaling")
    for name, run, module in (
        ("speed", run_speed, speed),
        ("profile", run_profile, profiling),
        ("scaling", run_scaling, scaling),
    ):
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        command.add_argument("--quick", action="store_true", help="few cases, few repeats: shows that it runs")
        command.add_argument("--json", type=Path, metavar="FILE", help="where all rows go")
        command.add_argument("--figures", type=Path, metavar="DIR", help="folder for the figure")
        command.set_defaults(run=run)
        if module is speed:
            command.add_argument("--compiled", action="store_true", help="time CompiledObjective too")
        if module is scaling:
            command.add_argument("--threads", type=int, default=1)
    command = commands.add_parser("accuracy", help=(accuracy.__doc__ or "").splitlines()[0])
    accuracy.add_arguments(command)
    command.set_defaults(run=accuracy.run)
    arguments = parser.parse_args()
    require_places(arguments)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
