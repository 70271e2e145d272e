"""The value function of the mountain car by one layer and by three, drawn layer by layer.

``python -m benchmarks.studies.mountain_car --data FOLDER [--figure FILE] [--epochs E] [--split K] [--threads N]``

``FOLDER/mountain_car.npz`` holds the cost to go of a learnt policy (steps until the car is out) on a grid of 100 x 100 positions and velocities, a
surface with jumps and no noise; a tenth of the grid is tested. ``svgp`` has one layer, ``dsvi`` three of 2, 2 and 1 functions, both 100 inducing
points and RBF kernels with lengthscales for each input ([2020-ashman] Fig. 1, which prints no number). Prints both RMSEs in steps, and draws the
truth, both predictions, and the functions of each hidden layer over the inputs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.common.data import add_data_option, read_data, require_data
from pyro_dgp import METHODS, Settings, module_local_parameters, predict
from pyro_dgp.data.splitting import Scaler, held_out_rows
from pyro_dgp.guides.variational import Variational

#: Settings of each method. ``samples`` draws of each of 1,000 rows, as in the paper.
SETTINGS = {
    "svgp": Settings(kernel="rbf", inducing=100, batch_size=1000, samples=1),
    "dsvi": Settings(kernel="rbf", inducing=100, batch_size=1000, samples=1, layers=3, width=2),
}
GRID = 100


def functions(guide: Variational, grid: Tensor) -> list[tuple[str, Tensor]]:
    """Return the mean of each function of the hidden layers over a grid, with what it is."""
    found = []
    for layer, site in enumerate(("h1", "h2"), 1):
        mean = predict(guide, grid, 20, site=site).mean
        found += [(f"layer {layer}, function {number}", column) for number, column in enumerate(mean.T, 1)]
    return found


def draw(panels: list[tuple[str, Tensor]], extent: tuple[float, ...], path: Path) -> None:
    """Draw surfaces over position and velocity: the first three on one scale, each other on its own."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    FigureCanvasAgg(figure)
    low, high = float(panels[0][1].min()), float(panels[0][1].max())
    axes = figure.subplots(2, 4).ravel()
    for number, (panel, (title, values)) in enumerate(zip(axes, panels, strict=False)):
        limits = {"vmin": low, "vmax": high} if number < 3 else {}
        shown = panel.imshow(values, origin="lower", aspect="auto", extent=extent, cmap="viridis", **limits)
        panel.set_title(title, fontsize=10)
        figure.colorbar(shown, ax=panel, shrink=0.8)
        if number % 4 == 0:
            panel.set_ylabel("velocity")
        if number >= 4 or number == 3:
            panel.set_xlabel("position")
    for panel in axes[len(panels) :]:
        panel.axis("off")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Fit both, print their errors and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--figure", type=Path, default=Path("results/mountain_car.png"), help="figure that is written")
    parser.add_argument(
        "--epochs", type=int, default=2220, help="passes over the 9,000 training rows, of nine steps each"
    )
    parser.add_argument("--split", type=int, default=0, help="split of the file")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_default_dtype(torch.float64)
    require_data(arguments)
    data = read_data("mountain_car", arguments.data)
    test = held_out_rows(data, arguments.split)
    order = np.lexsort((data.x[:, 0], data.x[:, 1]))  # rows of a picture are velocities, its columns positions
    inputs, target = Scaler.fit(data.x[~test]), Scaler.fit(data.y[~test])
    x, y = torch.as_tensor(inputs(data.x)), torch.as_tensor(target(data.y))
    panels = [("cost to go in steps", torch.as_tensor(data.y[order]))]
    hidden: list[tuple[str, Tensor]] = []
    for name, settings in SETTINGS.items():
        settings = replace(settings, epochs=arguments.epochs, split=arguments.split)
        torch.manual_seed(settings.seed)
        with module_local_parameters():
            model = METHODS[name].architecture.build(x[~test], settings)
            fitted = METHODS[name].inference.run(model, x[~test], y[~test], settings=settings, progress=lambda *_: None)
            errors = (fitted.predict(x[test]).mean - y[test]) * float(target.scale)
            surface = fitted.predict(x[order]).mean * float(target.scale) + float(target.mean)
            if name == "dsvi":
                hidden = functions(fitted.predict.guide, x[order])  # type: ignore[attr-defined]
        error, layers = float(errors.square().mean().sqrt()), "one layer" if name == "svgp" else "three layers"
        panels.append((f"{name}, {layers}: RMSE {error:.2f} steps", surface))
        print(f"{name}: RMSE {error:.3f} steps, {fitted.seconds:.0f} s, {list(fitted.remarks)}", flush=True)
    pictures = [(title, values.reshape(GRID, GRID)) for title, values in panels + hidden]
    extent = tuple(float(edge) for column in data.x.T for edge in (column.min(), column.max()))
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    draw(pictures, extent, arguments.figure)


if __name__ == "__main__":
    main()
