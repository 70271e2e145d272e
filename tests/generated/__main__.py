"""Run generated cases: ``python -m tests.generated --cases 2000 --seed 0 [--case K] [--out FILE]``.

Each case is a random small program, fitted for a few steps and held to what must be true of any. A line of FILE (JSON) is one case, and cases
that it has are not run again. ``--case K`` runs one, with its traceback.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.generated.case import outcome, row
from tests.generated.data import data_of
from tests.generated.program import fitted
from tests.generated.relations import Related
from tests.generated.spec import drawn


def pattern(sentence: str) -> str:
    """A sentence without its numbers and names, by which alike ones are counted together."""
    return re.sub(r"'[^']*'", "'_'", re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", sentence))[:200]


def table(rows: list[dict[str, Any]]) -> str:
    """Counts of the outcomes, and of every distinct failure and refusal."""
    kinds = Counter(row["kind"] for row in rows)
    seconds = sum(row["seconds"] for row in rows)
    text = f"{len(rows)} cases: {kinds['ran']} ran, {kinds['refused']} refused, {kinds['failed']} failed; {seconds:.0f} s\n"
    for kind in ("failed", "refused"):
        found = Counter((row["place"], pattern(row["sentence"])) for row in rows if row["kind"] == kind)
        text += f"\n{kind}\n"
        for (place, sentence), count in found.most_common():
            cases = [row["case"] for row in rows if (row["place"], pattern(row["sentence"])) == (place, sentence)][:4]
            text += f"{count:5d}  {place} {sentence}  e.g. {cases}\n"
    notes = Counter(pattern(note) for row in rows for note in row["notes"])
    text += "\nfigures refused in cases that ran\n"
    return text + "".join(f"{count:5d}  {note}\n" for note, count in notes.most_common())


def main() -> None:
    """Run the cases that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this one alone, and let its error through")
    parser.add_argument("--out", type=Path, default=Path("results/generated.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the table of the file, and run nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("pyro_dgp").setLevel(logging.ERROR)
    if arguments.case is not None:
        alone(arguments.seed, arguments.case)
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {(each["seed"], each["case"]): each for each in map(json.loads, lines)}
    for number in [] if arguments.table else range(arguments.first, arguments.first + arguments.cases):
        if (arguments.seed, number) not in done:
            done[arguments.seed, number] = row(arguments.seed, number)
            with arguments.out.open("a") as file:
                file.write(json.dumps(done[arguments.seed, number]) + "\n")
    print(table([each for each in done.values() if each["seed"] == arguments.seed]))


def alone(seed: int, number: int) -> None:
    """Print the choices of a case and run it outside of the harness."""
    spec = drawn(seed, number)
    print(spec)
    print(outcome(spec))
    torch.set_default_dtype(getattr(torch, spec.ambient))
    data = data_of(spec)
    Related(spec, data, fitted(spec, data)).run()


if __name__ == "__main__":
    main()
