"""Do draws of a deep GP collapse with depth? The exact prior beside an untrained amortised guide (Meng and Zhang 2024, Fig. 3).

``python -m benchmarks.studies.depth_collapse [--figure FILE] [--draws K] [--gain G]``

Prints one number for each depth and draws both. The number is the share of a draw's total variation that falls into the steepest twentieth of
the interval: 0.05 for a straight line, 1 for a step function. Prior and guide have zero means, one output a layer and a Matern 5/2 kernel of
lengthscale 1. In the guide, the whitened inducing values of each layer are the output of its untrained mean network (16 units wide, narrow
q), so draws differ by the random weights of these networks. These weights are the library's starting weights times ``--gain``. A gain of 2.4 gives
the variance of He's initialisation for this LeakyReLU, which keeps the range of the values from layer to layer; with 1 the range shrinks at
every layer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyro
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pyro.nn import PyroModule
from torch import Tensor

from pyro_dgp import AffineMaps, AmortizedInducingPoints, GaussianProcess, Matern52, MonteCarlo, Variational
from pyro_dgp.internal.parameters import module_local_parameters

DEPTHS = tuple(range(1, 11))
INDUCING = 4


class Chain(PyroModule):
    """GPs of one output, each on top of the one before."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.parts = PyroModule[torch.nn.ModuleList]([GaussianProcess(Matern52()) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        """Pyro model of the function values ``(N, 1)`` of the last layer."""
        f = x
        for number, layer in enumerate(self.parts, 1):
            f = pyro.sample(f"f{number}", layer(f))
        return f


def prior_draws(layers: int, x: Tensor, count: int) -> Tensor:
    """Draw functions of the last layer from the prior, ``(count, N)``."""
    return torch.stack([Chain(layers)(x)[:, 0] for _ in range(count)])


def guide_draws(layers: int, x: Tensor, count: int, gain: float) -> Tensor:
    """Return means of the last layer under guides with random weights, ``(count, N)``.

    Whitened inducing values are the output of the mean networks; nothing else is random.
    """
    draws = []
    for _ in range(count):
        model = Chain(layers)
        family = AmortizedInducingPoints(INDUCING, AffineMaps(), hidden_scale=1e-3, scale=1e-3)
        guide = Variational(model, family, MonteCarlo(1))
        guide.initialize(x)
        for process in guide.processes._modules.values():
            process.functions.means.coefficients.data.mul_(gain)
        f = x
        for number, layer in enumerate(model.parts, 1):
            f = guide.processes._modules[f"f{number}"](layer(f)).mean
        draws.append(f[:, 0])
    return torch.stack(draws)


def concentration(draws: Tensor, share: float = 0.05) -> Tensor:
    """Return the share of each draw's total variation that lies in its steepest steps.

    :param share: the share of all steps that are counted as the steepest.
    """
    steps = draws.diff(dim=1).abs()
    steepest = steps.topk(max(1, round(share * steps.shape[1])), dim=1).values.sum(1)
    return steepest / steps.sum(1)


def run(draws: int, points: int = 400, gain: float = 2.4) -> tuple[list[dict], dict[str, list[Tensor]], Tensor]:
    """Measure every depth; return rows of the table, five draws of each kind and depth, and the inputs ``(N,)``."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, points)[:, None]
    rows: list[dict] = []
    shown: dict[str, list[Tensor]] = {"prior": [], "guide": []}
    with module_local_parameters(), torch.no_grad():
        for layers in DEPTHS:
            parts = {"prior": prior_draws(layers, x, draws), "guide": guide_draws(layers, x, draws, gain)}
            row: dict = {"layers": layers}
            for name, values in parts.items():
                share = concentration(values)
                row[name], row[f"{name}_sem"] = float(share.mean()), float(share.std() / draws**0.5)
                row[f"{name}_range"] = float((values.amax(1) - values.amin(1)).median())
                shown[name].append(values[:5])
            rows.append(row)
    return rows, shown, x[:, 0]


def draw(shown: dict[str, list[Tensor]], x: Tensor, *, rows: list[dict], path: Path) -> None:
    """Draw five functions of each depth, prior above and guide below."""
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(DEPTHS), sharex=True)
    for line, (name, columns) in enumerate(shown.items()):
        for column, values in enumerate(columns):
            axis = axes[line, column]
            axis.plot(x.numpy(), values.mT.numpy(), lw=0.9)
            depth = DEPTHS[column]
            axis.set_title(f"{depth} layer{'s' * (depth > 1)}: {rows[column][name]:.2f}", fontsize=8)
            low, high = axis.get_ylim()
            axis.set_ylim(max(low, -8), min(high, 8))
            axis.tick_params(labelsize=6)
    axes[0, 0].set_ylabel("exact prior", fontsize=8)
    axes[1, 0].set_ylabel("untrained guide", fontsize=8)
    figure.suptitle(
        "draws with zero means; in the titles the share of variation in the steepest twentieth (0.05: a line, 1: steps). "
        "Guide: whitened u at the output of its mean network; axes end at 8",
        fontsize=9,
    )
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print a row for each depth, and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--gain", type=float, default=2.4)
    arguments = parser.parse_args()
    rows, shown, x = run(arguments.draws, gain=arguments.gain)
    for row in rows:
        print(json.dumps(row))
    if arguments.figure is not None:
        draw(shown, x, rows=rows, path=arguments.figure)


if __name__ == "__main__":
    main()
