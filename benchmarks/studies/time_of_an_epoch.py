"""Seconds of an epoch of training and of one of testing, by data set: Table 4 of Meng and Zhang 2024.

``python -m benchmarks.studies.time_of_an_epoch [--only Kin8nm,Bike] [--threads 1] [--quick] [--json FILE]``

The three deep models of the paper with its own settings (the preset ``meng2024``: three layers of widths 16 and 4, S 32, batches of 100 rows, of 500 for
the two largest sets), at the numbers of rows and inputs that it prints. Times do not depend on values, so inputs are standard normal. Steps of the three
models alternate, and so do their predictions of one batch; an epoch is the median of each times the number of batches: of eight tenths of the rows in
training, as in the paper, and of all rows in testing, whose rows the paper does not state.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.common.records import Record
from benchmarks.common.timing import Data, Step, alternate, library_step, toy
from pyro_dgp import PRESETS, Variational, module_local_parameters, predict
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.presets import methods_of

#: Rows, inputs and rows of a batch of each data set (Table 4 and C.1 of the paper).
SETS = {
    "Wine": (6497, 11, 100),
    "Kin8nm": (8192, 8, 100),
    "Kin32nm": (8192, 32, 100),
    "WEC100": (9595, 200, 100),
    "Elevator": (16599, 18, 100),
    "Bike": (17379, 12, 100),
    "Conductor": (21263, 81, 100),
    "Protein": (45730, 9, 100),
    "KeggD": (53413, 19, 100),
    "CTSlice": (53500, 379, 100),
    "WEC49": (54007, 98, 100),
    "KeggU": (64608, 26, 100),
    "Song": (515345, 90, 500),
    "Buzz": (583250, 77, 500),
}
METHODS = ("dsvi", "dspp", "avdgp-ar2p")
PRESET = PRESETS["meng2024"]
#: Rows that the inducing points begin at, which are far fewer than those of the larger sets: a step does not depend on their number.
ROWS = 2000


def guide(name: str, data: Data) -> tuple[Variational, ByGuide]:
    """Return the untrained guide of a method of the paper, and its inference."""
    method, settings = methods_of(PRESET.settings.preset)[name], PRESET.settings
    assert isinstance(method.inference, ByGuide)
    model = method.architecture.build(data[0], settings)
    return method.inference.guide(model, data[0], settings), method.inference


def training(name: str, data: Data, batch: int) -> tuple[Step, Step]:
    """Return a step of training on the first rows, and a function that scores as many: mean NLL of the predictive mixture."""
    made, inference = guide(name, data)
    loss = inference.made_loss(replace(PRESET.settings, beta=0.05), len(data[0]))
    step = library_step(loss, made, data, batch=batch)
    x, y = data[0][:batch], data[1][:batch]

    def test() -> None:
        with torch.no_grad(), module_local_parameters():
            predict(made, x, PRESET.settings.samples).log_prob(y).mean()

    return step, test


def measure(name: str, *, repeats: int) -> list[Record]:
    """Time the three methods on one data set: seconds of an epoch of each."""
    rows, inputs, batch = SETS[name]
    torch.manual_seed(0)
    data = toy(ROWS, inputs)
    pairs = {method: training(method, data, batch) for method in METHODS}
    train, _ = alternate({method: pair[0] for method, pair in pairs.items()}, repeats, warm_up=2)
    test, _ = alternate({method: pair[1] for method, pair in pairs.items()}, repeats, warm_up=1)
    steps, batches = -(-round(0.8 * rows) // batch), -(-rows // batch)
    return [
        {
            "dataset": name,
            "rows": rows,
            "inputs": inputs,
            "batch": batch,
            "method": method,
            "threads": torch.get_num_threads(),
            "train_seconds": steps * float(train[method].median()),
            "test_seconds": batches * float(test[method].median()),
        }
        for method in METHODS
    ]


def table(rows: list[Record]) -> str:
    """Return the rows as a table in Markdown: training and testing of each method."""
    lines = [
        "| data | rows | inputs | " + " | ".join(f"{part}, `{m}`" for part in ("train", "test") for m in METHODS) + " |"
    ]
    lines.append("|---" * (3 + 2 * len(METHODS)) + "|")
    for name in dict.fromkeys(row["dataset"] for row in rows):
        own = {row["method"]: row for row in rows if row["dataset"] == name}
        cells = [f"{own[m][f'{part}_seconds']:.2f}" for part in ("train", "test") for m in METHODS]
        lines.append(
            f"| {name} | {own[METHODS[0]]['rows']:,} | {own[METHODS[0]]['inputs']} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


def main() -> None:
    """Time the sets and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(SETS), help="data sets, with commas between; all if not given")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--quick", action="store_true", help="two repeats: shows that it runs")
    parser.add_argument("--json", type=Path, help="file for the times")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(arguments.threads)
    rows = [row for name in arguments.only.split(",") for row in measure(name, repeats=2 if arguments.quick else 15)]
    print(table(rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
