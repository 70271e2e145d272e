"""Inter-domain deep GPs beside shallow and deep GPs on a generator of the flight-delay kind: Table 1 of Rudner and Sejdinovic 2018.

``python -m benchmarks.studies.inter_domain [--out FILE] [--rows N] [--methods A,B] [--repeats R] [--threads N] [--device cuda] [--table]``

Rows are drawn by ``benchmarks/common/flights.py`` block by block, so that memory does not grow with them; two thirds train. The paper leaves settings
open, which are those of the Fourier-features paper (Hensman, Durrande, Solin 2018): inputs in [0, 1], interval [-2, 3], 30 frequencies an input,
Matern 3/2 kernels, 500 inducing points for ``svgp``. Every method makes 10,000 steps of 1000 rows with one sample. Lengthscales begin at 0.3 of those of
the zoo, since inputs in [0, 1] have a standard deviation of about 0.3. ``vff-collapsed`` makes one pass over all rows and then
steps on sums. ``additive points`` is the control that the paper lacks: the prior of ``vff`` with
inducing points. Mean squared errors are of standardised targets, over 100,000 test rows at most, by the mean of 20 samples. Makes the runs that FILE (one
JSON line a run) lacks and prints the table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import torch

from benchmarks.common.flights import BAYES_ERROR, Flights, expected_at
from benchmarks.common.records import append, read
from pyro_dgp import (
    ELBO,
    ApproximateEP,
    DeepGP,
    FourierFeatures,
    InducingPoints,
    LinearMean,
    Loss,
    MomentMatching,
    MonteCarlo,
    Propagation,
    Variational,
    White,
    fit_collapsed,
    fit_stream,
    predict,
)
from pyro_dgp.internal.peak_memory import peak_memory_mb
from pyro_dgp.processes import ProcessFamily

#: Rows, and how often each is repeated with other rows.
ROWS = {10_000: 10, 1_000_000: 3, 5_929_413: 1}
STEPS, BATCH, WIDTH, MOST_TEST_ROWS = 10_000, 1000, 5, 100_000
INTERVAL, FREQUENCIES, POINTS, DEEP_POINTS = (-2.0, 3.0), 30, 500, 100
#: Lengthscales at the start, as a share of those of the zoo.
SHARE = 0.3
#: Pairs of methods whose mean squared errors are compared run by run.
RATIOS = (
    ("id-dgp", "vff"),
    ("id-dgp", "vff-collapsed"),
    ("id-dgp", "svgp"),
    ("dsvi", "svgp"),
    ("aep", "svgp"),
    ("vff", "additive points"),
)
#: Mean squared errors of the paper's Table 1 at the same numbers of rows; its SVGP is that of the Fourier-features paper.
PUBLISHED = {
    "id-dgp": (0.869, 0.809, 0.810),
    "vff": (0.892, 0.823, 0.826),
    "svgp": (0.900, 0.830, 0.837),
    "dsvi": (0.893, 0.847, 0.83),
    "aep": (0.933, 0.963, float("nan")),
}


def _model(x: torch.Tensor, layers: int, kernel: str, noise: bool = False) -> DeepGP:
    model = DeepGP(x, layers, WIDTH, kernel=kernel, mean=LinearMean.fit)
    with torch.no_grad():
        for part in model.modules():
            if hasattr(part, "lengthscale"):
                part.lengthscale = SHARE * part.lengthscale.detach()
    if noise:
        model.hidden[0].kernel = model.hidden[0].kernel + White(variance=1e-5)
    return model


def _fourier() -> ProcessFamily:
    return FourierFeatures(FREQUENCIES, interval=INTERVAL)


#: A model of inputs, and a family.
METHODS: dict[str, tuple[Callable[[torch.Tensor], DeepGP], Callable[[], ProcessFamily]]] = {
    "vff": (lambda x: _model(x, 1, "matern32-additive"), _fourier),
    "vff-collapsed": (lambda x: _model(x, 1, "matern32-additive"), _fourier),
    "id-dgp": (lambda x: _model(x, 2, "matern32-additive", noise=True), _fourier),
    "svgp": (lambda x: _model(x, 1, "matern32"), lambda: InducingPoints(POINTS)),
    "dsvi": (lambda x: _model(x, 2, "matern32"), lambda: InducingPoints(DEEP_POINTS)),
    "additive points": (lambda x: _model(x, 1, "matern32-additive"), lambda: InducingPoints(POINTS)),
    "aep": (lambda x: _model(x, 2, "rbf"), lambda: InducingPoints(DEEP_POINTS)),
}
#: Where it is not by samples, and not the ELBO.
PROPAGATIONS: dict[str, Propagation] = {"aep": MomentMatching()}
LOSSES: dict[str, Callable[[int], Loss]] = {"aep": ApproximateEP}


def run(method: str, rows: int, repeat: int, steps: int, *, device: str = "cpu") -> dict[str, float | int | str]:
    """Train on the rows of a repeat and return the scores."""
    train = Flights(2 * rows // 3, seed=2 * repeat, device=device)
    test = Flights(min(rows - 2 * rows // 3, MOST_TEST_ROWS), seed=2 * repeat + 1, device=device)
    build, family = METHODS[method]
    torch.manual_seed(repeat)
    x, y = train.sample(10_000, seed=repeat)
    model = build(x).to(x)
    guide = Variational(model, family(), PROPAGATIONS.get(method, MonteCarlo(1)))
    guide.initialize(x, y)
    start, processor = time.perf_counter(), time.process_time()
    if method.endswith("collapsed"):
        fit_collapsed(guide, train, steps=steps)
    else:
        objective = LOSSES.get(method, ELBO)(len(train))(model, guide)
        fit_stream(objective, train, steps=steps, batch_size=min(BATCH, len(train)), seed=repeat)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    errors, excess, count = 0.0, 0.0, 0
    for inputs, targets in _in_order(test):
        mean = predict(guide, inputs, num_samples=20).mean
        best = expected_at(inputs)
        errors += float((mean - targets).square().sum())
        excess += float((mean - best).square().sum())
        count += len(targets)
    return {
        "method": method,
        "rows": rows,
        "repeat": repeat,
        "steps": steps,
        "mse": errors / count,
        "excess": excess / count,
        "seconds": round(seconds),
        "processor_seconds": round(processor),
        "peak_mb": round(peak_memory_mb("cpu")),
        "device": device,
    }


def _in_order(stream: Flights) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for block in range(len(stream.sizes)):
        x, y = (torch.as_tensor(part, dtype=stream.dtype, device=stream.device) for part in stream.read(block))
        yield from zip(x.split(2000), y.split(2000), strict=True)


def report(path: Path) -> None:
    """Print mean squared errors, the excess over the best predictor, and paired ratios beside those of the paper."""
    runs = pd.DataFrame([row for row in read(path, "method") if row["steps"] == STEPS])
    if runs.empty:
        return
    groups = runs.groupby(["method", "rows"])
    found = groups.agg(
        mse=("mse", "mean"),
        se=("mse", "sem"),
        excess=("excess", "mean"),
        repeats=("mse", "size"),
        minutes=("processor_seconds", lambda s: s.mean() / 60),
        peak_mb=("peak_mb", "max"),
    )
    print(f"the best predictor has {BAYES_ERROR}", found.round(3).to_string(), sep="\n\n")
    wide = runs.pivot_table(index=["rows", "repeat"], columns="method", values="mse")
    for first, second in RATIOS:
        if {first, second} <= set(wide.columns):
            ratio = (wide[first] / wide[second]).dropna().groupby(level="rows").agg(["mean", "sem", "size"]).round(4)
            if second in PUBLISHED:
                ratio["published"] = [
                    round(PUBLISHED[first][list(ROWS).index(n)] / PUBLISHED[second][list(ROWS).index(n)], 3)
                    for n in ratio.index
                ]
            print(f"\n{first} over {second}", ratio.to_string(), sep="\n")


def main() -> None:
    """Make the runs that the file lacks, first repeats first, and print the table."""
    out = Path("results/inter_domain.jsonl")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=out, help=f"file of runs; {out} if not given")
    parser.add_argument("--rows", type=int, choices=ROWS, help="number of rows; all if not given")
    parser.add_argument("--methods", help="methods with commas between; all if not given")
    parser.add_argument("--repeats", type=int, help="repeats at most; those of the paper if not given")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="device that fits and predicts")
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_default_dtype(torch.float32)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    methods = arguments.methods.split(",") if arguments.methods else list(METHODS)
    sizes = [arguments.rows] if arguments.rows else list(ROWS)
    if not arguments.table:
        done = {
            (*(row[name] for name in ("method", "rows", "repeat", "steps")), row.get("device", "cpu"))
            for row in read(arguments.out, "method")
        }
        for repeat in range(arguments.repeats or max(ROWS.values())):
            for rows in sizes:
                for method in methods:
                    if repeat < ROWS[rows] and (method, rows, repeat, arguments.steps, arguments.device) not in done:
                        row = run(method, rows, repeat, arguments.steps, device=arguments.device)
                        append(arguments.out, row)
                        print(row, flush=True)
    report(arguments.out)


if __name__ == "__main__":
    main()
