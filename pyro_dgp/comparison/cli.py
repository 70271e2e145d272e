"""The command line: ``pyro-dgp compare`` and ``pyro-dgp methods``."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pyro_dgp.internal.progress import Progress
from pyro_dgp.zoo.settings import Settings

EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 (a method failed), 2 (bad input), 130 (interrupted)."""
    logging.basicConfig(format="%(message)s")
    parsed = parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except (ValueError, TypeError, ImportError) as error:
        print(f"pyro-dgp: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    return status


def parser() -> argparse.ArgumentParser:
    """The parser of both commands."""
    root = argparse.ArgumentParser(prog="pyro-dgp", description="Deep Gaussian processes as Pyro models.")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    _add_compare(commands)
    methods = commands.add_parser("methods", help="list the named methods with their papers")
    methods.add_argument("--json", action="store_true", help="print the list as JSON")
    methods.set_defaults(run=_methods)
    return root


def _add_compare(commands: Any) -> None:
    defaults = Settings()
    command = commands.add_parser(
        "compare",
        help="fit several methods to one data set and compare them",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = command.add_argument
    add(
        "--data",
        type=Path,
        metavar="FILE",
        help="CSV or Parquet with a header, .npz with X, y, or a name: scan-line (the default), diabetes",
    )
    add("--target", metavar="COLUMN", help="target column of a table; none: the last")
    add(
        "--methods",
        metavar="A,B,C",
        help="methods to run, see 'pyro-dgp methods'",
        default="exact-gp,svgp,ppgpr,dsvi,nuts",
    )
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
    add("--dtype", choices=["float32", "float64"], default="float64", help="of everything")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where it runs")
    add("--threads", type=int, metavar="T", help="of torch; none: its own choice")
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
    add(
        "--gap",
        metavar="NAME",
        help="also measure the distance of deep methods from this sampler (ess, nuts) on one model; none: do not",
    )
    add("--output", type=Path, metavar="DIR", default=Path("comparison"), help="folder for the results")
    add("--resume", action="store_true", help="go on in DIR: what has finished is not run again")
    command.set_defaults(run=_compare)


def _compare(parsed: argparse.Namespace) -> int:
    from pyro_dgp.comparison.run import Comparison, MethodFailedError, check, compare
    from pyro_dgp.data.named import find

    settings = Settings(**{f.name: getattr(parsed, f.name) for f in fields(Settings)})
    names = tuple(name.strip() for name in parsed.methods.split(",") if name.strip())
    comparison = Comparison(
        parsed.output, None, names, settings, parsed.dtype, parsed.device, parsed.threads, parsed.resume, parsed.gap
    )
    check(comparison)
    if parsed.target is not None and parsed.data is None:
        raise ValueError("--target names a column of --data, which is not given")
    if parsed.data is not None:
        comparison = Comparison(**{**comparison.__dict__, "dataset": find(parsed.data, parsed.target)})
    bars = Bars()
    try:
        rows = compare(comparison, bars.say, bars.start)
    except KeyboardInterrupt:
        bars.close()
        print(f"\ninterrupted: finished methods are kept in {parsed.output}; go on with --resume", file=sys.stderr)
        return EXIT_INTERRUPTED
    except MethodFailedError as error:
        bars.close()
        print(f"pyro-dgp: {error}", file=sys.stderr)
        return EXIT_FAILED
    bars.close()
    print(table(rows))
    print(f"scores on the standardised target, lower is better; files in {parsed.output}")
    if parsed.gap is not None:
        print(gap_table(json.loads((parsed.output / "gap.json").read_text())))
    return 0


class Bars:
    """A progress line for each method, with the current figures and the time left."""

    def __init__(self) -> None:
        self.current: Any = None

    def say(self, sentence: str) -> None:
        """A remark, above the bars."""
        from tqdm import tqdm

        self.close()
        tqdm.write(sentence, file=sys.stderr)

    def start(self, name: str) -> Progress:
        """The progress callback of one method."""
        from tqdm import tqdm

        self.close()
        self.current = bar = tqdm(desc=f"{name:>10}", dynamic_ncols=True, file=sys.stderr, mininterval=0.2)

        def progress(step: int, total: int, figures: dict[str, float]) -> None:
            bar.total = total
            if step % max(total // 200, 1) == 0 or step == total:
                bar.set_postfix({key: f"{value:.3g}" for key, value in figures.items()}, refresh=False)
            bar.update(step - bar.n)

        return progress

    def close(self) -> None:
        """Leave the current line as it stands."""
        if self.current is not None:
            self.current.close()
            self.current = None


_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("method", "method", str),
    ("n_train", "n_train", str),
    ("n_validation", "n_val", str),
    ("steps", "steps", str),
    ("beta", "beta", "{:g}".format),
    ("nll", "NLL", "{:.3f}".format),
    ("rmse", "RMSE", "{:.3f}".format),
    ("crps", "CRPS", "{:.3f}".format),
    ("train_seconds", "train s", "{:.1f}".format),
    ("predict_seconds", "predict s", "{:.1f}".format),
    ("divergences", "div.", str),
    ("r_hat_max", "R-hat", "{:.2f}".format),
    ("ess_min", "ESS", "{:.0f}".format),
)


_GAP_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("method", "method", str),
    ("hyperparameters", "hyperparameters", str),
    ("gap_mean", "mean of f", "{:.3f}".format),
    ("gap_sd", "log sd of f", "{:.3f}".format),
    ("gap_wasserstein", "Wasserstein", "{:.3f}".format),
    ("gap_kl", "KL of y", "{:.4f}".format),
    ("approximates_posterior", "approximates", lambda value: "yes" if value else "no"),
)


def gap_table(rows: Sequence[dict[str, Any]]) -> str:
    """Distances from the sampler as aligned text."""
    title = f"distance from {rows[0]['reference']}, averages over test inputs, in its standard deviations and nats:"
    return f"{title}\n{table(rows, _GAP_COLUMNS)}"


def table(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str, Callable[[Any], str]]] = _COLUMNS) -> str:
    """The results as aligned text."""
    shown = [column for column in columns if any(column[0] in row for row in rows)]
    cells = [[title for _, title, _ in shown]]
    for row in rows:
        cells.append([_cell(row.get(key), form) for key, _, form in shown])
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    lines = []
    for line in cells:
        first = line[0].ljust(widths[0])
        lines.append("  ".join([first, *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]))
    return "\n".join(lines)


def _cell(value: Any, form: Callable[[Any], str]) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return form(value)


def _methods(parsed: argparse.Namespace) -> int:
    from pyro_dgp.zoo.methods import METHODS

    if parsed.json:
        listed = [{"name": m.name, "summary": m.summary, "paper": m.paper, "deep": m.is_deep} for m in METHODS.values()]
        print(json.dumps(listed, indent=2))
        return 0
    width = max(map(len, METHODS))
    for method in METHODS.values():
        print(f"{method.name:<{width}}  {method.summary}\n{'':<{width}}  {method.paper}")
    return 0
