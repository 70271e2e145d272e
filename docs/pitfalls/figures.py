"""Figures of the pages on pitfalls: runs the code of a page and draws what it leaves behind.

``python docs/pitfalls/figures.py [NAME ...]`` from the repository's root writes ``docs/pitfalls/NAME.png`` beside each page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pyro_dgp import predict

HERE = Path(__file__).parent
BLUE, RED, GRAY = "#1f5fa8", "#c0392b", "0.55"
Names = dict[str, Any]
Panels = list[Axes]


def band(axes: Axes, guide: Any, x: torch.Tensor, title: str) -> None:
    """Draw the predictive mean and two standard deviations over one input."""
    grid = torch.linspace(float(x.min()), float(x.max()), 300, dtype=x.dtype)[:, None]
    with torch.no_grad():
        prediction = predict(guide, grid)
        mean, sd = prediction.mean, prediction.variance.sqrt()
    axes.plot(grid, mean, color=BLUE)
    axes.fill_between(grid[:, 0], mean - 2 * sd, mean + 2 * sd, color=BLUE, alpha=0.2, linewidth=0)
    axes.set_title(title, fontsize=9)


def rows(axes: Axes, x: torch.Tensor, y: torch.Tensor, color: str = "black") -> None:
    """Draw rows as points."""
    axes.plot(x[:, 0], y, ".", color=color, markersize=4)


def flat_hidden_layers(panels: Panels, names: Names) -> None:
    """Draw hidden layers and predictions."""
    for row, (guide, title) in enumerate(((names["flat_guide"], "zero mean"), (names["mended_guide"], "linear mean"))):
        with torch.no_grad():
            hidden = predict(guide, names["x"], site="h1").mean
        panels[2 * row].plot(names["x"], hidden, color=RED)
        panels[2 * row].set_title(f"hidden layer, {title}", fontsize=9)
        panels[2 * row].set_ylim(-2.5, 2.5)
        rows(panels[2 * row + 1], names["x"], names["y"])
        band(panels[2 * row + 1], guide, names["x"], f"prediction, {title}")


def collapsed_noise(panels: Panels, names: Names) -> None:
    """Draw both fits."""
    for axes, guide, title in zip(
        panels, (names["narrow_guide"], names["mended_guide"]), ("fixed", "learned"), strict=True
    ):
        rows(axes, names["x"], names["y"])
        band(axes, guide, names["x"], f"noise is {title}")


def exploding_predictive_losses(panels: Panels, names: Names) -> None:
    """Draw both fits with training rows and rows that were held out."""
    pairs = ((names["wild"], "predictive loss, beta 0"), (names["mended_guide"], "ELBO"))
    for axes, (guide, title) in zip(panels, pairs, strict=True):
        rows(axes, names["x"], names["y"])
        rows(axes, names["x_new"], names["y_new"], RED)
        band(axes, guide, names["x"], title)
        axes.set_ylim(-2.5, 2.5)
    panels[0].legend(["trained on", "held out"], fontsize=7, loc="lower left")


def divergences(panels: Panels, names: Names) -> None:
    """Draw the lengthscale of each draw."""
    for axes, chains, title in zip(panels, (names["wild"], names["slices"]), ("NUTS, step 0.3", "slices"), strict=True):
        axes.plot(chains.draws["top.kernel.lengthscale"].flatten(), color=BLUE)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("draw", fontsize=8)
    panels[0].set_ylabel("lengthscale", fontsize=8)


def mirror_images(panels: Panels, names: Names) -> None:
    """Draw hidden and predicted functions of both chains."""
    chains, x = names["chains"], names["x"]
    hidden = predict(chains, x, num_samples=80, site="h1").mixture().components.mean
    values = (hidden.reshape(2, 40, -1), names["values"].reshape(2, 40, -1))
    for axes, value, title in zip(panels, values, ("hidden function", "predicted function"), strict=True):
        for chain, color in zip(value, (BLUE, RED), strict=True):
            axes.plot(x, chain[::8].T, color=color, alpha=0.5, linewidth=0.8)
        axes.set_title(title, fontsize=9)


def float32_long_ranges(panels: Panels, names: Names) -> None:
    """Draw targets at rounded and at shifted inputs."""
    start = names["exact"].min()
    rows(panels[0], names["coarse"].double() - start, names["y"], RED)
    panels[0].set_title("float32 first", fontsize=9)
    rows(panels[1], names["x"], names["y"], BLUE)
    panels[1].set_title("start subtracted in float64 first", fontsize=9)
    for axes in panels:
        axes.set_xlabel("input less its start", fontsize=8)


def amortised_extrapolation(panels: Panels, names: Names) -> None:
    """Draw both fits beyond the training rows."""
    pairs = ((names["travelling"], "amortised inducing points"), (names["mended_guide"], "fixed inducing points"))
    for axes, (guide, title) in zip(panels, pairs, strict=True):
        band(axes, guide, names["wide"], title)
        axes.plot(names["wide"], names["y_wide"], color=GRAY, linewidth=0.8)
        rows(axes, names["x"], names["y"])


def unscaled_targets(panels: Panels, names: Names) -> None:
    """Draw both fits."""
    for axes, guide, title in zip(
        panels, (names["raw"], names["mended_guide"]), ("as they are", "standardised"), strict=True
    ):
        rows(axes, names["x"], names["y"])
        band(axes, guide, names["x"], f"targets {title}")


def coinciding_points(panels: Panels, names: Names) -> None:
    """Draw both fits with their inducing points."""
    pairs = ((names["together"], "twelve points at three places"), (names["mended_guide"], "twelve places"))
    for axes, (guide, title) in zip(panels, pairs, strict=True):
        rows(axes, names["x"], names["y"])
        band(axes, guide, names["x"], title)
        points = getattr(guide.processes, "y/f").basis.inducing_points.detach()
        axes.plot(points[:, 0], torch.full((len(points),), -2.2), "|", color=RED, markersize=10)


FIGURES: dict[str, Callable[[Panels, Names], None]] = {
    draw.__name__.replace("_", "-"): draw
    for draw in (
        flat_hidden_layers,
        collapsed_noise,
        exploding_predictive_losses,
        divergences,
        mirror_images,
        float32_long_ranges,
        amortised_extrapolation,
        unscaled_targets,
        coinciding_points,
    )
}


def main() -> None:
    """Draw the figures that are named, or all."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name in sys.argv[1:] or FIGURES:
        names: Names = {"__name__": "page"}
        text = (HERE / f"{name}.md").read_text()
        with pyro.settings.context(module_local_params=True):
            exec(compile("".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), name, "exec"), names)
            height = 2 if name == "flat-hidden-layers" else 1
            figure = Figure(figsize=(7, 2.4 * height), layout="constrained")
            FigureCanvasAgg(figure)
            panels = list(figure.subplots(height, 2, squeeze=False).flatten())
            for axes in panels:
                axes.tick_params(labelsize=7)
            FIGURES[name](panels, names)
        figure.savefig(HERE / f"{name}.png", dpi=100)
        print(name, flush=True)


if __name__ == "__main__":
    main()
