"""Points, spherical harmonics and activations as features of the arc-cosine kernel, with and without orthogonal points: Fig. 8 of Tiao et al. 2023.

``python -m benchmarks.studies.spherical_features --data FOLDER [--out FILE] [--only D,E] [--splits N] [--jobs N] [--figure FILE] [--table]``

One layer, arc-cosine kernel of order 1, M 64, 2 M 128, and M + K with K 64 orthogonal inducing points, 2000 steps of 500 rows. Harmonics come in whole
levels: M is the largest number up to 64, or 128. ``relu``, ``softplus`` and ``erf`` are cut to the 8 levels of the kernel; ``published`` keeps the whole
activation, whose residual variance can be negative and is then taken as zero. Data: energy, concrete, power, kin8nm, yacht, splits 0 to 4. Makes the
runs that FILE (one JSON line a run) lacks and prints the tables.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.common.data import add_data_option, read_data, require_data
from benchmarks.common.records import read
from pyro_dgp import (
    ELBO,
    ActivationFeatures,
    InducingPoints,
    MonteCarlo,
    Orthogonal,
    PublishedActivationFeatures,
    SphericalHarmonics,
)
from pyro_dgp.comparison.sweep import sweep
from pyro_dgp.processes import BasisFamily
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.settings import Settings

SETS, SPLITS, M, K = ("energy", "concrete", "power", "kin8nm", "yacht"), 5, 64, 64
SETTINGS = Settings(layers=1, kernel="arc-cosine")
ACTIVATIONS = ("relu", "softplus", "erf")
MARKERS = ("M", "2M", "M+K")


def family(kind: str, size: int) -> BasisFamily:
    """Return the family of a row of the figure."""
    if kind == "points":
        return InducingPoints(size)
    if kind == "harmonics":
        return SphericalHarmonics(size)
    activation, _, published = kind.partition("-")
    return (PublishedActivationFeatures if published else ActivationFeatures)(size, activation)


KINDS = ("points", "harmonics", *ACTIVATIONS, *(f"{name}-published" for name in ACTIVATIONS))


def methods() -> list[tuple[str, ByGuide]]:
    """Return the inferences by name, such as ``relu.M+K``."""
    found = []
    for kind in KINDS:
        families = (family(kind, M), family(kind, 2 * M), Orthogonal(family(kind, M), InducingPoints(K)))
        for marker, each in zip(MARKERS, families, strict=True):
            found.append((f"{kind}.{marker}", ByGuide(each, MonteCarlo(1), ELBO, batch_size=500, samples=1)))
    return found


def report(path: Path, figure: Path | None) -> None:
    """Print the means of each row and marker, and what orthogonal points repair; draw them."""
    rows = [row for row in read(path, "method") if "error" not in row]
    if not rows:
        return
    runs = pd.DataFrame(rows)
    runs[["kind", "marker"]] = runs["method"].str.rsplit(".", n=1, expand=True)
    for score in ("nll", "rmse"):
        table = runs.pivot_table(index=["kind", "marker"], columns="dataset", values=score).reindex(
            [(kind, marker) for kind in KINDS for marker in MARKERS]
        )
        table["mean"] = table.mean(axis=1, skipna=False)
        print(f"{score}, mean over {runs['split'].nunique()} splits", table.round(3).to_string(), sep="\n", end="\n\n")
        if score == "nll":
            wide = table["mean"].unstack("marker")[list(MARKERS)].reindex(list(KINDS))
            wide["repaired"] = wide["M"] - wide["M+K"]
            print(
                "nll, mean over sets, and what K orthogonal points repair",
                wide.round(3).to_string(),
                sep="\n",
                end="\n\n",
            )
    failed = [row for row in read(path, "method") if "error" in row]
    print(f"{len(failed)} runs failed", *sorted({f"{row['method']}: {row['error'][:120]}" for row in failed}), sep="\n")
    if figure is not None:
        draw(runs, figure)


def draw(runs: pd.DataFrame, figure: Path) -> None:
    """Draw one panel a set: NLL against the kind of features, with a marker for each number of them."""
    import matplotlib.pyplot as plt

    sets = [name for name in SETS if name in set(runs["dataset"])]
    canvas, panels = plt.subplots(
        1, len(sets), figsize=(3 * len(sets), 3.5), sharey=True, layout="constrained", squeeze=False
    )
    for axes, name in zip(panels[0], sets, strict=True):
        for marker, colour, shape in zip(MARKERS, ("tab:red", "tab:blue", "tab:green"), "osd", strict=True):
            own = (
                runs[(runs["dataset"] == name) & (runs["marker"] == marker)].groupby("kind")["nll"].agg(["mean", "sem"])
            )
            own = own.reindex([kind for kind in KINDS if kind in own.index])
            axes.errorbar(
                own["mean"],
                [KINDS.index(kind) for kind in own.index],
                xerr=own["sem"],
                fmt=shape,
                color=colour,
                label=marker,
            )
        axes.set(title=name, xlabel="NLL (nats, standardised)", yticks=range(len(KINDS)))
        axes.set_yticklabels(KINDS)
        low, high = runs[runs["dataset"] == name]["nll"].quantile([0, 0.95])
        axes.set_xlim(low - 0.1, max(high, low + 0.5) + 0.1)
    panels[0][0].invert_yaxis()
    panels[0][-1].legend(fontsize=8)
    canvas.savefig(figure)


def main() -> None:
    """Make the runs that the file lacks and print the tables."""
    out = Path("results/spherical_features.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--only", help="data sets to run, with commas between; all if not given")
    parser.add_argument("--splits", type=int, default=SPLITS, help="splits, from 0")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--figure", type=Path, help="file of the figure; none is drawn if not given")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    if not arguments.table:
        require_data(arguments)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        for split in range(arguments.splits):
            sweep(
                [
                    read_data(name, arguments.data)
                    for name in SETS
                    if not arguments.only or name in arguments.only.split(",")
                ],
                methods(),
                splits=(split,),
                settings=SETTINGS,
                output=arguments.out,
                jobs=arguments.jobs,
                say=lambda words: print(words, flush=True),
            )
    report(arguments.out, arguments.figure)


if __name__ == "__main__":
    main()
