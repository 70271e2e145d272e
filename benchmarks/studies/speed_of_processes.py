"""Seconds of a training step that one, two or more processes share, on one machine.

``python -m benchmarks.studies.speed_of_processes [--processes 1,2] [--steps 40]``

Each process has one thread. The line "1 process, 2 threads" is that of a single process which takes as many threads as the others are
processes. Two or three layers of width 5, M 128, ten samples, 8 inputs, Matern 5/2 with ARD, float32.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks.common.cases import Case
from benchmarks.common.timing import toy
from pyro_dgp import ELBO, DeepGP, Distributed, InducingPoints, MonteCarlo, Variational, fit

ROWS, WARM_UP = 20_000, 5
CASES = tuple(Case("dsvi", layers, 10, batch) for layers in (2, 3) for batch in (100, 1000, 5000))


def seconds_of_a_step(case: Case, steps: int) -> float:
    """Train, and return the median of the times between steps."""
    torch.manual_seed(0)
    data = toy(ROWS, 8)
    guide = Variational(
        DeepGP(data[0], case.layers, case.width), InducingPoints(case.inducing), MonteCarlo(case.samples)
    )
    guide.initialize(*data)
    times = [time.perf_counter()]
    objective = ELBO(ROWS)(guide.model, guide)
    fit(objective, *data, steps=steps + WARM_UP, batch_size=case.batch, callback=lambda step, loss: _note(times))
    return float(torch.tensor(times, dtype=torch.float64).diff()[WARM_UP:].median())


def _note(times: list[float]) -> None:
    times.append(time.perf_counter())


def shared(case: Case, steps: int, processes: int) -> float:
    """Return the seconds of a step that processes share, as the first of them sees it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.multiprocessing.spawn(_work, (folder, case, steps, processes), nprocs=processes)  # type: ignore[no-untyped-call]
        return float((folder / "seconds").read_text())


def _work(rank: int, folder: Path, case: Case, steps: int, processes: int) -> None:
    torch.set_num_threads(1)
    with ExitStack() as stack:
        if processes > 1:
            init = f"file://{folder}/group"
            torch.distributed.init_process_group("gloo", init_method=init, rank=rank, world_size=processes)
            stack.callback(torch.distributed.destroy_process_group)
            stack.enter_context(Distributed())
        seconds = seconds_of_a_step(case, steps)
    if rank == 0:
        (folder / "seconds").write_text(str(seconds))


def threaded(case: Case, steps: int, threads: int) -> float:
    """Return the seconds of a step of one process with several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return seconds_of_a_step(case, steps)
    finally:
        torch.set_num_threads(before)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", default="1,2", help="numbers of processes, with commas between")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.processes.split(",")]
    ways: dict[str, Callable[[Case], float]] = {
        f"{count} process{'es' * (count > 1)}": lambda case, count=count: shared(case, arguments.steps, count)  # type: ignore[misc]
        for count in counts
    }
    ways[f"1 process, {max(counts)} threads"] = lambda case: threaded(case, arguments.steps, max(counts))
    print(f"{'layers':>6}{'rows':>6}" + "".join(f"{name:>22}" for name in ways))
    for case in CASES:
        cells = "".join(f"{1e3 * seconds(case):>19.1f} ms" for seconds in ways.values())
        print(f"{case.layers:>6}{case.batch:>6}{cells}", flush=True)


if __name__ == "__main__":
    main()
