"""Seconds per training step of amortised deep GPs beside straight-line torch and beside ``dspp``, in one process.

``python -m benchmarks.studies.speed_of_amortized_guides [--quick] [--compiled] [--json FILE]``

Rule AR2P, three layers of widths 8 and 8, 8 inputs, M 8, 4, 4, S 32, isotropic Matern 5/2, diagonal q, one thread. Steps alternate; ratios are
medians of the ratios of neighbouring steps, by wall-clock time. ``dspp`` has the same model and S, with M 128 in every layer (timed at batch 100
alone). ``--compiled`` times ``CompiledObjective`` too, in float32 at batch 100.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, linear, softplus

from benchmarks.common.models import Stack
from benchmarks.common.timing import Data, Step, alternate, library_step, plain_step, toy
from pyro_dgp import (
    ELBO,
    AffineMaps,
    AmortizedInducingPoints,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern52,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    WithMean,
)

SIZES, INDUCING, SAMPLES, ROWS = (8, 8, 8, 1), (8, 4, 4), 32, 2000
SITES = ("h1", "h2", "y")


def model(per_output: bool) -> Stack:
    """Return three GPs with zero means."""
    layers = [
        GaussianProcess(Matern52(outputs=width if per_output else None, lengthscale=inputs**0.5), num_outputs=width)
        for inputs, width in itertools.pairwise(SIZES)
    ]
    return Stack(layers[:-1], layers[-1], Gaussian())


def families() -> dict[str, AmortizedInducingPoints]:
    """Return the inducing points of each site, with networks as narrow as those of Meng and Zhang 2024."""
    narrow = AffineMaps(narrowest=1)
    return {site: AmortizedInducingPoints(size, narrow) for site, size in zip(SITES, INDUCING, strict=True)}


def amortized_step(data: Data, *, per_output: bool, batch: int, compiled: bool = False) -> Step:
    """Return a step of this library, with networks that make the inducing points of each row."""
    guide = Variational(model(per_output), families(), WithMean(SigmaPoints("qr3", SAMPLES)))
    return library_step(ELBO(ROWS), guide, data, batch=batch, compiled=compiled)


def dspp_step(data: Data, *, per_output: bool, batch: int) -> Step:
    """Return a step of this library's deep sigma point process."""
    guide = Variational(model(per_output), InducingPoints(128, "diagonal"), SigmaPoints("qr3", SAMPLES))
    return library_step(PredictiveLogLikelihood(ROWS), guide, data, batch=batch)


class Layer(torch.nn.Module):
    """One amortised layer in plain torch, with no framework around it."""

    def __init__(self, inputs: int, outputs: int, points: int, *, per_output: bool) -> None:
        super().__init__()
        new, kernels = torch.nn.Parameter, outputs if per_output else 1
        self.points, self.outputs = points, outputs
        self.weight = new(torch.eye(inputs).repeat(points, 1, 1))
        self.bias = new(0.5 * torch.randn(points, inputs))
        width = min(inputs, points * outputs)
        sizes = list(itertools.pairwise((inputs, width, width, points * outputs)))
        self.networks = torch.nn.ParameterList(new(0.1 * torch.randn(o, i)) for _ in range(2) for i, o in sizes)
        self.shifts = torch.nn.ParameterList(new(torch.zeros(o)) for _ in range(2) for _, o in sizes)
        self.log_lengthscale = new(torch.full((kernels, 1, 1), 0.5 * math.log(inputs)))
        self.log_variance = new(torch.zeros(kernels, 1, 1))

    def kernel(self, x: Tensor, z: Tensor) -> Tensor:
        """Kernel matrix of each output."""
        a, b = x / self.log_lengthscale.exp(), z / self.log_lengthscale.exp()
        squared = a.square().sum(-1, keepdim=True) + b.square().sum(-1, keepdim=True).mT - 2 * a @ b.mT
        s = math.sqrt(5.0) * squared.clamp_min(1e-20).sqrt()
        return self.log_variance.exp() * (1 + s + s.square() / 3) * torch.exp(-s)

    def network(self, number: int, x: Tensor) -> Tensor:
        """Output ``(N, D_out, M)`` of the network of means (number 0) or scales (number 1)."""
        for layer in range(3 * number, 3 * number + 3):
            x = linear(x, self.networks[layer], self.shifts[layer])
            x = leaky_relu(x, 0.2) if layer % 3 < 2 else x
        return x.unflatten(-1, (self.outputs, self.points))

    def forward(self, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means and variances ``(S, N, D_out)`` at ``x`` of ``(S, N, D)``, and the KL averaged over the rows of ``at``."""
        z = ((at @ self.weight.flatten(0, 1).mT).unflatten(-1, self.bias.shape) + self.bias).unsqueeze(-3)
        m, s = self.network(0, at), softplus(self.network(1, at))
        jitter = 1e-6 * torch.eye(self.points, dtype=x.dtype)
        factor = torch.linalg.cholesky(self.kernel(z, z) + jitter)
        a = torch.linalg.solve_triangular(factor, self.kernel(z, x.movedim(0, -2).unsqueeze(-3)), upper=False)
        mean = (m.unsqueeze(-2) @ a).squeeze(-2)
        change = ((s.square() - 1).unsqueeze(-2) @ a.square()).squeeze(-2)
        variance = (self.log_variance.exp()[..., 0] + change).clamp_min(1e-6)
        kl = 0.5 * (m.square() + s.square() - 1 - 2 * s.log()).sum((-2, -1)).mean()
        return mean.movedim(-1, 0), variance.movedim(-1, 0), kl


class StraightLine(torch.nn.Module):
    """The objective of the amortised deep GP in plain torch."""

    def __init__(self, per_output: bool) -> None:
        super().__init__()
        shapes = zip(itertools.pairwise(SIZES), INDUCING, strict=True)
        self.layers = torch.nn.ModuleList(Layer(i, o, m, per_output=per_output) for (i, o), m in shapes)
        self.positions = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(SAMPLES, 1, w)) for w in SIZES[1:-1])
        self.logits = torch.nn.Parameter(torch.zeros(SAMPLES))
        self.log_noise = torch.nn.Parameter(torch.tensor(-2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of all rows in nats, estimated from this batch."""
        weights, at, h, regularizer = self.logits.softmax(0), x, x.unsqueeze(0), torch.zeros(())
        for number, layer in enumerate(self.layers):
            mean, variance, kl = layer(h, at)
            regularizer = regularizer + kl
            if number < len(self.positions):
                at = torch.tensordot(weights, mean.expand(SAMPLES, -1, -1), 1)
                h = mean + self.positions[number] * variance.sqrt()
        mean, variance = mean.squeeze(-1), variance.squeeze(-1)
        noise = self.log_noise.exp() + 1e-4
        expected = -0.5 * (((y - mean).square() + variance) / noise + noise.log() + math.log(2 * math.pi))
        return -((weights @ expected).sum() * ROWS / len(x) - regularizer)


def measure(
    *, per_output: bool, batch: int, dtype: str, repeats: int, compiled: bool = False
) -> dict[str, float | int | str]:
    """Time one case: medians of the seconds and of the ratios."""
    torch.set_default_dtype(getattr(torch, dtype))
    torch.set_num_threads(1)
    data = toy(ROWS, SIZES[0])
    steps = {
        "": amortized_step(data, per_output=per_output, batch=batch),
        "floor_": plain_step(StraightLine(per_output), data, batch=batch),
    }
    if batch == 100:
        steps["dspp_"] = dspp_step(data, per_output=per_output, batch=batch)
    if compiled:
        steps["compiled_"] = amortized_step(data, per_output=per_output, batch=batch, compiled=True)
    wall, _ = alternate(steps, repeats)
    others = [name for name in ("floor", "dspp", "compiled") if f"{name}_" in wall]
    return {
        "method": "avdgp-ar2p",
        "layers": 3,
        "width": SIZES[1],
        "samples": SAMPLES,
        "batch": batch,
        "dtype": dtype,
        "per_output": per_output,
        "threads": 1,
        **{f"{name}seconds_per_step": float(values.median()) for name, values in wall.items()},
        **{f"ratio_to_{name}": float((wall[""] / wall[f"{name}_"]).median()) for name in others},
    }


def main() -> None:
    """Time all cases and print them as JSON, one a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats: shows that it runs")
    parser.add_argument(
        "--compiled", action="store_true", help="time CompiledObjective too, which takes minutes to make"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for per_output, batch, dtype in itertools.product((False, True), (100, 1000), ("float32", "float64")):
        compiled = arguments.compiled and (batch, dtype) == (100, "float32")
        repeats = 2 if arguments.quick else 30
        rows.append(measure(per_output=per_output, batch=batch, dtype=dtype, repeats=repeats, compiled=compiled))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
