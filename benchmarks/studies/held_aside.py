"""Named methods on data that nobody tuned to, beside GPyTorch as its examples use it, exact GPs, dgpsi, and what a user would take instead.

``python -m benchmarks.studies.held_aside --data FOLDER [--out FILE] [--group GROUP] [--methods A,B] [--only D,E] [--splits K] [--table]``

No choice was made on these sets: scikit-learn's diabetes, six simulators with 300 and 3000 training rows, and splits 10 to 14 of the small sets,
whose first splits served to choose. Naval, bike and yacht were seen before, with an older recipe. Every method has its defaults (about 2000
steps, M 128, width 5), GPyTorch the batch size and S of its counterpart. There is one seed, and five splits. Makes the runs that FILE (one JSON line a run) lacks and prints
the tables.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common.baselines import BASELINES
from benchmarks.common.data import add_data_option, require_data
from benchmarks.common.dgpsi_model import ByDgpsi, layers_of_dgpsi
from benchmarks.common.gpytorch_stock import STOCK
from benchmarks.common.held_aside_sets import LARGE, MEDIUM, SMALL, SPLITS, dataset
from benchmarks.common.records import read
from benchmarks.common.score_tables import SCORES, means, ranks
from pyro_dgp.comparison.request import Named
from pyro_dgp.comparison.sweep import sweep
from pyro_dgp.zoo.settings import Settings

SETTINGS = Settings()

#: Pairs of a method and its counterpart.
COUNTERPARTS = {
    "svgp": "gpytorch-svgp",
    "ppgpr": "gpytorch-ppgpr",
    "dsvi": "gpytorch-dsvi",
    "dspp": "gpytorch-dspp",
}
#: Pairs that are reported: two more, trained with the best q(v), beside the same counterparts.
BESIDE = COUNTERPARTS | {"sgpr": "gpytorch-svgp", "dsvi-collapsed": "gpytorch-dsvi"}


@dataclass(frozen=True)
class Group:
    """Methods, and the data sets that they run on."""

    methods: tuple[Named, ...]
    sets: dict[str, int]


GROUPS = {
    "zoo": Group(tuple(COUNTERPARTS), SMALL | MEDIUM | LARGE),
    "gpytorch": Group(tuple(STOCK.items()), SMALL | MEDIUM | LARGE),
    "baselines": Group(
        tuple((name, BASELINES[name]) for name in ("ensemble", "bnn-svi", "quantile-boosting")), SMALL | MEDIUM | LARGE
    ),
    "more": Group(("gamma-dgp", "aep", "avdgp-ar2p", "avdgp-ar2pp"), SMALL | MEDIUM | LARGE),
    "neural": Group(("dkl-svgp", "dkl-ppgpr", "dkl-dsvi", "dkl-dspp"), SMALL | MEDIUM | LARGE),
    "collapsed": Group(("sgpr", "dsvi-collapsed"), SMALL | MEDIUM | LARGE),
    "exact": Group(("exact-gp",), SMALL | MEDIUM),
    "vecchia": Group(("vecchia-gp",), SMALL | MEDIUM | LARGE),
    "dgpsi": Group(
        (("dgpsi-defaults", ByDgpsi(layers=layers_of_dgpsi, iterations=500)),),
        {name: first for name, first in SMALL.items() if name != "wine_red"},
    ),
}

#: Groups that run where they are named alone.
RARE = ("more", "neural", "dgpsi")


def carry_out(group: Group, arguments: argparse.Namespace) -> None:
    """Make the runs of a group that the file lacks: all sets of one split, then those of the next."""
    asked = arguments.methods.split(",") if arguments.methods else None
    methods = [each for each in group.methods if asked is None or (each if isinstance(each, str) else each[0]) in asked]
    sets = [name for name in group.sets if not arguments.only or name in arguments.only.split(",")]
    for k in range(min(SPLITS, arguments.splits) if methods else 0):
        for first in sorted({group.sets[name] for name in sets}):
            data = [dataset(name, arguments.data) for name in sets if group.sets[name] == first]
            sweep(
                data,
                methods,
                splits=(first + k,),
                settings=SETTINGS,
                output=arguments.out,
                jobs=arguments.jobs,
                say=_say,
            )


def _say(line: str) -> None:
    print(line, flush=True)


def beside(rows: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """Return NLL of ``first`` minus that of ``second``, and ratios of RMSE and CRPS, with standard errors, over shared splits of each set.

    ``worse`` marks sets on which ``first`` loses more than 0.02 nats or 2 % of RMSE beyond two standard errors.
    """
    wide = rows.pivot_table(index=["dataset", "split"], columns="method", values=list(SCORES))
    shared = wide.loc[:, (slice(None), [first, second])].dropna()
    nll = shared["nll"][first] - shared["nll"][second]
    ratios = {name: np.log(shared[name][first] / shared[name][second]) for name in ("rmse", "crps")}
    table = {}
    for name, values in {"nll": nll, **ratios}.items():
        groups = values.groupby(level="dataset")
        table[name], table[f"{name} se"] = groups.mean(), groups.sem()
    found = pd.DataFrame(table).assign(splits=nll.groupby(level="dataset").size())
    is_worse = (found["nll"] - 2 * found["nll se"] > 0.02) | (found["rmse"] - 2 * found["rmse se"] > np.log(1.02))
    found["worse"] = np.where(is_worse, "worse", "")
    found.loc["median"] = found[[*SCORES]].median()
    return found.round(3)


def report(path: Path) -> None:
    """Print the tables of the runs that the file holds."""
    rows = pd.DataFrame([row for row in read(path, "method") if "error" not in row])
    if rows.empty:
        return
    print("means (standard errors over splits)", means(rows).to_string(), ranks(rows).to_string(), sep="\n\n")
    for first, second in BESIDE.items():
        if {first, second} <= set(rows["method"]):
            print(f"\n{first} beside {second}: NLL minus, log ratios of RMSE and CRPS")
            print(beside(rows, first, second).to_string())


def main() -> None:
    """Make the runs that the file lacks and print the tables."""
    out = Path("results/held_aside.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument(
        "--group",
        choices=GROUPS,
        help="group of methods to run; zoo, gpytorch, baselines, exact and vecchia if not given",
    )
    parser.add_argument("--methods", help="methods to run, with commas between; all of the group if not given")
    parser.add_argument("--only", help="data sets to run, with commas between; all if not given")
    parser.add_argument("--splits", type=int, default=SPLITS, help=f"splits of each set at most; {SPLITS} if not given")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    if not arguments.table:
        require_data(arguments)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        for name in [arguments.group] if arguments.group else [name for name in GROUPS if name not in RARE]:
            carry_out(GROUPS[name], arguments)
    report(arguments.out)


if __name__ == "__main__":
    main()
