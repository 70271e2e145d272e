"""Growth of time and peak memory with the sizes N, B, S, M, W, L and with the rows of a prediction.

``python -m benchmarks scaling [--quick] [--json FILE] [--figures DIR] [--threads N]``

``dsvi`` in float32, 8 inputs. Each point runs in a process of its own, so that its peak memory is its own too (resident memory, of which torch and
Pyro take a part that the first line shows). N: one epoch of ``svgp`` over ``.npy`` files on disk. Prediction: mean log density of test rows in
batches of 10,000, by ``svgp`` of this library and of GPyTorch. The exponent is the slope of log time over log size between the two largest values.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.cases import INPUTS, Case, case_step
from benchmarks.common.timing import alternate, toy
from pyro_dgp import ELBO, InducingPoints, MonteCarlo, NumpyStream, Variational, fit_stream, predict
from pyro_dgp.internal.peak_memory import peak_memory_mb, reset_peak_memory
from pyro_dgp.models.deep_gp import DeepGP

BASE = Case("dsvi", layers=2, samples=10)
STEPS = {
    "batch": (100, 300, 1000, 3000),
    "samples": (10, 30, 100, 300),
    "inducing": (64, 128, 256, 512),
    "width": (2, 5, 10, 20),
    "layers": (2, 3, 4, 5),
}
QUICK_STEPS = {name: values[:2] for name, values in STEPS.items()}
ROWS, QUICK_ROWS = (100_000, 1_000_000, 10_000_000), (10_000, 30_000)
TEST_ROWS, QUICK_TEST_ROWS = (10_000, 100_000, 1_000_000), (10_000, 30_000)
STREAM_BATCH = 10_000

Outcome = dict[str, float]


def step(name: str, value: int, repeats: int) -> Outcome:
    """Measure the median processor time of a training step, and the peak memory of the process."""
    torch.set_default_dtype(torch.float32)
    sizes: dict[str, Any] = {name: value}
    case = replace(BASE, **sizes)
    one = case_step(case, toy(max(2000, case.batch), INPUTS))
    reset_peak_memory("cpu")
    _, cpu = alternate({"": one}, repeats, warm_up=2)
    return {"seconds": float(cpu[""].median()), "peak_mb": peak_memory_mb("cpu")}


def epoch(rows: int, inducing: int) -> Outcome:
    """Measure one pass over rows on disk, after writing the files block by block."""
    torch.set_default_dtype(torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        stream = write(Path(folder), rows)
        start = stream.sample(10_000)
        model = DeepGP(start[0], 1, 1)
        guide = Variational(model, InducingPoints(inducing), MonteCarlo(1))
        guide.initialize(*start)
        reset_peak_memory("cpu")
        begin = time.perf_counter()
        fit_stream(ELBO(rows)(model, guide), stream, steps=-(-rows // STREAM_BATCH), batch_size=STREAM_BATCH)
        return {"seconds": time.perf_counter() - begin, "peak_mb": peak_memory_mb("cpu")}


def write(folder: Path, rows: int) -> NumpyStream:
    """Write 8 normal inputs, and a sine of the first one with noise, to two files."""
    generator = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, INPUTS))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (rows,))
    for begin in range(0, rows, 100_000):
        block = generator.standard_normal((min(100_000, rows - begin), INPUTS), np.float32)
        x[begin : begin + len(block)] = block
        y[begin : begin + len(block)] = np.sin(block[:, 0]) + 0.1 * generator.standard_normal(len(block), np.float32)
    x.flush()
    y.flush()
    del x, y
    return NumpyStream(folder / "x.npy", folder / "y.npy")


def prediction(rows: int, inducing: int) -> Outcome:
    """Measure the mean log density of test rows by this library."""
    torch.set_default_dtype(torch.float32)
    x, y = toy(2000, INPUTS)
    guide = Variational(DeepGP(x, 1, 1), InducingPoints(inducing), MonteCarlo(1))
    guide.initialize(x, y)
    new, target = toy(rows, INPUTS)
    reset_peak_memory("cpu")
    begin = time.perf_counter()
    predict(guide, new, batch_size=STREAM_BATCH).log_prob(target).mean()
    return {"seconds": time.perf_counter() - begin, "peak_mb": peak_memory_mb("cpu")}


def peer_prediction(rows: int, inducing: int) -> Outcome:
    """Measure the mean log density of test rows by GPyTorch."""
    from benchmarks.common.gpytorch_models import PeerGP

    torch.set_default_dtype(torch.float32)
    x, _ = toy(2000, INPUTS)
    model = PeerGP(x, inducing).eval()
    new, target = toy(rows, INPUTS)
    reset_peak_memory("cpu")
    begin = time.perf_counter()
    with torch.no_grad():
        parts = [
            model.likelihood.log_marginal(b, model(a))
            for a, b in zip(new.split(STREAM_BATCH), target.split(STREAM_BATCH), strict=True)
        ]
        torch.cat(parts).mean()
    return {"seconds": time.perf_counter() - begin, "peak_mb": peak_memory_mb("cpu")}


def points(quick: bool) -> Iterable[tuple[str, int, Callable[[], Outcome]]]:
    """List all points: name and value of the size, and a function that another process can call to measure it."""
    repeats = 3 if quick else 15
    for name, values in (QUICK_STEPS if quick else STEPS).items():
        for value in values:
            yield name, value, partial(step, name, value, repeats)
    for value in QUICK_ROWS if quick else ROWS:
        yield "rows", value, partial(epoch, value, BASE.inducing)
    for value in QUICK_TEST_ROWS if quick else TEST_ROWS:
        yield "test rows", value, partial(prediction, value, BASE.inducing)
        yield "test rows, GPyTorch", value, partial(peer_prediction, value, BASE.inducing)


def measure_all(quick: bool, threads: int) -> Iterable[dict[str, float | int | str]]:
    """Measure every point, each in a process of its own."""
    for name, value, call in points(quick):
        with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (threads,)) as process:
            yield {"parameter": name, "value": value, "threads": threads, **process.submit(call).result()}


def exponents(rows: list[dict]) -> dict[str, float]:
    """Return the slope of log time over log size between the two largest values of each parameter."""
    slopes = {}
    for name in dict.fromkeys(row["parameter"] for row in rows):
        first, last = sorted((row["value"], row["seconds"]) for row in rows if row["parameter"] == name)[-2:]
        slopes[name] = math.log(last[1] / first[1]) / math.log(last[0] / first[0])
    return slopes


def described(row: dict) -> str:
    """Return one line of the table."""
    rate = f", {row['value'] / row['seconds']:,.0f} rows a second" if "rows" in row["parameter"] else ""
    return f"{row['parameter']} {row['value']:,}: {row['seconds']:.4f} s, peak {row['peak_mb']:.0f} MB{rate}"
