"""Print the contract table: ``python -m tests.contract [--out FILE] [--page docs/contract.md]``.

Runs every model with every inference, some 850 pairs in half an hour on one core, and prints each with its distance from the known answer
or the sentence that refuses it. Pairs that FILE (one JSON line each) has already are not run again. ``--page`` writes the table into the
page of the documentation.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import Counter
from pathlib import Path

import torch

from tests.contract.inferences import INFERENCES
from tests.contract.table import CASES, outcome, pairs

START, END = "<!-- table -->\n", "<!-- end of table -->\n"


def cell(row: dict[str, object]) -> str:
    """A cell of the table: the distance in nats, or a dash for a refusal."""
    return "-" if row["distance"] is None else f"{row['distance']:.2g}"


def table(rows: list[dict[str, object]]) -> str:
    """The table of all pairs, with the counts above it and the sentences of the refusals below."""
    by_pair = {(row["model"], row["inference"]): row for row in rows}
    refused = [row for row in rows if row["distance"] is None]
    text = (
        f"{len(CASES)} models, {len(INFERENCES)} inferences: {len(rows) - len(refused)} pairs run, {len(refused)} are refused in a "
        f"sentence, {sum(bool(row['failure']) for row in rows)} break the contract.\n\n"
    )
    text += "| model | " + " | ".join(INFERENCES) + " |\n|---|" + "---|" * len(INFERENCES) + "\n"
    for name, case in CASES.items():
        cells = [cell(by_pair[name, inference]) for inference in INFERENCES]
        text += f"| {name}: {case.what} | " + " | ".join(cells) + " |\n"
    text += "\nSentences of the refusals, with the number of models:\n\n"
    sentences = Counter((row["inference"], str(row["declared"])) for row in refused)
    for (inference, sentence), count in sentences.items():
        text += f'- {inference}, {count}: "... {sentence} ..."\n'
    return text


def main() -> None:
    """Run the pairs that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/contract.jsonl"))
    parser.add_argument("--page", type=Path, help="write the table into this page, between its marks")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    logging.getLogger("pyro_dgp").setLevel(logging.ERROR)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {(row["model"], row["inference"]): row for row in map(json.loads, lines)}
    for name, inference in pairs():
        if (name, inference) not in done:
            done[name, inference] = record(name, inference)
            with arguments.out.open("a") as file:
                file.write(json.dumps(done[name, inference]) + "\n")
    text = table([done[pair] for pair in pairs()])
    print(text)
    if arguments.page is not None:
        page = arguments.page.read_text()
        before, after = page.split(START)[0], page.split(END)[1]
        arguments.page.write_text(before + START + text + END + after)


def record(name: str, inference: str) -> dict[str, object]:
    """Run one pair and return its line of the file."""
    from tests.contract.table import SENTENCES

    found = outcome(name, inference)
    return {
        "model": name,
        "inference": inference,
        "distance": None if found.distance is None else round(found.distance, 5),
        "bound": None if found.bound is None else round(found.bound, 4),
        "declared": SENTENCES.get((name, inference), ""),
        "sentence": found.sentence,
        "failure": found.failure,
    }


if __name__ == "__main__":
    main()
