"""Vecchia approximations on long data: cost of a gradient by rows, closeness to the exact prior, accuracy beside dgpsi in equal time.

``python -m benchmarks.studies.long_data cost|closeness|accuracy [--data FOLDER] [--only SETS] [--out FILE] [--figure FILE] [--table]``

``cost`` times the gradient of the whitened posterior density of a deep GP of two layers (width 2, three inputs, 30 neighbours, one thread), and of the exact
one while that is short. ``closeness`` draws function values at 300 rows from the exact prior and compares the log densities: of one layer, and of the
top layer of two at drawn hidden values. ``accuracy`` needs an environment with ``pip install dgpsi``: dgpsi with its Vecchia approximation (25 neighbours,
100 iterations, 10 imputations, width 3, Matern 5/2), then ``vecchia-ess`` with the same width, kernel and neighbours for the same time: learning of
the hyperparameters by ``dsvi``, and as many sweeps as there is time for, half of them thrown away. Makes the runs that FILE (one JSON line a run) lacks and prints the tables.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pyro
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.common.data import add_data_option, read_data, require_data
from benchmarks.common.dgpsi_model import ByDgpsi
from benchmarks.common.records import Record, append, read
from pyro_dgp import (
    RBF,
    DeepGP,
    EllipticalSlice,
    GaussianProcess,
    GuideMean,
    Matern32,
    Matern52,
    NeighborSearch,
    VecchiaPrior,
    predict,
    run_chains,
    scores,
    vecchia,
    whitened,
)
from pyro_dgp.data.splitting import Split, split
from pyro_dgp.internal.progress import silent
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.zoo.by_mcmc import LEARNER
from pyro_dgp.zoo.predictors import GuidePredictor
from pyro_dgp.zoo.recipes import deep_learned
from pyro_dgp.zoo.settings import Settings

ROWS = (300, 1000, 3000, 10_000, 30_000, 100_000)
#: Most rows at which the exact density is timed.
MOST_EXACT = 3000
NEIGHBORS = (10, 30, 60)
SETS = ("yacht", "concrete", "energy")
DGPSI_NEIGHBORS, WIDTH = 25, 3
#: Sweeps of the chain that are timed before the run.
TIMED_SWEEPS = 3


def cost(rows: int, prior: str) -> Record:
    """Time one gradient, the median of three after the first."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    x, y = torch.rand(rows, 3), torch.randn(rows)
    model = DeepGP(x, layers=2, width=2)
    start = time.perf_counter()
    density = WhitenedDensity(whitened(model if prior == "exact" else vecchia(model)), (x, y), {})
    point, times = density.unconstrained_start(), [time.perf_counter() - start]
    for _ in range(4):
        leaves = {name: (0.1 * torch.randn_like(value)).requires_grad_() for name, value in point.items()}
        start = time.perf_counter()
        torch.autograd.grad(density.potential(leaves), list(leaves.values()))
        times.append(time.perf_counter() - start)
    return {"seconds": median(times[2:]), "first_seconds": times[0] + times[1]}


def closeness(kernel: str, inputs: int, layers: int, neighbors: int) -> Record:
    """Compare log densities of five draws of function values at 300 rows, nats a row."""
    pyro.set_rng_seed(0)
    made = {"rbf": RBF, "matern52": Matern52, "matern32": Matern32}[kernel]
    x, found = 2 * torch.rand(300, inputs) - 1, []
    for seed in range(5):
        hidden = x
        if layers == 2:
            below = GaussianProcess(made(lengthscale=1.0), num_outputs=inputs)(x)
            hidden = x + below.rsample().detach()
        exact = GaussianProcess(made(lengthscale=1.0))(hidden)
        f = exact.rsample().detach()
        approximate = VecchiaPrior(exact, NeighborSearch(neighbors, seed))
        found.append((approximate.log_prob(f) - exact.log_prob(f)).item() / len(x))
    return {"difference": float(np.mean(found)), "largest": float(np.abs(found).max())}


def accuracy(data: Split, method: str, seconds: float | None) -> Record:
    """Fit by dgpsi, or by this library in the time that dgpsi has taken; scores of the test rows."""
    settings = Settings(width=WIDTH, kernel="matern52")
    x, y = data.x_train, data.y_train
    pyro.set_rng_seed(0)
    start, model = time.perf_counter(), deep_learned(x, settings)
    if method == "dgpsi":
        predicted = ByDgpsi(DGPSI_NEIGHBORS).run(model, x, y, settings=settings, progress=silent).predict
        figures = {}
    else:
        assert seconds is not None
        learned = LEARNER.run(model, x, y, settings=settings, progress=silent)
        assert isinstance(learned.predict, GuidePredictor)
        approximate = whitened(vecchia(model, num_neighbors=DGPSI_NEIGHBORS))
        kernel = EllipticalSlice(approximate, start=GuideMean(learned.predict.guide))
        began = time.perf_counter()
        run_chains(kernel, (x, y), num_samples=1, warmup_steps=TIMED_SWEEPS - 1, num_chains=1)
        a_sweep = (time.perf_counter() - began) / TIMED_SWEEPS
        left = seconds - (time.perf_counter() - start)
        half = max(2, int(0.45 * left / a_sweep))
        chains = run_chains(kernel, (x, y), num_samples=half, warmup_steps=half, num_chains=1)
        figures = {"sweeps": 2 * half, "learning_seconds": learned.seconds, "learned": _scores(learned.predict, data)}

        def predicted(new: torch.Tensor) -> Any:
            return predict(chains, new, num_samples=half)

    result = _scores(predicted, data)
    return result | {"seconds": time.perf_counter() - start, "n_train": len(x)} | figures


def _scores(predicted: Any, data: Split) -> Record:
    return {name: float(value) for name, value in scores(predicted(data.x_test), data.y_test).items()}


def _wanted(experiment: str, only: list[str] | None) -> list[Record]:
    if experiment == "cost":
        exact = [{"rows": rows, "prior": "exact"} for rows in ROWS if rows <= MOST_EXACT]
        return exact + [{"rows": rows, "prior": "vecchia"} for rows in ROWS]
    if experiment == "closeness":
        grid = [
            (k, d, layers, m)
            for layers in (1, 2)
            for k in ("matern32", "matern52", "rbf")
            for d in (1, 2, 5)
            for m in NEIGHBORS
        ]
        return [dict(zip(("kernel", "inputs", "layers", "neighbors"), each, strict=True)) for each in grid]
    return [{"dataset": name, "method": method} for name in only or SETS for method in ("dgpsi", "vecchia-ess")]


def _made(experiment: str, key: Record, rows: list[Record], data: Path | None) -> Record:
    if experiment == "cost":
        return cost(**key)
    if experiment == "closeness":
        return closeness(**key)
    before = [row["seconds"] for row in rows if row.get("dataset") == key["dataset"] and row.get("method") == "dgpsi"]
    return accuracy(split(read_data(key["dataset"], data), 0), key["method"], before[0] if before else None)


def report(experiment: str, rows: list[Record], figure: Path | None) -> None:
    """Print the table of an experiment, with the exponent of the cost, and draw that."""
    table = pd.DataFrame([row for row in rows if row["experiment"] == experiment])
    if table.empty:
        return
    print(table.drop(columns=["experiment", "learned"], errors="ignore").to_string(index=False))
    if experiment != "cost":
        return
    own = table[(table["prior"] == "vecchia") & (table["rows"] >= 1000)]
    print(f"seconds grow as rows to the power {np.polyfit(np.log(own['rows']), np.log(own['seconds']), 1)[0]:.2f}")
    if figure is not None:
        draw(table, figure)


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw seconds by rows."""
    canvas = FigureCanvasAgg(Figure(figsize=(5, 3.5), layout="constrained"))
    axes = canvas.figure.subplots()
    for prior, own in table.groupby("prior"):
        axes.loglog(
            own["rows"], own["seconds"], "o-", label="exact prior" if prior == "exact" else "Vecchia, 30 neighbours"
        )
    axes.set(xlabel="training rows", ylabel="seconds for one gradient")
    axes.legend()
    canvas.figure.savefig(path, dpi=150)


def main() -> None:
    """Make the runs that the file lacks, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("experiment", choices=["cost", "closeness", "accuracy"])
    add_data_option(parser)
    parser.add_argument("--only", help="data sets, with commas between; all if not given")
    parser.add_argument("--out", type=Path, default=Path("results/long_data.jsonl"))
    parser.add_argument("--figure", type=Path, help="file of the figure of the cost")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    if arguments.experiment == "accuracy" and not arguments.table:
        require_data(arguments)
    for key in [] if arguments.table else _wanted(arguments.experiment, arguments.only and arguments.only.split(",")):
        rows = read(arguments.out)
        name = {"experiment": arguments.experiment, **key}
        if not any(all(row.get(k) == v for k, v in name.items()) for row in rows):
            row = name | _made(arguments.experiment, key, rows, arguments.data)
            append(arguments.out, row)
            print(row, flush=True)
    report(arguments.experiment, read(arguments.out), arguments.figure)


if __name__ == "__main__":
    main()
