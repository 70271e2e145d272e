"""Named variational methods after few steps, beside a normal of the training targets, which looks at no input.

``python -m benchmarks.studies.beside_the_mean --data FOLDER [--out FILE] [--methods A,B] [--only D,E] [--seeds K] [--table]``

Every method of the table that is no sampler and no exact GP has 500 steps, from two seeds, on the first split of each set of ``held_aside``, and of one
whose five inputs are among 27 that have no effect. A method that is trained and still has a higher NLL than
that normal has failed in silence. Makes the runs that FILE (one JSON line a run) lacks and prints the NLL of each method less that of the normal, the highest of its seeds.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from benchmarks.common.data import add_data_option, require_data
from benchmarks.common.held_aside_sets import LARGE, MEDIUM, SMALL, dataset
from benchmarks.common.records import Record, append, read
from pyro_dgp.comparison.sweep import sweep
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.splitting import split
from pyro_dgp.training.loop import steps_for
from pyro_dgp.zoo.by_collapsed_elbo import ByCollapsedELBO
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings

#: Data sets with their split.
SETS = SMALL | {"friedman1-inert-1000": 0} | MEDIUM | LARGE
#: Training steps of every method, or as few more as whole epochs have.
STEPS = 500
#: Methods that are trained by an objective of a guide.
NAMED = tuple(
    name
    for name, method in METHODS.items()
    if not method.inference.has_draws and name not in ("exact-gp", "vecchia-gp")
)


def of_mean(data: Dataset, number: int) -> float:
    """NLL of the test rows under a normal of the training targets, nats a row, on the standardised target."""
    target: torch.Tensor = split(data, number, dtype=torch.float64).y_test
    return float(0.5 * target.square().mean()) + 0.5 * math.log(2 * math.pi)


def settings_of(name: str, rows: int, *, number: int) -> Settings:
    """Settings of a run of 500 steps on so many training rows."""
    settings = Settings(split=number)
    inference = METHODS[name].inference
    is_of_all_rows = isinstance(inference, ByCollapsedELBO)
    per_epoch = 1 if is_of_all_rows else steps_for(1, rows, inference.settled(settings).rows_of_step)
    return replace(settings, epochs=-(-STEPS // per_epoch))


def run(data: Dataset, name: str, number: int, *, seed: int) -> Record:
    """Fit and score one method, beside the normal."""
    rows = len(split(data, number, dtype=torch.float64).x_train)
    settings = settings_of(name, rows, number=number)
    (row,) = sweep([data], [name], splits=[number], seeds=[seed], settings=settings)
    return row | {"of_mean": of_mean(data, number)}


def table(rows: list[Record]) -> pd.DataFrame:
    """NLL of each method (rows) less that of the normal on each set (columns), the highest of its seeds; infinite for a run that failed."""
    frame = pd.DataFrame(
        {
            "method": row["method"],
            "dataset": row["dataset"],
            "behind": math.inf if "error" in row else row["nll"] - row["of_mean"],
        }
        for row in rows
    )
    found = frame.pivot_table(index="method", columns="dataset", values="behind", aggfunc="max")
    return found.reindex(index=[name for name in NAMED if name in found.index])


def main() -> None:
    """Make the runs that the file lacks and print the table."""
    out = Path("results/beside_the_mean.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--methods", help="methods, with commas between; all if not given")
    parser.add_argument("--only", help="data sets, with commas between; all if not given")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    if not arguments.table:
        require_data(arguments)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        done = {(row["dataset"], row["method"], row["seed"]) for row in read(arguments.out, "method")}
        for seed, (name, number) in itertools.product(range(arguments.seeds), SETS.items()):
            if arguments.only and name not in arguments.only.split(","):
                continue
            data = dataset(name, arguments.data)
            for method in NAMED:
                is_asked = not arguments.methods or method in arguments.methods.split(",")
                if is_asked and (data.name, method, seed) not in done:
                    append(arguments.out, run(data, method, number, seed=seed))
    found = table(read(arguments.out, "method"))
    print(found.to_string(float_format="{:.2f}".format))
    worse = found.stack()
    worse = worse[worse > 0]
    print(
        f"\n{found.notna().sum().sum()} pairs of a method and a set, {len(worse)} of them behind a normal of the training targets"
    )
    print(worse.to_string(float_format="{:.3f}".format) if len(worse) else "")


if __name__ == "__main__":
    main()
