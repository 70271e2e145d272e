"""Named methods that train for as long as a user is willing to wait, beside published numbers that took longer.

``python -m benchmarks.studies.given_time --data FOLDER [--out FILE] [--only POWER,ENERGY] [--threads N] [--table]``

Each run has the minutes that its line states. Published are [2024-meng] Table 5 (bike, protein ``avdgp``) and [2020-ashman] Table 4, in standardised
units of y (20 splits; 17 of protein). Makes the runs that FILE (one JSON line a run) lacks and prints the table.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.common.data import add_data_option, read_data, require_data
from benchmarks.common.records import read
from pyro_dgp.comparison.sweep import sweep
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class Line:
    """Runs of one method on one data set, and what was published.

    :ivar published: NLL on standardised targets, and its standard deviation over splits.
    :ivar dtype: of everything, ``float32`` or ``float64``.
    """

    dataset: str
    method: str
    splits: tuple[int, ...]
    settings: Settings
    published: tuple[float, float]
    dtype: str = "float64"


LINES = (
    Line("kin8nm", "dsvi", (0,), Settings(minutes=10.0, width=8), (-0.031, 0.022)),
    Line("power", "dsvi", (0, 1), Settings(minutes=30.0, layers=3), (-0.141, 0.045)),
    Line("protein", "dsvi", (0,), Settings(minutes=30.0, layers=3), (0.888, 0.013)),
    Line("protein", "dsvi-collapsed", (0, 1), Settings(minutes=30.0, inducing=300), (0.888, 0.013), "float32"),
    Line("power", "dsvi-collapsed", (0, 1), Settings(minutes=30.0, layers=3), (-0.141, 0.045), "float32"),
    Line("energy", "dsvi", (0, 1, 2, 3, 4), Settings(minutes=6.0), (-1.654, 0.124)),
    Line("energy", "dsvi-collapsed", (0, 1, 2, 3, 4), Settings(minutes=2.0), (-1.654, 0.124)),
    Line("bike", "avdgp-ar2p", (0,), Settings(minutes=30.0), (-0.299, 0.035)),
    Line("protein", "avdgp-ar2pp", (0,), Settings(minutes=30.0), (0.226, 0.028)),
)


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean scores of each line beside the published NLL."""
    found_lines = []
    for line in LINES:
        found = rows[(rows["dataset"] == line.dataset) & (rows["method"] == line.method)]
        if found.empty:
            continue
        published, sd = line.published
        found_lines.append(
            {
                "dataset": line.dataset,
                "method": line.method,
                "layers": line.settings.layers,
                "inducing": line.settings.inducing,
                "splits": len(found),
                "minutes": round(float(found["total_seconds"].mean()) / 60, 1),
                "nll": round(float(found["nll"].mean()), 3),
                "rmse": round(float(found["rmse"].mean()), 3),
                "published": published,
                "sd": sd,
            }
        )
    return pd.DataFrame(found_lines)


def main() -> None:
    """Make the runs that the file lacks and print the table."""
    out = Path("results/given_time.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--only", help="data sets to run, with commas between; all if not given")
    parser.add_argument("--threads", type=int, default=2, help="threads of a run")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    if not arguments.table:
        require_data(arguments)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        for line in LINES:
            if arguments.only is None or line.dataset in arguments.only.split(","):
                data = [read_data(line.dataset, arguments.data)]
                sweep(
                    data,
                    [line.method],
                    splits=line.splits,
                    settings=line.settings,
                    dtype=line.dtype,
                    output=arguments.out,
                    threads=arguments.threads,
                    say=lambda words: print(words, flush=True),
                )
    found = read(arguments.out, "method")
    if found:
        print(table(pd.DataFrame([row for row in found if "error" not in row])).to_string(index=False))


if __name__ == "__main__":
    main()
