"""Seconds and memory of drawn functions at many points: one draw of a deep GP of two layers, without gradients.

``python -m benchmarks.studies.speed_of_functions [--rows 1000000] [--draws 1] [--threads 1]``

Two layers of width 2, Matern 5/2 with ARD, M 100, full q, 2 inputs, 256 frequencies, float64 and float32. The inducing values are a draw, as
after training. Wall-clock and processor seconds are those of one call; the peak of memory is that of the process, Python and torch included.
"""

from __future__ import annotations

import argparse
import time

import torch

from pyro_dgp import DeepGP, FunctionDraws, InducingPoints, MonteCarlo, Variational, draw_functions
from pyro_dgp.internal.peak_memory import peak_memory_mb, reset_peak_memory

INDUCING, WIDTH = 100, 2


def functions_of(draws: int) -> FunctionDraws:
    """Return draws from a guide whose inducing values are random."""
    torch.manual_seed(0)
    x = torch.rand(300, 2) * 2 - 1
    guide = Variational(DeepGP(x, layers=2, width=WIDTH), InducingPoints(INDUCING), MonteCarlo(1))
    guide.initialize(x, torch.zeros(300))
    for process in guide.processes.children():
        process.q.mean.data.normal_()
    return draw_functions(guide, draws, seed=0)


def measure(rows: int, draws: int, dtype: torch.dtype) -> dict[str, float | int | str]:
    """Evaluate the draws once: seconds of wall clock and of the processor, and the peak of memory in MB."""
    torch.set_default_dtype(dtype)
    functions = functions_of(draws)
    x = torch.rand(rows, 2) * 2 - 1
    functions(x[:2])
    reset_peak_memory("cpu")
    wall, processor = time.perf_counter(), time.process_time()
    values = functions(x)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = peak_memory_mb("cpu")
    assert values.shape == (draws, rows, 1) and bool(torch.isfinite(values).all())
    name = str(dtype).removeprefix("torch.")
    return {"rows": rows, "draws": draws, "dtype": name, "wall": wall, "processor": processor, "peak_mb": peak}


def main() -> None:
    """Print one line for each dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| rows | draws | dtype | seconds | processor seconds | peak of the process, MB |\n|---|---|---|---|---|---|")
    for dtype in (torch.float64, torch.float32):
        row = measure(arguments.rows, arguments.draws, dtype)
        print(
            f"| {row['rows']:,} | {row['draws']} | {row['dtype']} | {row['wall']:.1f} | {row['processor']:.1f} | "
            f"{row['peak_mb']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
