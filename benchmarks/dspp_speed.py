"""Seconds per training step of deep sigma point processes against S and W, for every rule, beside GPyTorch's DSPP.

``python -m benchmarks.dspp_speed [--quick] [--json FILE]``. Two layers, a kernel per output, diagonal q, M 128, batch 100,
8 inputs, float32. GPyTorch has one rule, QR3: a grid is set beside it at the same number of components. Steps alternate in one
process; ratios are medians of the per-step ratios.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import Step, alternate, library_step, toy
from pyro_dgp import InducingPoints, PredictiveLogLikelihood, SigmaPoints, Variational
from pyro_dgp.models.deep_gp import DeepGP

INDUCING, BATCH, INPUTS, ROWS = 128, 100, 8, 2000
CASES = [
    *(("qr3", s, 5) for s in (8, 16, 32, 64)),
    *(("qr3", 32, w) for w in (1, 3, 10)),
    *((rule, 3, w) for rule in ("gauss-hermite", "qr1", "qr2") for w in (2, 3, 4)),
]


def library(x: Tensor, y: Tensor, rule: str, points: int, width: int) -> tuple[Step, int]:
    """One step of this library, and its number of components."""
    model = DeepGP(x, 2, width, per_output=True)
    guide = Variational(model, InducingPoints(INDUCING, covariance="diagonal"), SigmaPoints(rule, points))
    step = library_step(PredictiveLogLikelihood(len(x)), guide, x, y, BATCH)
    return step, guide.propagation.num_components


def peer(x: Tensor, y: Tensor, components: int, width: int) -> Step:
    """One step of GPyTorch's."""
    from gpytorch.mlls import DeepPredictiveLogLikelihood

    from benchmarks.peers import PeerDSPP

    model = PeerDSPP(x, 2, width, INDUCING, components, per_output=True)
    model.train()
    objective = DeepPredictiveLogLikelihood(model.likelihood, model, num_data=len(x), beta=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        (-objective(model(x[:BATCH]), y[:BATCH])).backward()
        optimizer.step()

    return step


def measure(rule: str, points: int, width: int, repeats: int, threads: int) -> dict[str, float | int | str]:
    """Medians of both, and of the ratio."""
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    x, y = toy(ROWS, INPUTS)
    ours, components = library(x, y, rule, points, width)
    wall, _ = alternate({"mine": ours, "theirs": peer(x, y, components, width)}, repeats, warm_up=3)
    mine, theirs = wall["mine"], wall["theirs"]
    return {
        "rule": rule, "points": points, "width": width, "components": components, "inducing": INDUCING, "batch": BATCH,
        "threads": threads, "seconds_per_step": float(mine.median()), "gpytorch_seconds_per_step": float(theirs.median()),
        "ratio_to_gpytorch": float((theirs / mine).median()),
    }  # fmt: skip


def main() -> None:
    """All cases, as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats: shows that it runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for threads in (1, 2):
        for rule, points, width in CASES:
            rows.append(measure(rule, points, width, 2 if arguments.quick else 8, threads))
            print(json.dumps(rows[-1]), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
