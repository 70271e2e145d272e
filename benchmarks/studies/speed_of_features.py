"""Time of a training step against the number of features M: inducing points, structured features, orthogonal parts.

``python -m benchmarks.studies.speed_of_features [--out FILE] [--figure FILE] [--threads N] [--quick] [--table]``

One layer, 8 inputs, 1000 rows a step, float32. ``points`` and ``Fourier`` have the same additive Matern 3/2 kernel; the others have a spherical
Matern 5/2 kernel; ``points, ARD`` has a Matern 5/2 kernel with a lengthscale for each input. Methods of one size take turns within one process.
Processor time, median. The crossover is where the lines of points and Fourier features on the same kernel meet, by linear interpolation of
logarithms.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from benchmarks.common.records import append, read
from benchmarks.common.timing import alternate, library_step, toy
from pyro_dgp import (
    ELBO,
    ActivationFeatures,
    DeepGP,
    FourierFeatures,
    InducingPoints,
    MonteCarlo,
    Orthogonal,
    SphericalHarmonics,
    Variational,
)
from pyro_dgp.processes import ProcessFamily

INPUTS, ROWS, BATCH = 8, 4000, 1000
SIZES, QUICK = (32, 64, 128, 256, 512, 1024, 2048), (32, 64)

#: A kernel, and a family of about M features, by name. Harmonics come in whole levels.
KINDS: dict[str, tuple[str, Callable[[int], ProcessFamily]]] = {
    "points, ARD": ("matern52", InducingPoints),
    "points": ("matern32-additive", InducingPoints),
    "Fourier": ("matern32-additive", lambda m: FourierFeatures(max(1, round((m / INPUTS - 1) / 2)))),
    "harmonics": ("matern52-spherical", SphericalHarmonics),
    "units": ("matern52-spherical", ActivationFeatures),
    "points, half of them orthogonal": (
        "matern52",
        lambda m: Orthogonal(InducingPoints(m // 2), InducingPoints(m // 2)),
    ),
}


def measure(size: int, repeats: int) -> list[dict[str, float | str]]:
    """Return one row a kind, measured in turns."""
    data: tuple[Tensor, Tensor] = toy(ROWS, INPUTS)
    steps, sizes = {}, {}
    for name, (kernel, family) in KINDS.items():
        torch.manual_seed(0)
        model = DeepGP(data[0], 1, kernel=kernel)
        guide = Variational(model, family(size), MonteCarlo(1))
        steps[name] = library_step(ELBO(ROWS), guide, data, batch=BATCH)
        sizes[name] = next(iter(guide.processes.children())).basis.size
    wall, cpu = alternate(steps, repeats, warm_up=2)
    return [
        {
            "kind": name,
            "asked": size,
            "features": sizes[name],
            "cpu": float(cpu[name].median()),
            "wall": float(wall[name].median()),
        }
        for name in steps
    ]


def crossover(rows: pd.DataFrame) -> float | None:
    """Return the number of features from which Fourier features are faster than points on the same kernel."""
    points, fourier = (rows[rows["kind"] == kind].sort_values("features") for kind in ("points", "Fourier"))
    ratio = [
        (math.log(m), math.log(f / p))
        for m, f, p in zip(fourier["features"], fourier["cpu"], points["cpu"], strict=True)
    ]
    for (before, high), (after, low) in zip(ratio, ratio[1:], strict=False):
        if high > 0 >= low:
            return math.exp(before + (after - before) * high / (high - low))
    return None


def report(path: Path, figure: Path | None) -> None:
    """Print the table of the file, and draw it."""
    rows = pd.DataFrame(read(path, "kind"))
    if rows.empty:
        return
    table = rows.pivot_table(index="asked", columns="kind", values="cpu")[list(KINDS)] * 1000
    print("milliseconds of processor time a step", table.round(1).to_string(), sep="\n")
    print("\npoints over Fourier, same kernel:", (table["points"] / table["Fourier"]).round(2).to_dict())
    print("crossover at M =", crossover(rows))
    if figure is not None:
        import matplotlib.pyplot as plt

        canvas, axes = plt.subplots(figsize=(6, 4), layout="constrained")
        for kind in KINDS:
            own = rows[rows["kind"] == kind].sort_values("features")
            axes.loglog(own["features"], 1000 * own["cpu"], "o-", label=kind, markersize=4)
        axes.set(xlabel="features M", ylabel="processor time of a step (ms)")
        axes.legend(fontsize=8)
        canvas.savefig(figure)


def main() -> None:
    """Measure the sizes that the file lacks, and report."""
    out = Path("results/speed_of_features.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=out, help=f"file of rows; {out} if not given")
    parser.add_argument("--figure", type=Path, help="file of the figure; none is drawn if not given")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--quick", action="store_true", help="two small sizes, three repeats")
    parser.add_argument("--table", action="store_true", help="measure nothing: report the rows that the file holds")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_default_dtype(torch.float32)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    done = {row["asked"] for row in read(arguments.out, "kind")}
    for size in () if arguments.table else QUICK if arguments.quick else SIZES:
        if size not in done:
            for row in measure(size, 3 if arguments.quick else 30 if size < 500 else 7):
                append(arguments.out, row)
                print(row, flush=True)
    report(arguments.out, arguments.figure)


if __name__ == "__main__":
    main()
