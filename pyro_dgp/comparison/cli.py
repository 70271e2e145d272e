"""The command line: ``pyro-dgp compare``, ``predict``, ``advise``, ``sweep`` and ``methods``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from pyro_dgp.comparison.advise_command import add_advise
from pyro_dgp.comparison.compare_command import EXIT_FAILED, add_compare
from pyro_dgp.comparison.predict_command import add_predict
from pyro_dgp.comparison.sweep_command import add_sweep
from pyro_dgp.internal.errors import shown
from pyro_dgp.internal.untrusted_files import why

EXIT_BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 (a method failed, or files could not be written), 2 (bad input), 130 (interrupted)."""
    logging.basicConfig(format="%(message)s")
    parsed, unknown = parser().parse_known_args(arguments)
    if unknown:
        parsed.command.error(_without(unknown, parsed.others))
    try:
        status: int = parsed.run(parsed)
    except (ValueError, TypeError, ImportError) as error:
        print(f"pyro-dgp: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except OSError as error:
        print(f"pyro-dgp: {_sentence(error)}", file=sys.stderr)
        return EXIT_FAILED
    return status


def _without(unknown: Sequence[str], others: dict[str, argparse.ArgumentParser]) -> str:
    """Return a sentence on arguments that a command does not have, with the commands that have the first of them."""
    first = unknown[0].partition("=")[0]
    having = [name for name, command in others.items() if first in command._option_string_actions]
    return f"unrecognized arguments: {' '.join(unknown)}" + (
        f" (an option of pyro-dgp {' and '.join(having)})" if having else ""
    )


def _sentence(error: OSError) -> str:
    """An error of the operating system in one sentence; one that this program raised is a sentence."""
    if error.errno is None:
        return str(error)
    where = "a file" if error.filename is None else repr(shown(str(error.filename)))
    return f"{where} cannot be read or written ({why(error)}): check the folder and the room on its disk"


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    root = argparse.ArgumentParser(prog="pyro-dgp", description="Deep Gaussian processes as Pyro models.")
    commands: Any = root.add_subparsers(required=True, metavar="COMMAND")
    add_compare(commands)
    add_predict(commands)
    add_advise(commands)
    add_sweep(commands)
    methods = commands.add_parser("methods", help="list the named methods with their papers")
    methods.add_argument("--json", action="store_true", help="print the list as JSON")
    methods.set_defaults(run=_methods)
    for command in commands.choices.values():
        command.set_defaults(command=command, others=commands.choices)
    return root


def _methods(parsed: argparse.Namespace) -> int:
    from pyro_dgp.zoo.methods import METHODS
    from pyro_dgp.zoo.presets import PRESETS

    if parsed.json:
        listed = [
            {"name": m.name, "summary": m.summary, "paper": m.paper, "deep": m.architecture.is_deep}
            for m in METHODS.values()
        ]
        print(json.dumps(listed, indent=2))
        return 0
    width = max(map(len, METHODS))
    for method in METHODS.values():
        print(f"{method.name:<{width}}  {method.summary}\n{'':<{width}}  {method.paper}")
    print("\nPresets, for --preset: models and settings that a paper states.\n")
    for name, preset in PRESETS.items():
        print(f"{name:<{width}}  {', '.join(preset.methods)}\n{'':<{width}}  {preset.paper}")
    return 0
