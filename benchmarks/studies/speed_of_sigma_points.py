"""Seconds per training step of deep sigma point processes by rule, S and W, beside GPyTorch's DSPP.

``python -m benchmarks.studies.speed_of_sigma_points [--quick] [--json FILE]``

Two layers, a kernel per output, diagonal q, M 128, batch 100, 8 inputs, float32. GPyTorch has one rule, QR3: a rule that is a grid is compared
with it at the same number of components. Steps alternate in one process; ratios are medians of the ratios of neighbouring steps.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from benchmarks.common.timing import Data, Step, alternate, library_step, toy
from pyro_dgp import InducingPoints, PredictiveLogLikelihood, SigmaPoints, Variational
from pyro_dgp.models.deep_gp import DeepGP

INDUCING, BATCH, INPUTS, ROWS = 128, 100, 8, 2000
CASES = [
    *(("qr3", s, 5) for s in (8, 16, 32, 64)),
    *(("qr3", 32, w) for w in (1, 3, 10)),
    *((rule, 3, w) for rule in ("gauss-hermite", "qr1", "qr2") for w in (2, 3, 4)),
]


def sigma_point_step(data: Data, rule: str, points: int, *, width: int) -> tuple[Step, int]:
    """Return a step of this library, and its number of components."""
    x, _ = data
    model = DeepGP(x, 2, width, per_output=True)
    guide = Variational(model, InducingPoints(INDUCING, covariance="diagonal"), SigmaPoints(rule, points))
    step = library_step(PredictiveLogLikelihood(len(x)), guide, data, batch=BATCH)
    return step, guide.propagation.num_components


def gpytorch_step(data: Data, components: int, *, width: int) -> Step:
    """Return a step of GPyTorch."""
    from gpytorch.mlls import DeepPredictiveLogLikelihood

    from benchmarks.common.gpytorch_models import PeerDSPP

    x, y = data
    model = PeerDSPP(x, layers=2, width=width, inducing=INDUCING, sigma_points=components, per_output=True)
    model.train()
    objective = DeepPredictiveLogLikelihood(model.likelihood, model, num_data=len(x), beta=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        (-objective(model(x[:BATCH]), y[:BATCH])).backward()
        optimizer.step()

    return step


def measure(rule: str, points: int, width: int, *, repeats: int, threads: int) -> dict[str, float | int | str]:
    """Time one rule: medians of the seconds of both libraries, and of their ratio."""
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    data = toy(ROWS, INPUTS)
    ours, components = sigma_point_step(data, rule, points, width=width)
    theirs_step = gpytorch_step(data, components, width=width)
    wall, _ = alternate({"mine": ours, "theirs": theirs_step}, repeats, warm_up=3)
    mine, theirs = wall["mine"], wall["theirs"]
    return {
        "rule": rule,
        "points": points,
        "width": width,
        "components": components,
        "inducing": INDUCING,
        "batch": BATCH,
        "threads": threads,
        "seconds_per_step": float(mine.median()),
        "gpytorch_seconds_per_step": float(theirs.median()),
        "ratio_to_gpytorch": float((theirs / mine).median()),
    }


def main() -> None:
    """Time all cases and print them as JSON, one a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats: shows that it runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for threads in (1, 2):
        for rule, points, width in CASES:
            rows.append(measure(rule, points, width, repeats=2 if arguments.quick else 8, threads=threads))
            print(json.dumps(rows[-1]), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
