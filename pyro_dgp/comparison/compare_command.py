"""The command ``pyro-dgp compare``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pyro_dgp.comparison.gap_study import read_gap
from pyro_dgp.comparison.own_model import model_from_file
from pyro_dgp.comparison.progress_bars import Bars
from pyro_dgp.comparison.request import (
    DEVICES,
    FIRST_FOLDS,
    FIRST_METHODS,
    FIRST_SETTINGS,
    OF_THE_ZOO,
    Request,
    check,
    default_methods,
)
from pyro_dgp.comparison.run import MethodFailedError, run
from pyro_dgp.comparison.tables import gap_table
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.named import NAMED, find
from pyro_dgp.data.tasks import TASKS, Task
from pyro_dgp.zoo.presets import PRESETS, methods_of, named_preset
from pyro_dgp.zoo.settings import Settings

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


def add_compare(commands: Any) -> None:
    """Add the command to those of the parser."""
    command = commands.add_parser(
        "compare",
        help="fit several methods to one data set and compare them",
        description="Fit several methods to one data set and compare them. Without --data and --model it runs a first example: a scan line "
        "of a photograph, in a few minutes, with settings of its own.",
    )
    add = command.add_argument
    add(
        "--data",
        type=Path,
        metavar="FILE",
        help=f"CSV or Parquet with a header, or .npz with X, y; or one of {', '.join(NAMED)}",
    )
    add(
        "--target",
        metavar="COLUMN",
        action=Once,
        help="target column of a table, or several with commas between; none: the last",
    )
    add("--task", choices=TASKS, help="what the target is; none: guessed from its values, and said")
    add(
        "--model",
        metavar="FILE.py:NAME",
        help="a model of your own: a class or function in a Python file, called with the training inputs; none: the zoo's",
    )
    add(
        "--methods",
        action=Once,
        metavar="A,B,C",
        help="methods to run, see 'pyro-dgp methods'; none: a few",
    )
    add_training(add)
    _add_rows(add)
    _add_machine(add)
    add_sampling(add)
    add(
        "--gap",
        metavar="NAME",
        help="also measure the distance of deep methods from this sampler (ess, nuts) on one model; none: do not",
    )
    add(
        "--output",
        type=Path,
        metavar="DIR",
        default=Path("comparison"),
        help="folder for the results (default: comparison)",
    )
    add("--resume", action="store_true", help="go on in DIR: what has finished is not run again")
    command.set_defaults(run=_compare)


def add_training(add: Any) -> None:
    """Options of the zoo's model and of training."""
    add(
        "--preset",
        metavar="NAME",
        help=f"models and settings of a paper: {', '.join(PRESETS)}; options that are given stand before its own",
    )
    add_numbers(add)
    add("--minutes", type=float, metavar="T", help="time of one fit of a variational method, in the place of --epochs")


def add_numbers(add: Any) -> None:
    """Options of the zoo's model and of training, without presets and times."""
    add("--layers", type=int, metavar="L", help=_with_default("layers of deep methods", "layers"))
    add("--width", type=int, metavar="W", help=_with_default("outputs of hidden layers", "width"))
    add("--inducing", type=int, metavar="M", help=_with_default("inducing points", "inducing"))
    add("--row-inducing", type=int, metavar="M", help=_with_default("those of a row, amortised", "row_inducing"))
    add("--orthogonal", type=int, metavar="K", help="points of an orthogonal part; none: as many as --inducing")
    add(
        "--neighbors",
        type=int,
        metavar="N",
        help=_with_default(
            "rows that each row is conditioned on by vecchia-*: more are closer to the exact GP, at the cube of their number",
            "neighbors",
        ),
    )
    add("--frequencies", type=int, metavar="F", help=_with_default("Fourier frequencies of each input", "frequencies"))
    add(
        "--samples",
        type=int,
        metavar="S",
        help="samples in training; none: the method's own, 1 for svgp, dsvi, gamma-dgp, 1 to 10 for dsvi-collapsed, else 10",
    )
    add(
        "--kernel",
        metavar="NAME",
        help="kernel of every layer; none: the method's own, rbf+matern52 of exact-gp, sgpr, svgp, ppgpr, dsvi, dsvi-collapsed, dspp, gamma-dgp, mc-predictive, else matern52",
    )
    add(
        "--batch-size",
        type=int,
        metavar="B",
        help="rows of a training step; none: the method's own, 500 for svgp, dsvi, gamma-dgp, else 100",
    )
    add("--epochs", type=int, metavar="E", help=_with_default("passes over the data; none: about 2000 steps", "epochs"))
    add("--steps", type=int, metavar="K", help="training steps, in the place of --epochs")
    add("--learning-rate", type=float, metavar="R", help=_with_default("of Adam", "learning_rate"))
    add(
        "--beta", type=float, metavar="B", help="weight of the KL in predictive losses; none: chosen on validation rows"
    )
    add("--alpha", type=float, metavar="A", help=_with_default("power of expectation propagation", "alpha"))


def _add_rows(add: Any) -> None:
    """Options of the test rows, and of the seed."""
    add("--split", type=int, metavar="K", help=_with_default("train/test split", "split"))
    add("--seed", type=int, metavar="I", help=_with_default("of everything random", "seed"))
    add("--folds", type=int, metavar="K", help="folds of a cross-validation in the place of one split")


def _add_machine(add: Any) -> None:
    """Options of where and how it runs."""
    add("--dtype", choices=["float32", "float64"], default="float64", help="of everything (default: float64)")
    add("--device", choices=DEVICES, default="auto", help="where it runs (default: auto)")
    add("--threads", type=int, metavar="T", help="of torch; none: its own choice")


def add_sampling(add: Any) -> None:
    """Options of samplers."""
    add(
        "--mcmc-points", type=int, metavar="P", help=_with_default("training rows of exact MCMC at most", "mcmc_points")
    )
    add("--mcmc-samples", type=int, metavar="K", help=_with_default("draws of a chain", "mcmc_samples"))
    add("--warmup", type=int, metavar="K", help=_with_default("warm-up iterations of a chain", "warmup"))
    add(
        "--chains",
        type=int,
        metavar="C",
        help=_with_default("MCMC chains, as many at a time as there are cores; one is judged by its halves", "chains"),
    )


class Once(argparse.Action):
    """An option that is given once: a second one would stand in the place of the first."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        """Keep the value."""
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} is given twice: give it once, several names with commas between")
        setattr(namespace, self.dest, values)


def _with_default(text: str, field: str) -> str:
    default = getattr(Settings(), field)
    return text if default is None else f"{text} (default: {default})"


def base_settings(parsed: argparse.Namespace) -> Settings:
    """Return the settings that stand where no option gives one: the defaults, or those of the preset."""
    return Settings() if parsed.preset is None else named_preset(parsed.preset).settings


def given_settings(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that options give, by name, but for the task, which data sets have."""
    values = {field.name: getattr(parsed, field.name, None) for field in fields(Settings) if field.name != "task"}
    return {name: value for name, value in values.items() if value is not None}


def with_given(settings: Settings, given: dict[str, Any]) -> Settings:
    """Return settings with those that options give; a given length of training stands in the place of every other."""
    lengths = given.keys() & {"epochs", "steps", "minutes"}
    if len(lengths) > 1:
        raise ValueError("the length of training is given twice: say --epochs, --steps or --minutes")
    return replace(settings, **({"epochs": None, "steps": None, "minutes": None} if lengths else {}) | given)


def _request(parsed: argparse.Namespace) -> Request:
    """Build the request from the options. Where neither data nor a model are named, the first example fills in what is not given."""
    model = None if parsed.model is None else model_from_file(parsed.model)
    is_first = parsed.data is None and model is None and parsed.preset is None
    ignored = [f"--{name}" for name in (*OF_THE_ZOO, "task") if model is not None and getattr(parsed, name) is not None]
    if ignored:
        raise ValueError(
            f"{ignored[0]} describes the library's own model, and --model brings another: write it into that model"
        )
    base = FIRST_SETTINGS if is_first else base_settings(parsed)
    given = given_settings(parsed)
    dataset = _dataset(parsed)
    if parsed.methods is not None:
        methods = tuple(name.strip() for name in parsed.methods.split(",") if name.strip())
    elif parsed.preset is not None:
        methods = tuple(methods_of(parsed.preset))
    else:
        methods = FIRST_METHODS if is_first else default_methods(model, Task() if dataset is None else dataset.task)
    folds = FIRST_FOLDS if is_first and parsed.folds is None and parsed.split is None else parsed.folds
    return Request(
        output=parsed.output,
        dataset=dataset,
        methods=methods,
        settings=with_given(base, given),
        model=model,
        folds=folds,
        dtype=parsed.dtype,
        device=parsed.device,
        threads=parsed.threads,
        resume=parsed.resume,
        gap=parsed.gap,
    )


def _dataset(parsed: argparse.Namespace) -> Dataset | None:
    """Read the data, if any are named."""
    for name in ("target", "task"):
        if getattr(parsed, name) is not None and parsed.data is None:
            raise ValueError(f"--{name} is that of --data, which is not given")
    return None if parsed.data is None else find(parsed.data, parsed.target, parsed.task)


def _compare(parsed: argparse.Namespace) -> int:
    request = _request(parsed)
    check(request)
    bars = Bars()
    try:
        result = run(request, say=bars.say, progress=bars.start)
    except KeyboardInterrupt:
        bars.close()
        print(f"\ninterrupted: finished methods are kept in {parsed.output}; go on with --resume", file=sys.stderr)
        return EXIT_INTERRUPTED
    except MethodFailedError as error:
        bars.close()
        if error.result.rows:
            print(error.result)
        print(f"pyro-dgp: {error}", file=sys.stderr)
        return EXIT_FAILED
    bars.close()
    print(f"{result}; files in {parsed.output}")
    if parsed.gap is not None:
        print(gap_table(read_gap(parsed.output)))
    return 0
