"""The command ``pyro-dgp compare``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pyro_dgp.zoo.settings import Settings

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


def add_compare(commands: Any) -> None:
    """Add the command to those of the parser."""
    defaults = Settings()
    command = commands.add_parser(
        "compare",
        help="fit several methods to one data set and compare them",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = command.add_argument
    add("--data", type=Path, metavar="FILE", help="CSV or Parquet with a header, or .npz with X, y; or diabetes")
    add("--target", metavar="COLUMN", help="target column of a table; none: the last")
    add(
        "--model",
        metavar="FILE.py:NAME",
        help="a model of your own: a class or function in a Python file, called with the training inputs; none: the zoo's",
    )
    add(
        "--methods",
        metavar="A,B,C",
        help="methods to run, see 'pyro-dgp methods'; none: a few",
    )
    _add_training(add, defaults)
    _add_machine(add)
    _add_sampling(add, defaults)
    add(
        "--gap",
        metavar="NAME",
        help="also measure the distance of deep methods from this sampler (ess, nuts) on one model; none: do not",
    )
    add("--output", type=Path, metavar="DIR", default=Path("comparison"), help="folder for the results")
    add("--resume", action="store_true", help="go on in DIR: what has finished is not run again")
    command.set_defaults(run=_compare)


def _add_training(add: Any, defaults: Settings) -> None:
    """Options of the zoo's model and of training."""
    add("--layers", type=int, metavar="L", default=defaults.layers, help="layers of deep methods")
    add("--width", type=int, metavar="W", default=defaults.width, help="outputs of hidden layers")
    add("--inducing", type=int, metavar="M", default=defaults.inducing, help="inducing points")
    add("--row-inducing", type=int, metavar="M", default=defaults.row_inducing, help="those of a row, amortised")
    add("--samples", type=int, metavar="S", default=defaults.samples, help="samples in training")
    add("--kernel", metavar="NAME", default=defaults.kernel, help="kernel of every layer")
    add("--batch-size", type=int, metavar="B", default=defaults.batch_size, help="rows of a training step")
    add("--epochs", type=int, metavar="E", default=defaults.epochs, help="passes over the data; none: about 2000 steps")
    add("--learning-rate", type=float, metavar="R", default=defaults.learning_rate, help="of Adam")
    add(
        "--beta", type=float, metavar="B", help="weight of the KL in predictive losses; none: chosen on validation rows"
    )
    add("--split", type=int, metavar="K", default=defaults.split, help="train/test split")
    add("--seed", type=int, metavar="I", default=defaults.seed, help="of everything random")
    add("--folds", type=int, metavar="K", help="folds of a cross-validation in the place of one split")


def _add_machine(add: Any) -> None:
    """Options of where and how it runs."""
    add("--dtype", choices=["float32", "float64"], default="float64", help="of everything")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where it runs")
    add("--threads", type=int, metavar="T", help="of torch; none: its own choice")


def _add_sampling(add: Any, defaults: Settings) -> None:
    """Options of samplers."""
    add("--mcmc-points", type=int, metavar="P", default=defaults.mcmc_points, help="training rows of MCMC at most")
    add("--mcmc-samples", type=int, metavar="K", default=defaults.mcmc_samples, help="draws of a chain")
    add("--warmup", type=int, metavar="K", default=defaults.warmup, help="warm-up iterations of a chain")
    add(
        "--chains",
        type=int,
        metavar="C",
        default=defaults.chains,
        help="MCMC chains, as many at a time as there are cores; one is judged by its halves",
    )


def _compare(parsed: argparse.Namespace) -> int:
    from pyro_dgp.comparison.own_model import model_from_file
    from pyro_dgp.comparison.progress_bars import Bars
    from pyro_dgp.comparison.request import Request, check, default_methods
    from pyro_dgp.comparison.run import MethodFailedError, run
    from pyro_dgp.comparison.tables import gap_table, table
    from pyro_dgp.data.reading import load

    model = None if parsed.model is None else model_from_file(parsed.model)
    named = None if parsed.methods is None else [name.strip() for name in parsed.methods.split(",")]
    request = Request(
        output=parsed.output,
        methods=default_methods(model) if named is None else tuple(filter(None, named)),
        settings=Settings(**{f.name: getattr(parsed, f.name) for f in fields(Settings)}),
        model=model,
        folds=parsed.folds,
        dtype=parsed.dtype,
        device=parsed.device,
        threads=parsed.threads,
        resume=parsed.resume,
        gap=parsed.gap,
    )
    check(request)
    if parsed.target is not None and parsed.data is None:
        raise ValueError("--target names a column of --data, which is not given")
    if parsed.data is not None:
        request = replace(request, dataset=load(parsed.data, parsed.target))
    bars = Bars()
    try:
        result = run(request, say=bars.say, progress=bars.start)
    except KeyboardInterrupt:
        bars.close()
        print(f"\ninterrupted: finished methods are kept in {parsed.output}; go on with --resume", file=sys.stderr)
        return EXIT_INTERRUPTED
    except MethodFailedError as error:
        bars.close()
        print(f"pyro-dgp: {error}", file=sys.stderr)
        return EXIT_FAILED
    bars.close()
    print(table(result.rows))
    print(f"scores on the standardised target, lower is better; files in {parsed.output}")
    if parsed.gap is not None:
        print(gap_table(json.loads((parsed.output / "gap.json").read_text())))
    return 0
