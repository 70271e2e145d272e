"""``svgp`` and ``dsvi`` beside GPyTorch on real data: test NLL of the full mixture and RMSE, standardised targets.

``python -m benchmarks.peer_gpytorch --data FOLDER --out FILE`` runs what FILE (JSON lines) lacks and prints the table.
The folder holds ``energy.npz`` and so on, with ``X``, ``y``, ``splits``; environment variable ``PYRO_DGP_DATA`` serves too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from pyro_dgp import ELBO, InducingPoints, MonteCarlo, Variational, predict
from pyro_dgp.data.reading import load
from pyro_dgp.data.splitting import split
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.training.loop import fit

SETTINGS = {"inducing": 128, "width": 5, "samples": 10, "batch_size": 100, "steps": 2000, "learning_rate": 0.02}
RUNS = [(d, 0, seed) for seed in range(3) for d in ("energy", "yacht", "concrete", "kin8nm")] + [
    (d, k, seed) for seed in range(3) for k in range(1, 5) for d in ("energy", "yacht")
]


def ours(layers: int, part: object, s: dict[str, float], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = part.x_train, part.y_train
    model = DeepGP(x, layers, s["width"])
    guide = Variational(model, InducingPoints(min(s["inducing"], len(x))), MonteCarlo(s["samples"]))
    guide.initialize(x, y)
    fit(ELBO(num_data=len(x))(model, guide), x, y, s["steps"], s["batch_size"], s["learning_rate"], seed)
    p = predict(guide, part.x_test)
    return p.mean, p.log_prob(part.y_test)


def theirs(layers: int, part: object, s: dict[str, float], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    from benchmarks.peers import PeerDeepGP, Trainer, mixture

    x, y = part.x_train, part.y_train
    model = PeerDeepGP(x, layers, s["width"], s["inducing"])
    trainer = Trainer(model, x, y, s["steps"], s["batch_size"], s["samples"], s["learning_rate"])
    for _ in range(s["steps"]):
        trainer.step()
    mean, variance = mixture(model, part.x_test)
    log_prob = torch.distributions.Normal(mean, variance.sqrt()).log_prob(part.y_test)
    return mean.mean(0), torch.logsumexp(log_prob, 0) - np.log(len(mean))


def run(library: str, method: str, dataset: str, number: int, seed: int, folder: Path, s: dict[str, float]) -> dict:
    part = split(load(folder / f"{dataset}.npz"), number)
    torch.manual_seed(seed)
    start = time.perf_counter()
    layers = 1 if method == "svgp" else 2
    mean, log_prob = (ours if library == "pyro_dgp" else theirs)(layers, part, s, seed)
    return {
        "library": library, "method": method, "dataset": dataset, "split": number, "seed": seed,
        "nll": -float(log_prob.mean()), "rmse": float((mean - part.y_test).square().mean().sqrt()),
        "seconds": time.perf_counter() - start, **s,
    }  # fmt: skip


def table(path: Path) -> str:
    rows = pd.read_json(path, lines=True)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("PYRO_DGP_DATA") or None)
    parser.add_argument("--out", type=Path, default=Path("results/peer_gpytorch.jsonl"))
    parser.add_argument("--only", help="dataset,method,library to run alone; empty parts mean all", default=",,")
    parser.add_argument("--quick", action="store_true", help="20 steps on yacht: shows that it runs, not a result")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.data is None:
        sys.exit("say where the data sets are: --data FOLDER or PYRO_DGP_DATA")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(arguments.threads)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    settings = SETTINGS | ({"steps": 20} if arguments.quick else {})
    runs = [("yacht", 0, 0)] if arguments.quick else RUNS
    want = arguments.only.split(",")
    for dataset, number, seed in runs:
        for library in ("pyro_dgp", "gpytorch"):
            for method in ("svgp", "dsvi"):
                key = {"library": library, "method": method, "dataset": dataset, "split": number, "seed": seed}
                if any(w and w != v for w, v in zip(want, (dataset, method, library), strict=True)) or _done(
                    arguments.out, key
                ):
                    continue
                row = run(library, method, dataset, number, seed, arguments.data, settings)
                with arguments.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    print(table(arguments.out))


def _done(path: Path, key: dict) -> bool:
    if not path.exists():
        return False
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return any(all(row[k] == v for k, v in key.items()) for row in rows)


if __name__ == "__main__":
    main()
