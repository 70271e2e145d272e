"""Named methods on data of two targets, with linear coregionalisation.

``python -m benchmarks.studies.several_outputs --data FOLDER [--out FILE] [--methods A,B] [--splits N] [--figures DIR] [--table]``

Two data sets have a second target (``y_extra`` of the file): the decay of compressor and turbine of ``naval``, casual and registered rentals of ``bike``. Methods and scores are those
of [DSPP] Table 3, which has five sets of robotics with 7 to 28 targets: NLL over the number of outputs, and RMSE averaged over them (MRMSE). The zoo's
settings; splits of the files. Makes the runs that FILE (one JSON line a run) lacks, prints the tables, and draws the scores of each set ([DSPP] Fig. 5 has the NLL).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common.data import add_data_option, require_data
from benchmarks.common.records import read
from benchmarks.common.score_tables import draw_scores, means, ranks
from pyro_dgp import Settings, Task
from pyro_dgp.comparison.sweep import sweep
from pyro_dgp.data.dataset import Dataset

METHODS = ("svgp", "ppgpr", "dsvi", "gamma-dgp", "dspp")
#: Targets of a set: of the arrays ``y`` and ``y_extra`` side by side, those that are kept.
TARGETS = {"naval": ("compressor", "turbine"), "bike": ("casual", "registered")}


def dataset(name: str, folder: Path) -> Dataset:
    """Return a set with its two targets."""
    with np.load(folder / f"{name}.npz") as arrays:
        both = np.concatenate([arrays["y"], arrays["y_extra"]], 1)[:, -2:].astype(float)
        masks = arrays["splits"] == 1
        outputs = TARGETS[name]
        return Dataset(
            f"{name}, two targets",
            arrays["X"].astype(float),
            both,
            splits=masks,
            target=", ".join(outputs),
            outputs=outputs,
            task=Task(outputs=2),
        )


def report(path: Path, figures: Path | None) -> None:
    """Print means over splits, NLL over the number of outputs, and ranks, and draw the scores."""
    rows = pd.DataFrame([row for row in read(path, "method") if "error" not in row])
    if rows.empty:
        return
    rows["nll"] = rows["nll_per_output"]
    print(
        "means (standard errors over splits), NLL over the number of outputs",
        means(rows).to_string(),
        ranks(rows).to_string(),
        sep="\n\n",
    )
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        draw_scores(rows, figures / "several_outputs.png")


def main() -> None:
    """Make the runs that the file lacks and print the tables."""
    out = Path("results/several_outputs.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--methods", default=",".join(METHODS), help="methods to run, with commas between")
    parser.add_argument("--splits", type=int, default=3, help="splits of each data set")
    parser.add_argument("--figures", type=Path, help="folder for the figure")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    if not arguments.table:
        require_data(arguments)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        data, methods = [dataset(name, arguments.data) for name in TARGETS], arguments.methods.split(",")
        for number in range(arguments.splits):
            sweep(data, methods, splits=(number,), settings=Settings(), output=arguments.out, say=_say)
    report(arguments.out, arguments.figures)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
