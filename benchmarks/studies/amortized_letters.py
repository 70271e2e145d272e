"""Test error of amortised deep GPs by depth and number of inducing points: is a point inside the letters "DGP" or outside?

``python -m benchmarks.studies.amortized_letters table|wide|ablation|points [--out FILE] [--figures DIR] [--epochs E] [--cells 4x64,...] [--table]``

``table`` repeats Table 2 of Meng and Zhang 2024 (section 6.2), with networks as wide as the smaller of their inputs and outputs, which is 2.
``wide`` is the same with this library's networks, 16 wide. ``ablation`` repeats Fig. 11 there: one layer, with inducing points made by
one network of 1 to 5 hidden layers, or by affine maps. ``points`` is one run of each and keeps the inducing points of some rows, as Fig. 10 draws them.

40,000 points, split 3:2:1 into training, test and validation rows; hidden width 2, isotropic Matern 5/2, zero means, rule AR2P with 32 points,
batch 100, Adam at 0.005. The checkpoint of lowest validation NLL is kept. Resumable, one JSON line a run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.common.models import Stack
from benchmarks.common.records import Record, agrees, append, read
from pyro_dgp import (
    ELBO,
    AffineMaps,
    AmortizedInducingPoints,
    Bernoulli,
    GaussianProcess,
    Matern52,
    OneNetwork,
    SigmaPoints,
    Validation,
    Variational,
    WithMean,
    fit_validated,
    module_local_parameters,
    predict,
)
from pyro_dgp.data.letters import describe_letters, letters

PROPORTIONS = {1: (1,), 2: (1, 1), 3: (2, 1, 1), 4: (4, 2, 1, 1)}
SIZES = (16, 32, 64)
TABLES = {"table": AffineMaps(narrowest=1), "wide": AffineMaps()}
#: Rows whose inducing points ``points`` keeps.
DRAWN = 150
CORNERS = {(2, 16), (2, 64), (4, 16), (4, 64)}
PUBLISHED = {  # mean and standard deviation over 5 runs, percent
    (1, 16): (10.41, 1.54), (2, 16): (8.02, 0.70), (3, 16): (4.51, 1.13), (4, 16): (4.94, 1.69),
    (1, 32): (7.63, 1.43), (2, 32): (4.40, 1.25), (3, 32): (4.14, 0.68), (4, 32): (2.59, 0.27),
    (1, 64): (6.81, 1.74), (2, 64): (3.10, 0.48), (3, 64): (2.59, 0.44), (4, 64): (1.86, 0.28),
}  # fmt: skip


class Classifier(Stack):
    """Deep GP with zero means and hidden layers of width 2, under a probit Bernoulli likelihood."""

    def __init__(self, layers: int, width: int = 2) -> None:
        hidden = [GaussianProcess(Matern52(lengthscale=width**0.5), num_outputs=width) for _ in range(layers - 1)]
        super().__init__(hidden, GaussianProcess(Matern52(lengthscale=width**0.5)), Bernoulli())


def split_points(layers: int, total: int) -> list[int]:
    """Return the number of inducing points of each layer."""
    parts = PROPORTIONS[layers]
    return [total * part // sum(parts) for part in parts]


def families(layers: int, total: int, recipe: AffineMaps | OneNetwork) -> dict[str, AmortizedInducingPoints]:
    """Return the inducing points of each site, with a diagonal q in deep models and a full one for one layer."""
    sites = [f"h{number}" for number in range(1, layers)] + ["y"]
    covariance = "full" if layers == 1 else "diagonal"
    return {
        site: AmortizedInducingPoints(size, recipe, covariance)
        for site, size in zip(sites, split_points(layers, total), strict=True)
    }


def train(
    layers: int, total: int, recipe: AffineMaps | OneNetwork, *, seed: int, epochs: int, rows: int, drawn: int = 0
) -> Record:
    """Train and test once: test error in percent, and the spread of the learned inducing points of rows.

    :param drawn: number of test rows whose inducing points are kept too.
    """
    data = letters(rows)
    assert data.splits is not None
    test = data.splits[:, 0]
    centre, scale = data.x[~test].mean(0), data.x[~test].std(0)
    inputs, targets = (torch.as_tensor(v).to(torch.get_default_dtype()) for v in ((data.x - centre) / scale, data.y))
    x, y, x_test, y_test = inputs[~test], targets[~test], inputs[test], targets[test]
    torch.manual_seed(seed)
    model = Classifier(layers)
    guide = Variational(model, families(layers, total, recipe), WithMean(SigmaPoints("qr3", 32)))
    start = time.perf_counter()
    validation = Validation(share=0.25, betas=(1.0,), folds=1)
    with module_local_parameters(guide, model):
        steps = epochs * -(-round(0.75 * len(x)) // 100)
        result = fit_validated(
            guide,
            lambda beta, count: ELBO(count),
            x,
            y,
            steps=steps,
            batch_size=100,
            learning_rate=0.005,
            seed=seed,
            validation=validation,
            split=seed,
        )
        with torch.no_grad():
            error = float(((predict(guide, x_test).mean > 0.5) != (y_test > 0.5)).double().mean())
            first = next(iter(guide.processes._modules.values()))
            z, *_ = first.functions(x_test[:1000])
    return {
        "error": 100 * error,
        "spread": float(spread(z)),
        "n_train": result.rows,
        "n_test": len(x_test),
        "steps": result.steps,
        "best_step": result.best_step,
        "validation_nll": result.validation_nll,
        "seconds": time.perf_counter() - start,
    } | ({"points_of_rows": z[:drawn].double().mul(1000).round().div(1000).tolist()} if drawn else {})


def spread(z: Tensor) -> Tensor:
    """Return the smaller over the larger standard deviation of all inducing points ``(N, M, 2)`` along their principal axes.

    It is 0 if the points of all rows lie on one line.
    """
    points = z.flatten(0, 1)
    lengths = torch.linalg.svdvals(points - points.mean(0))
    return lengths[-1] / lengths[0]


def runs(experiment: str) -> list[tuple[dict, AffineMaps | OneNetwork]]:
    """List the runs of an experiment: what names a run in the file, and how its inducing points are made."""
    if experiment in TABLES:
        cells = [(layers, total) for total in SIZES for layers in PROPORTIONS]
        counts = {cell: 5 if cell in CORNERS else 2 for cell in cells}
        return [
            ({"layers": layers, "inducing": total, "points": "affine", "seed": seed}, TABLES[experiment])
            for seed in range(5)
            for layers, total in cells
            if seed < counts[layers, total]
        ]
    seeds = (1,) if experiment == "points" else range(3)
    recipes = {f"network-{depth}": OneNetwork(depth, narrowest=1) for depth in range(1, 6)}
    return [
        ({"layers": 1, "inducing": 8, "points": name, "seed": seed}, recipe)
        for seed in seeds
        for name, recipe in ({"affine": TABLES["table"]} | recipes).items()
    ]


def report(run: dict, rows: list[dict], figures: Path | None) -> None:
    """Print the table, and draw it: runs with the values of ``run``, with published numbers where there are any."""
    experiment = run["experiment"]
    print(json.dumps(describe_letters()))
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        if agrees(row, run):
            groups.setdefault((row["layers"], row["inducing"], row["points"]), []).append(row)
    for (layers, total, points), found in sorted(groups.items()):
        errors, spreads = (np.array([row[name] for row in found]) for name in ("error", "spread"))
        known = PUBLISHED.get((layers, total)) if points == "affine" else None
        beside = f"  published {known[0]} ({known[1]})" if known and experiment in TABLES else ""
        deviation = errors.std(ddof=min(1, len(errors) - 1))
        print(
            f"{layers} layer{'s' * (layers > 1)}, {total} points, {points}: error {errors.mean():.2f} % (sd {deviation:.2f}, "
            f"{len(errors)} runs), spread {spreads.mean():.3f}{beside}"
        )
    if figures is not None and groups:
        figures.mkdir(parents=True, exist_ok=True)
        path = figures / f"letters-{experiment}.png"
        if experiment == "points":
            draw_points([row for found in groups.values() for row in found], path)
        else:
            draw(experiment, groups, path)


def draw(experiment: str, groups: dict[tuple, list[dict]], path: Path) -> None:
    """Draw the error of every run, by depth and size or by the kind of inference function."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    names = sorted(groups)
    labels = [f"{t} points\n{k} layer{'s' * (k > 1)}" if experiment in TABLES else p for k, t, p in names]
    for position, name in enumerate(names):
        values = [row["error"] for row in groups[name]]
        axis.plot([position] * len(values), values, "o", color=f"C{name[0] - 1}", ms=4, alpha=0.7)
        axis.plot([position - 0.25, position + 0.25], [np.mean(values)] * 2, color=f"C{name[0] - 1}")
        if experiment in TABLES:
            mean, deviation = PUBLISHED[name[:2]]
            axis.errorbar(position + 0.3, mean, deviation, fmt="_", color="gray", capsize=2)
    axis.set_xticks(range(len(names)), labels, fontsize=7)
    axis.set_ylabel("test error, percent")
    axis.set_title(
        "each point a run, bars their means" + ("; gray: published" if experiment in TABLES else ""), fontsize=9
    )
    figure.savefig(path, dpi=120)


def draw_points(rows: list[dict], path: Path) -> None:
    """Draw the inducing points of rows, a colour for each of the 8, in one panel a run: a line where the points have lost a dimension."""
    lines = -(-len(rows) // 3)
    figure = Figure(figsize=(9, 3.2 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, 3, squeeze=False).ravel()
    for axis, row in zip(panels, sorted(rows, key=lambda row: str(row["points"])), strict=False):
        points = np.array(row["points_of_rows"])
        for number in range(points.shape[1]):
            axis.plot(*points[:, number].T, ".", ms=3, color=f"C{number}")
        axis.set_title(f"{row['points']}\ntest error {row['error']:.1f} %, spread {row['spread']:.2f}", fontsize=9)
        axis.set_aspect("equal", "datalim")
    for axis in panels[len(rows) :]:
        axis.set_visible(False)
    figure.supxlabel("first input, standardised", fontsize=8)
    figure.supylabel("second input, standardised", fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Make the runs that the file lacks, then report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("experiment", choices=(*TABLES, "ablation", "points"))
    parser.add_argument("--out", type=Path, default=Path("results/amortized_letters.jsonl"))
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--cells", help="LAYERSxPOINTS with commas between; all if not given")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    torch.set_default_dtype(getattr(torch, arguments.dtype))
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    run = {name: getattr(arguments, name) for name in ("experiment", "epochs", "rows", "dtype")}
    for key, recipe in [] if arguments.table else runs(arguments.experiment):
        if arguments.cells and f"{key['layers']}x{key['inducing']}" not in arguments.cells.split(","):
            continue
        key = run | key
        if any(agrees(row, key) for row in read(arguments.out)):
            continue
        sizes = {"seed": key["seed"], "epochs": arguments.epochs, "rows": arguments.rows}
        sizes |= {"drawn": DRAWN} if arguments.experiment == "points" else {}
        row = key | train(key["layers"], key["inducing"], recipe, **sizes)
        append(arguments.out, row)
        print(json.dumps({name: value for name, value in row.items() if name != "points_of_rows"}), flush=True)
    report(run, read(arguments.out), arguments.figures)


if __name__ == "__main__":
    main()
