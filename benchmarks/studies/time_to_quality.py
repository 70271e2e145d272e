"""Seconds until a test score is reached that GPyTorch's notebooks reach within 10,000 steps.

``python -m benchmarks.studies.time_to_quality --data FOLDER [--out FILE] [--only D,E] [--peers A,B] [--steps N] [--threads T] [--figures DIR] [--table]``

The peer is a notebook of GPyTorch: two layers by doubly stochastic inference, or a deep sigma point process, with the notebook's kernels, means,
optimiser, batch and dtype. Its test NLL is taken as it trains, and the lowest one is the level. Each named method beside it (``dsvi`` and ``dsvi-collapsed``, ``dspp``) makes
whole fits of twice as many steps each time until one reaches the level. The seconds of that fit count, from building the model to the scores,
with the search on held-out rows. The time to score is left out for the peer. Every run has a process of its own. Inputs and targets are standardised by the training rows of split 0.
Makes the runs that FILE (one JSON line a run) lacks, and prints the table. A run of a peer that was cut off goes on where its state was written last, beside FILE.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.common.data import add_data_option, require_data
from benchmarks.common.drawing import save
from benchmarks.common.held_aside_sets import dataset
from benchmarks.common.peer_curves import NOTEBOOKS, Followed
from benchmarks.common.records import Record, append, read
from pyro_dgp.comparison.sweep import Run
from pyro_dgp.data.splitting import split
from pyro_dgp.training.loop import steps_for
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings

SETS = ("energy", "concrete", "borehole-3000", "piston-3000", "kin8nm", "power", "bike", "protein")
#: The named methods beside each notebook.
COUNTERPARTS = {"gpytorch-dgp": ("dsvi", "dsvi-collapsed"), "gpytorch-dspp": ("dspp",)}
#: Steps of the shortest fit, and how often they are doubled.
SHORTEST, DOUBLINGS = 25, 10
#: Nats a row that a score may be above the level in the second half of the table.
SLACK = 0.01


def alone(work: Callable[[], Record], threads: int) -> Record:
    """Run in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), torch.set_num_threads, (threads,)) as executor:
        return executor.submit(work).result()


def peer_run(name: str, peer: str, steps: int, *, data: Path, state: Path) -> Record:
    """Follow a notebook's model for so many steps."""
    part = split(dataset(name, data), 0, dtype=torch.float64)
    return Followed(NOTEBOOKS[peer], part, steps=steps, path=state).run()


def own_run(name: str, method: str, steps: int, *, data: Path) -> Record:
    """Make a whole fit of so many steps, or about as many where an epoch has several."""
    known, settings, inference = dataset(name, data), Settings(), METHODS[method].inference
    rows = len(split(known, 0, dtype=torch.float64).x_train)
    # The epochs of a collapsed bound are its steps.
    per_epoch = steps_for(1, rows, inference.settled(settings).rows_of_step) if isinstance(inference, ByGuide) else 1
    own = Run(known, METHODS[method], replace(settings, epochs=max(1, round(steps / per_epoch))), "float64")
    start, processor = time.perf_counter(), time.process_time()
    found = own.figures()
    return {
        "nll": found["nll"],
        "steps": found["steps"],
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor,
    }


def level(peer: Record, slack: float = 0.0) -> tuple[float, float, float]:
    """The lowest NLL of a peer plus a slack, and the seconds and processor seconds at which it was first reached."""
    finite = [score for score in peer["scores"] if math.isfinite(score[3])]
    wanted = min(score[3] for score in finite) + slack
    _, seconds, processor, _ = next(score for score in finite if score[3] <= wanted)
    return wanted, seconds, processor


def first_at(fits: list[Record], wanted: float) -> Record | None:
    """The shortest of the fits whose NLL is at the level or below."""
    return min((fit for fit in fits if fit["nll"] <= wanted), key=lambda fit: fit["asked"], default=None)


def make_runs(arguments: argparse.Namespace, name: str, peer: str) -> None:
    """Make the runs of a notebook and of its counterparts on one set that the file lacks."""
    key = {"dataset": name, "threads": arguments.threads}
    done = [row for row in read(arguments.out, "library") if row["dataset"] == name and row["peer"] == peer]

    def made(library: str, asked: int, work: Callable[[], Record]) -> Record:
        for row in done:
            if row["library"] == library and row["asked"] == asked:
                return row
        row = {**key, "peer": peer, "library": library, "asked": asked, **alone(work, arguments.threads)}
        append(arguments.out, row)
        words = f"NLL {row['nll']:.3f}" if "nll" in row else f"level {level(row)[0]:.3f}"
        print(f"{name} {library} {asked} steps: {words} in {row['seconds']:.0f} s", flush=True)
        return row

    state = arguments.out.with_name(f"{arguments.out.stem}-{name}-{peer}.pt")
    work = partial(peer_run, name, peer, arguments.steps, data=arguments.data, state=state)
    wanted, _, _ = level(made(peer, arguments.steps, work))
    for method in COUNTERPARTS[peer]:
        for asked in (SHORTEST * 2**doubling for doubling in range(DOUBLINGS)):
            if made(method, asked, partial(own_run, name, method, asked, data=arguments.data))["nll"] <= wanted:
                break


def table(rows: list[Record], slack: float) -> pd.DataFrame:
    """Return a line for each set, peer and method: the level, and seconds and processor seconds until it was reached."""
    lines = []
    for peer in (row for row in rows if row["library"] == row["peer"]):
        wanted, seconds, processor = level(peer, slack)
        own = [row for row in rows if (row["dataset"], row["peer"]) == (peer["dataset"], peer["peer"])]
        for method in COUNTERPARTS[peer["peer"]]:
            fits = [row for row in own if row["library"] == method]
            if not fits:
                continue
            fit = first_at(fits, wanted)
            line: dict[str, Any] = {"dataset": peer["dataset"], "peer": peer["peer"], "level": wanted}
            line |= {"its seconds": seconds, "method": method}
            line |= {"best": min((each["nll"] for each in fits), default=math.nan)}
            line |= {"steps": None if fit is None else fit["steps"]}
            line |= {"seconds": math.nan if fit is None else fit["seconds"]}
            line |= {"times faster": seconds / line["seconds"]}
            line |= {"in processor seconds": math.nan if fit is None else processor / fit["processor_seconds"]}
            lines.append(line)
    return pd.DataFrame(lines)


def report(path: Path, figures: Path | None) -> None:
    """Print both tables with their geometric means, and draw the curves."""
    rows = read(path, "library")
    if not rows:
        print(f"{path} holds no runs")
        return
    for slack in (0.0, SLACK):
        found = table(rows, slack)
        print(f"\nlevel: the lowest NLL of the peer{f' plus {slack}' if slack else ''}")
        print(found.to_string(index=False, float_format="{:.3f}".format))
        for (peer, method), part in found.groupby(["peer", "method"]):
            ratios = part[["times faster", "in processor seconds"]].dropna()
            seconds, processor = np.exp(np.log(ratios).mean())
            print(
                f"{method} beside {peer}: {seconds:.1f} times faster in the geometric mean of {len(ratios)} sets ({processor:.1f} in processor seconds); "
                f"{len(part) - len(ratios)} not reached"
            )
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        draw(rows, figures / "time_to_quality.png")


def draw(rows: list[Record], path: Path) -> None:
    """Draw test NLL over seconds: the curve of each peer, and the fits beside it."""
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    columns = min(4, len(names))
    figure = Figure(figsize=(3.4 * columns, 2.8 * math.ceil(len(names) / columns)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(math.ceil(len(names) / columns), columns, squeeze=False).flatten()
    for axis, name in zip(axes, names, strict=False):
        for color, (peer, methods) in zip(("C0", "C1"), COUNTERPARTS.items(), strict=True):
            own = [row for row in rows if row["dataset"] == name and row["peer"] == peer]
            for row in (each for each in own if each["library"] == peer):
                axis.plot(*zip(*[score[1::2] for score in row["scores"]], strict=True), color=color, lw=1, label=peer)
            for marker, method in zip("os", methods, strict=False):
                fits = sorted((row["seconds"], row["nll"]) for row in own if row["library"] == method)
                if fits:
                    style = {"color": color, "marker": marker, "ls": "--", "ms": 4, "lw": 0.8}
                    axis.plot(*zip(*fits, strict=True), label=f"{method}, whole fits", **style)
        axis.set_xscale("log")
        values = [score[3] for row in rows if row["dataset"] == name for score in row.get("scores", [])]
        low = min([*values, *(row["nll"] for row in rows if row["dataset"] == name and "nll" in row)])
        axis.set_ylim(low - 0.05, max(1.5, low + 0.5))
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.set_xlabel("seconds", fontsize=8)
    axes[0].set_ylabel("test NLL, nats a row", fontsize=8)
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8)
    save(figure, path)


def main() -> None:
    """Make the runs that the file lacks and print the table."""
    out = Path("results/time_to_quality.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--only", help="data sets, with commas between; all if not given")
    parser.add_argument("--peers", help="peers, with commas between; both if not given")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of a peer")
    parser.add_argument("--threads", type=int, default=2, help="threads of a run")
    parser.add_argument("--figures", type=Path, help="folder for the figure")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    if not arguments.table:
        require_data(arguments)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        for name in arguments.only.split(",") if arguments.only else SETS:
            for peer in arguments.peers.split(",") if arguments.peers else COUNTERPARTS:
                make_runs(arguments, name, peer)
    report(arguments.out, arguments.figures)


if __name__ == "__main__":
    main()
