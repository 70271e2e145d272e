"""Accuracy of ``svgp`` and ``dsvi`` beside GPyTorch on the same splits: test NLL of the full mixture and RMSE, standardised targets.

``python -m benchmarks.studies.accuracy_beside_gpytorch --data FOLDER [--out FILE] [--only DATA,METHOD,LIBRARY] [--table]``

Makes the runs that FILE (one JSON line a run) lacks and prints the table. The folder holds ``energy.npz`` and so on, with ``X``, ``y``, ``splits``.
Environment variable ``PYRO_DGP_DATA`` is the default of ``--data``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.common.data import add_data_option, require_data
from benchmarks.common.records import Record, agrees, append, read
from pyro_dgp import ELBO, InducingPoints, MonteCarlo, Variational, predict
from pyro_dgp.data.reading import load
from pyro_dgp.data.splitting import Split, split
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.training.loop import fit


@dataclass(frozen=True)
class Sizes:
    """Settings that both libraries share."""

    inducing: int = 128
    width: int = 5
    samples: int = 10
    batch_size: int = 100
    steps: int = 2000
    learning_rate: float = 0.02


SIZES = Sizes()
LAYERS = {"svgp": 1, "dsvi": 2}
#: Data set, split and seed of each run.
RUNS = [(d, 0, seed) for seed in range(3) for d in ("energy", "yacht", "concrete", "kin8nm")] + [
    (d, k, seed) for seed in range(3) for k in range(1, 5) for d in ("energy", "yacht")
]


def fit_ours(layers: int, part: Split, sizes: Sizes, seed: int) -> tuple[Tensor, Tensor]:
    """Train this library; return predictive means and log densities of the test rows."""
    x, y = part.x_train, part.y_train
    model = DeepGP(x, layers, sizes.width)
    guide = Variational(model, InducingPoints(min(sizes.inducing, len(x))), MonteCarlo(sizes.samples))
    guide.initialize(x, y)
    fit(
        ELBO(num_data=len(x))(model, guide),
        x,
        y,
        steps=sizes.steps,
        batch_size=sizes.batch_size,
        learning_rate=sizes.learning_rate,
        seed=seed,
    )
    p = predict(guide, part.x_test)
    return p.mean, p.log_prob(part.y_test)


def fit_theirs(layers: int, part: Split, sizes: Sizes, seed: int) -> tuple[Tensor, Tensor]:
    """Train GPyTorch; return predictive means and log densities of the test rows."""
    from benchmarks.common.gpytorch_models import PeerDeepGP, Trainer, mixture

    x, y = part.x_train, part.y_train
    model = PeerDeepGP(x, layers=layers, width=sizes.width, inducing=sizes.inducing)
    trainer = Trainer(
        model,
        x,
        y,
        steps=sizes.steps,
        batch_size=sizes.batch_size,
        samples=sizes.samples,
        rate=sizes.learning_rate,
    )
    for _ in range(sizes.steps):
        trainer.step()
    mean, variance = mixture(model, part.x_test)
    log_prob = torch.distributions.Normal(mean, variance.sqrt()).log_prob(part.y_test)
    return mean.mean(0), torch.logsumexp(log_prob, 0) - np.log(len(mean))


LIBRARIES: dict[str, Callable[[int, Split, Sizes, int], tuple[Tensor, Tensor]]] = {
    "pyro_dgp": fit_ours,
    "gpytorch": fit_theirs,
}


def run(key: Record, folder: Path, sizes: Sizes) -> Record:
    """Train and score once.

    :param key: names the run: ``library``, ``method``, ``dataset``, ``split``, ``seed``.
    """
    part = split(load(folder / f"{key['dataset']}.npz"), key["split"])
    torch.manual_seed(key["seed"])
    start = time.perf_counter()
    mean, log_prob = LIBRARIES[key["library"]](LAYERS[key["method"]], part, sizes, key["seed"])
    return {
        **key,
        "nll": -float(log_prob.mean()),
        "rmse": float((mean - part.y_test).square().mean().sqrt()),
        "seconds": time.perf_counter() - start,
        **asdict(sizes),
    }


def table(path: Path) -> str:
    """Return means of both libraries by data set and method, and their paired differences."""
    rows = pd.DataFrame(read(path, "library"))
    wide = rows.pivot_table(index=["dataset", "method"], columns="library", values=["nll", "rmse", "seconds"])
    both = rows.groupby(["dataset", "method"]).apply(_paired, include_groups=False)
    return wide.join(both, how="left").round(4).to_string()


def _paired(group: pd.DataFrame) -> pd.Series:
    wide = group.pivot_table(index=["split", "seed"], columns="library", values=["nll", "rmse"]).dropna()
    if wide.empty or wide.columns.size < 4:
        return pd.Series({("pairs", ""): 0, ("nll difference", ""): np.nan, ("rmse ratio", ""): np.nan})
    difference = wide["nll"]["pyro_dgp"] - wide["nll"]["gpytorch"]
    ratio = wide["rmse"]["pyro_dgp"].mean() / wide["rmse"]["gpytorch"].mean()
    return pd.Series({("pairs", ""): len(wide), ("nll difference", ""): difference.mean(), ("rmse ratio", ""): ratio})


def keys(quick: bool, only: str) -> list[Record]:
    """List the runs that are asked for.

    :param only: ``DATA,METHOD,LIBRARY``; an empty part means all.
    """
    runs = [("yacht", 0, 0)] if quick else RUNS
    asked = dict(zip(("dataset", "method", "library"), only.split(","), strict=True))
    found = [
        {"library": library, "method": method, "dataset": dataset, "split": number, "seed": seed}
        for (dataset, number, seed), library, method in itertools.product(runs, LIBRARIES, LAYERS)
    ]
    return [key for key in found if all(not value or key[name] == value for name, value in asked.items())]


def main() -> None:
    """Make the runs that the file lacks and print the table."""
    out = Path("results/accuracy_beside_gpytorch.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--only", help="DATA,METHOD,LIBRARY to run alone; an empty part means all", default=",,")
    parser.add_argument("--quick", action="store_true", help="20 steps on yacht: shows that it runs, not a result")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if not arguments.table:
        require_data(arguments)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(arguments.threads)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    sizes = replace(SIZES, steps=20) if arguments.quick else SIZES
    for key in [] if arguments.table else keys(arguments.quick, arguments.only):
        if any(agrees(row, key) for row in read(arguments.out, "library")):
            continue
        row = run(key, arguments.data, sizes)
        append(arguments.out, row)
        print(json.dumps(row), flush=True)
    print(table(arguments.out))


if __name__ == "__main__":
    main()
