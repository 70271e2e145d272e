"""Seconds per training step of a two-layer deep GP: this library, GPyTorch, and straight-line torch, in one process.

``python -m benchmarks.speed [--quick] [--json FILE]``. Per-output kernels, M 128, batch 100, width 5, float32, the same
arithmetic in all three. Steps alternate; ratios are medians of the per-step ratios, of wall-clock time (steps per second) and
of CPU time (``cpu_``, which counts both threads).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import Step, alternate, library_step, plain_step, toy
from pyro_dgp import ELBO, InducingPoints, MonteCarlo, Variational
from pyro_dgp.models import DeepGP

WIDTH, INDUCING, BATCH, INPUTS, ROWS = 5, 128, 100, 8, 2000


def library(x: Tensor, y: Tensor, samples: int) -> Step:
    """This library's."""
    model = DeepGP(x, 2, WIDTH, per_output=True)
    guide = Variational(model, InducingPoints(INDUCING), MonteCarlo(samples))
    return library_step(ELBO(num_data=len(x)), guide, x, y, BATCH)


def gpytorch(x: Tensor, y: Tensor, samples: int) -> Step:
    """GPyTorch's."""
    from benchmarks.peers import PeerDeepGP, Trainer

    trainer = Trainer(PeerDeepGP(x, 2, WIDTH, INDUCING, per_output=True), x, y, 10**6, BATCH, samples)
    return lambda: trainer.step() and None


class StraightLine(torch.nn.Module):
    """The same objective with no framework around it."""

    def __init__(self, x: Tensor, samples: int) -> None:
        super().__init__()
        self.samples = samples
        new = torch.nn.Parameter
        outputs = (WIDTH, 1)
        dims = (INPUTS, WIDTH)
        self.z = torch.nn.ParameterList([new(torch.randn(INDUCING, d)) for d in dims])
        self.m = torch.nn.ParameterList([new(torch.zeros(o, INDUCING)) for o in outputs])
        self.t = torch.nn.ParameterList([new(torch.eye(INDUCING).repeat(o, 1, 1)) for o in outputs])
        self.log_lengthscale = torch.nn.ParameterList(
            [new(torch.full((o, 1, d), 0.5 * math.log(d))) for o, d in zip(outputs, dims, strict=True)]
        )
        self.log_variance = torch.nn.ParameterList([new(torch.zeros(o, 1, 1)) for o in outputs])
        self.log_noise = new(torch.tensor(-2.0))
        _, _, v = torch.linalg.svd(x, full_matrices=False)
        self.register_buffer("projection", v[:WIDTH].mT.contiguous())

    def kernel(self, i: int, x: Tensor, z: Tensor) -> Tensor:
        a, b = x / self.log_lengthscale[i].exp(), z / self.log_lengthscale[i].exp()
        squared = a.square().sum(-1, keepdim=True) + b.square().sum(-1, keepdim=True).mT - 2 * a @ b.mT
        s = math.sqrt(5.0) * squared.clamp_min(1e-20).sqrt()
        return self.log_variance[i].exp() * (1 + s + s.square() / 3) * torch.exp(-s)

    def layer(self, i: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, t, m = self.z[i], self.t[i].tril(), self.m[i]
        factor = torch.linalg.cholesky(self.kernel(i, z, z) + 1e-4 * torch.eye(INDUCING))
        a = torch.linalg.solve_triangular(factor, self.kernel(i, z, x), upper=False)
        mean = (m.unsqueeze(-2) @ a).squeeze(-2)
        variance = self.log_variance[i].exp()[..., 0] - a.square().sum(-2) + (t.mT @ a).square().sum(-2)
        kl = 0.5 * (m.square().sum() + t.square().sum() - m.numel()) - t.diagonal(dim1=-2, dim2=-1).abs().log().sum()
        return mean, variance.clamp_min(1e-6), kl

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mean, variance, kl = self.layer(0, x)
        mean = mean.mT + x @ self.projection
        h = mean + variance.mT.sqrt() * torch.randn(self.samples, *mean.shape)
        top, top_variance, top_kl = self.layer(1, h.reshape(-1, WIDTH))
        top, top_variance = top.reshape(self.samples, -1), top_variance.reshape(self.samples, -1)
        noise = self.log_noise.exp() + 1e-4
        expected = -0.5 * (((y - top).square() + top_variance) / noise + noise.log() + math.log(2 * math.pi))
        return -(expected.mean(0).sum() * ROWS / BATCH - kl - top_kl)


def measure(samples: int, repeats: int, threads: int) -> dict[str, float | int | str]:
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    x, y = toy(ROWS, INPUTS)
    steps = {
        "": library(x, y, samples),
        "gpytorch_": gpytorch(x, y, samples),
        "floor_": plain_step(StraightLine(x, samples), x, y, BATCH),
    }
    wall, cpu = alternate(steps, repeats)
    row: dict[str, float | int | str] = {
        "method": "dsvi", "layers": 2, "width": WIDTH, "inducing": INDUCING, "samples": samples, "batch": BATCH,
        "dtype": "float32", "per_output": True, "threads": threads,
    }  # fmt: skip
    for kind, seconds in (("", wall), ("cpu_", cpu)):
        row |= {f"{kind}{name}seconds_per_step": float(values.median()) for name, values in seconds.items()}
        row[f"{kind}ratio_to_gpytorch"] = float((seconds["gpytorch_"] / seconds[""]).median())
        row[f"{kind}ratio_to_floor"] = float((seconds[""] / seconds["floor_"]).median())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats: shows that it runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for threads in (1, 2):
        for samples in (10, 32):
            rows.append(measure(samples, 3 if arguments.quick else 60, threads))
            print(json.dumps(rows[-1]), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
