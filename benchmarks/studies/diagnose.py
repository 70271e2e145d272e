"""Does ``diagnose`` find pitfalls that were planted, and is it silent on sound fits?

``python -m benchmarks.studies.diagnose [--planted 100] [--sound 100] [--first SEED] [--out FILE] [--table]``

Small fits, N from 20 to 300, by seed: each of nine pitfalls made on purpose, and eight kinds of sound fits. A planted failure is found if its
own page is among those named; any finding on a sound fit is a false alarm.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from pathlib import Path

import pyro
import torch

from benchmarks.common import records
from benchmarks.common.planted_fits import PLANTED, SOUND
from pyro_dgp import diagnose


def run(experiment: str, seed: int) -> records.Record:
    """Make one fit and diagnose it."""
    makers = PLANTED if experiment == "planted" else SOUND
    make = makers[seed % len(makers)]
    torch.manual_seed(seed)
    pyro.clear_param_store()
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of inputs and targets in raw units, which are planted
        try:
            case = make(seed)
        except (
            ValueError
        ) as error:  # a sampler that left the support of a prior, or training that stopped: no fit to diagnose
            return {
                "experiment": experiment,
                "kind": make.__name__,
                "seed": seed,
                "failure": str(error).splitlines()[0],
            }
        made = time.perf_counter()
        diagnosis = diagnose(*case)
    page = f"docs/pitfalls/{make.__name__.replace('_', '-')}.md"
    return {
        "experiment": experiment,
        "kind": make.__name__,
        "seed": seed,
        "symptoms": [finding.symptom for finding in diagnosis],
        "is_named": page in diagnosis.pages,
        "fit_seconds": round(made - start, 2),
        "diagnose_seconds": round(time.perf_counter() - made, 2),
    }


def table(rows: list[records.Record]) -> str:
    """Counts by kind."""
    lines = ["| fits | kind | fits | found | pages beside it |", "|---|---|---|---|---|"]
    for experiment, makers in (("planted", PLANTED), ("sound", SOUND)):
        total, hits = 0, 0
        rows = [row for row in rows if "failure" not in row]
        for make in makers:
            own = [row for row in rows if row["experiment"] == experiment and row["kind"] == make.__name__]
            if not own:
                continue
            named = sum(row["is_named"] if experiment == "planted" else bool(row["symptoms"]) for row in own)
            seen = Counter(symptom for row in own for symptom in row["symptoms"])
            said = ", ".join(f"{name} {count}" for name, count in seen.items())
            lines.append(f"| {experiment} | {make.__name__} | {len(own)} | {named} | {said} |")
            total, hits = total + len(own), hits + named
        lines.append(f"| {experiment} | all | {total} | {hits} | |")
    return "\n".join(lines)


def main() -> None:
    """Make the fits that the file lacks, and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--planted", type=int, default=100)
    parser.add_argument("--sound", type=int, default=100)
    parser.add_argument("--first", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("diagnose.jsonl"))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    rows = records.read(arguments.out)
    done = {(row["experiment"], row["seed"]) for row in rows}
    for experiment, count in (("planted", arguments.planted), ("sound", arguments.sound)):
        for seed in range(arguments.first, arguments.first + count):
            if arguments.table or (experiment, seed) in done:
                continue
            with pyro.settings.context(module_local_params=True):
                row = run(experiment, seed)
            records.append(arguments.out, row)
            rows.append(row)
            print(*row.values(), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
