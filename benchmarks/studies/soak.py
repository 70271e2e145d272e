"""Memory of a million training steps on rows that stay on disk.

``python -m benchmarks.studies.soak [--steps 1000000] [--rows 100000] [--out FILE]``

One process trains a small sparse Gaussian process on a stream, saves itself every minute, and notes the memory that it holds after every
hundredth of the steps. The last line says by how much the memory of the steps after the first twentieth differs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from pyro_dgp import ELBO, Checkpoints, DeepGP, InducingPoints, MonteCarlo, NumpyStream, Variational, fit_stream


def resident_mb() -> float:
    """Return the memory that this process holds, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


class Notes:
    """Callback that notes the memory after every so many steps.

    :param every: number of steps between two notes.
    :param out: file of JSON lines.
    """

    def __init__(self, every: int, out: Path | None) -> None:
        self.every, self.out, self.start = every, out, time.perf_counter()
        self.memory: list[float] = []

    def __call__(self, step: int, loss: float) -> None:
        """Note the memory, if it is time to."""
        if (step + 1) % self.every:
            return
        self.memory.append(resident_mb())
        seconds = round(time.perf_counter() - self.start, 1)
        row = {"step": step + 1, "mb": round(self.memory[-1], 2), "loss": loss, "seconds": seconds}
        print(json.dumps(row), flush=True)
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(json.dumps(row) + "\n")

    @property
    def spread(self) -> float:
        """Difference of the largest and the smallest memory after the first twentieth of the notes, over the smallest."""
        later = self.memory[len(self.memory) // 20 :]
        return max(later) / min(later) - 1


def soak(steps: int, rows: int, folder: Path, out: Path | None) -> Notes:
    """Train for many steps, and return the notes."""
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, 2))
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", np.sin(2 * x[:, 0]) + 0.1 * generator.standard_normal(rows))
    del x
    stream = NumpyStream(folder / "x.npy", folder / "y.npy", block_rows=8192, dtype=torch.float64)
    first_x, first_y = stream.sample(1000)
    guide = Variational(DeepGP(first_x, layers=1), InducingPoints(8, "diagonal"), MonteCarlo(1))
    guide.initialize(first_x, first_y)
    notes = Notes(max(1, steps // 100), out)
    with Checkpoints(folder / "saved"):
        fit_stream(ELBO(rows)(guide.model, guide), stream, steps=steps, batch_size=16, callback=notes)
    return notes


def main() -> None:
    """Read the arguments, train, and say what was seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000, help="training steps")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the stream")
    parser.add_argument("--out", type=Path, help="file of JSON lines")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        notes = soak(arguments.steps, arguments.rows, Path(folder), arguments.out)
    print(
        f"memory between {min(notes.memory):.1f} and {max(notes.memory):.1f} MB, {notes.spread:.2%} after the first twentieth"
    )


if __name__ == "__main__":
    main()
