"""Advice on data sets that nothing was chosen on: its regret beside the best of the named methods, and what it costs.

``python -m benchmarks.studies.advice --data FOLDER [--out FILE] [--fits FILES] [--group first|second|third|fourth] [--named] [--only D,E] [--table]``

Asks :func:`pyro_dgp.advise` for advice on the sets of ``held_aside``, the first split of each. Makes what FILE (one JSON line a set) lacks. The named methods are those in the files of ``--fits``: regret
is the NLL of test rows by the advised fit minus the lowest of these methods, and cost the time of advice as a share of the time that all of them take.

``--group first`` takes six other sets, some of which had been seen when the rules of advice were made, ``--group second`` seven and ``--group third`` four, which today's rules were made on, and ``--group
fourth`` eight that had not been seen. ``--named`` fits the named methods to them, into
the last file of ``--fits``. Where both advice and fits have their seconds of processor time, these make the cost, which does not depend on what else the machine did.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection
from pathlib import Path

import pandas as pd

from benchmarks.common.data import add_data_option, require_data
from benchmarks.common.held_aside_sets import FOR_ADVICE_ALONE, LARGE, MEDIUM, SMALL, dataset
from benchmarks.common.records import Record, append, read
from pyro_dgp import advise
from pyro_dgp.comparison.sweep import sweep
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.splitting import held_out_rows
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings

#: Methods that the best is taken from, in the order of the table.
NAMED = (
    "exact-gp",
    "vecchia-gp",
    "svgp",
    "sgpr",
    "ppgpr",
    "dsvi",
    "dsvi-collapsed",
    "gamma-dgp",
    "aep",
    "dspp",
    "avdgp-ar2p",
    "avdgp-ar2pp",
)


def advised(data: Dataset, settings: Settings) -> Record:
    """Ask for advice, and tell what it names."""
    start, processor = time.perf_counter(), time.process_time()
    found = advise(data, settings=settings, say=lambda line: print(line, flush=True))
    return {
        "dataset": data.name,
        "split": settings.split,
        "advised": found.method,
        "options": found.options,
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor,
        "candidates": list(found.rows),
        "reasons": list(found.reasons),
    }


def fit_named(sets: dict[str, int], folder: Path | None, out: Path) -> None:
    """Fit the named methods to the first split of each set, those that the file lacks; the exact GP where it takes that many rows."""
    done = {(fit["dataset"], fit["split"], fit["method"]) for fit in read(out, "method")}
    for name, split in sets.items():
        data = dataset(name, folder)
        rows = int((~held_out_rows(data, split)).sum())
        for method in NAMED:
            most = METHODS[method].inference.most_rows(Settings())
            if (name, split, method) in done or (most is not None and rows > most):
                continue
            processor = time.process_time()
            (row,) = sweep([data], [method], splits=[split], settings=Settings())
            if "error" not in row:
                append(out, row | {"processor_seconds": time.process_time() - processor})
            print(f"{name}, {method}: {row.get('error') or round(row['nll'], 3)}", flush=True)


def regrets(rows: list[Record], fits: list[Record]) -> pd.DataFrame:
    """Return a row for each set: the advice, its NLL, the lowest of the named methods, regret, and cost as a share of all of their times."""
    table = {}
    for row in rows:
        own = {
            fit["method"]: fit
            for fit in fits
            if (fit["dataset"], fit["split"]) == (row["dataset"], row["split"])
            and fit["method"] in NAMED
            and "error" not in fit
        }
        chosen = own.get(row["advised"])
        if chosen is None:
            continue
        best = min(own.values(), key=lambda fit: float(fit["nll"]))
        table[row["dataset"]] = {
            "advised": row["options"].removeprefix("--methods "),
            "NLL": chosen["nll"],
            "best": best["method"],
            "lowest": best["nll"],
            "regret": chosen["nll"] - best["nll"],
            "seconds": row["seconds"],
            "methods": len(own),
            "cost": _cost(row, list(own.values())),
            **{f"always {name}": own[name]["nll"] - best["nll"] for name in NAMED if name in own},
        }
    return pd.DataFrame(table).T


def _cost(row: Record, fits: list[Record]) -> float:
    """Time of advice as a share of that of the fits: of the processor where all have it, and of the clock otherwise."""
    measure = "processor_seconds" if all("processor_seconds" in each for each in (row, *fits)) else "seconds"
    return float(row[measure]) / sum(float(fit[measure]) for fit in fits)


def report(path: Path, fits: list[Path], sets: Collection[str]) -> None:
    """Print the table of regrets on some sets, and the means over these of advice and of always one method."""
    rows = [row for row in read(path, "advised") if row["dataset"] in sets]
    table = regrets(rows, [fit for each in fits if each.exists() for fit in read(each, "method")])
    left_out = [row["dataset"] for row in rows if row["dataset"] not in table.index]
    if left_out:
        print(f"left out, since the advised fit is missing: {', '.join(left_out)}\n")
    if table.empty:
        return
    columns = [name for name in table if not str(name).startswith("always")]
    print(table[columns].to_string(float_format="{:.3f}".format))
    means = table.drop(columns=["advised", "best"]).astype(float)
    print("\nmean and largest regret over sets (fixed choices: over the sets that the method ran on)")
    kept = [name for name in means if name == "regret" or name.startswith("always")]
    summary = pd.DataFrame({"mean": means[kept].mean(), "largest": means[kept].max(), "sets": means[kept].count()})
    print(summary.to_string(float_format="{:.3f}".format))
    print(f"\nmean cost: {means['cost'].mean():.2f} of the time of the named methods that ran")


def main() -> None:
    """Make what the file lacks and print the tables."""
    out = Path("results/advice.jsonl")
    fits = [Path(f"benchmarks/results/{name}.jsonl") for name in ("held_aside", "advice_fits")]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--out", type=Path, default=out, help=f"file of advice; {out} if not given")
    parser.add_argument(
        "--fits",
        type=Path,
        nargs="+",
        default=fits,
        help=f"files of named methods; {fits[0]} and {fits[1]} if not given",
    )
    parser.add_argument(
        "--group", choices=tuple(FOR_ADVICE_ALONE), help="take sets of this group, in the place of those of held_aside"
    )
    parser.add_argument(
        "--named", action="store_true", help="fit the named methods, which --fits then holds, and do not advise"
    )
    parser.add_argument("--only", help="data sets, with commas between; all if not given")
    parser.add_argument("--table", action="store_true", help="run nothing: report what the files hold")
    arguments = parser.parse_args()
    sets = SMALL | MEDIUM | LARGE if arguments.group is None else FOR_ADVICE_ALONE[arguments.group]
    asked = {name: sets[name] for name in sets if not arguments.only or name in arguments.only.split(",")}
    if not arguments.table:
        require_data(arguments)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        if arguments.named:
            fit_named(asked, arguments.data, arguments.fits[-1])
            return
        done = {row["dataset"] for row in read(arguments.out, "advised")}
        for name, split in asked.items():
            if name not in done:
                append(arguments.out, advised(dataset(name, arguments.data), Settings(split=split)))
    report(arguments.out, arguments.fits, asked)


if __name__ == "__main__":
    main()
