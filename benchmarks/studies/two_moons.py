"""Two classes by four methods on one model: the probability of a class over the plane.

``python -m benchmarks.studies.two_moons [--figure FILE] [--rows N] [--draws K]``

The two half circles of scikit-learn with noise of standard deviation 0.25, which overlap. One model object, a deep GP of two layers with a probit
likelihood and priors on its hyperparameters, is fitted by ``dsvi``, ``dspp`` and the No-U-Turn sampler, and one layer of the same kernel by
``svgp``. Prints the scores of 2,000 other points, and draws the probability.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pyro.infer import MCMC
from sklearn.datasets import make_moons
from torch import Tensor

from pyro_dgp import (
    ELBO,
    Bernoulli,
    DeepGP,
    InducingPoints,
    MonteCarlo,
    PosteriorDraws,
    PredictiveLogLikelihood,
    SigmaPoints,
    Variational,
    WhitenedNUTS,
    fit,
    module_local_parameters,
    predict,
    scores,
    with_priors,
)

NOISE, TEST, BETA = 0.25, 2000, 0.2
METHODS = ("svgp", "dsvi", "dspp", "nuts")


def moons(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return standardised points ``(N, 2)`` and their classes, 0 and 1."""
    x, y = make_moons(rows, noise=NOISE, random_state=seed)
    middle, scale = torch.tensor([0.5, 0.25]), torch.tensor([0.87, 0.5])
    return (torch.as_tensor(x) - middle) / scale, torch.as_tensor(y, dtype=torch.get_default_dtype())


def fitted(method: str, x: Tensor, y: Tensor, *, draws: int) -> Any:
    """Fit one method and return what predictions are made from."""
    torch.manual_seed(0)
    model = with_priors(DeepGP(x, 1 if method == "svgp" else 2, 2, kernel="rbf", likelihood=Bernoulli()))
    if method == "nuts":
        chain = MCMC(WhitenedNUTS(model, max_tree_depth=5), num_samples=draws, warmup_steps=draws, disable_progbar=True)
        with module_local_parameters():
            chain.run(x, y)
        return PosteriorDraws(model, chain.get_samples(), (x, y))
    propagation = SigmaPoints("qr3", 10) if method == "dspp" else MonteCarlo(10)
    guide = Variational(model, InducingPoints(40, hidden_scale=1.0 if method == "dspp" else 0.01), propagation)
    guide.initialize(x, y)
    loss = PredictiveLogLikelihood(len(x), BETA) if method == "dspp" else ELBO(len(x))
    fit(loss(model, guide), x, y, steps=2000, batch_size=len(x), learning_rate=0.02)
    return guide


def surface(posterior: Any, size: int = 60) -> tuple[Tensor, Tensor]:
    """Return a grid over the plane, and the probability of class 1 there, ``(size, size)``."""
    axis = torch.linspace(-3.2, 3.2, size)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        return axis, predict(posterior, grid, 100).probs[:, 1].reshape(size, size)


def draw(
    surfaces: dict[str, tuple[Tensor, Tensor]],
    figures: dict[str, dict[str, float]],
    data: tuple[Tensor, Tensor],
    path: Path,
) -> None:
    """Draw the probability of class 1 of each method with the training points."""
    figure = Figure(figsize=(13, 3.7), layout="constrained")
    FigureCanvasAgg(figure)
    x, y = data
    for panel, (method, (axis, probability)) in zip(
        figure.subplots(1, len(surfaces), sharey=True), surfaces.items(), strict=True
    ):
        shown = panel.contourf(axis, axis, probability.T, levels=torch.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.8)
        panel.contour(axis, axis, probability.T, levels=[0.5], colors="k", linewidths=1)
        for label, colour in ((0, "#2b5c9e"), (1, "#a4262c")):
            panel.plot(*x[y == label].T, ".", color=colour, ms=6, mec="white", mew=0.5)
        own = figures[method]
        panel.set_title(f"{method}: log loss {own['nll']:.3f}, ECE {own['ece']:.3f}", fontsize=10)
        panel.set(xticks=[], yticks=[])
    figure.colorbar(shown, ax=figure.axes, label="probability of class 1", fraction=0.02)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Fit the four methods, print their scores and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--figure", type=Path, default=Path("results/two_moons.png"), help="figure that is written")
    parser.add_argument("--rows", type=int, default=100, help="training points")
    parser.add_argument("--draws", type=int, default=150, help="draws of the chain, and as many of warm-up")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    x, y = moons(arguments.rows, seed=0)
    x_test, y_test = moons(TEST, seed=1)
    surfaces, figures = {}, {}
    with module_local_parameters():
        for method in METHODS:
            posterior = fitted(method, x, y, draws=arguments.draws)
            figures[method] = scores(predict(posterior, x_test, 100), y_test)
            surfaces[method] = surface(posterior)
            print(f"{method:5}", {name: round(value, 3) for name, value in figures[method].items()}, flush=True)
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    draw(surfaces, figures, (x, y), arguments.figure)


if __name__ == "__main__":
    main()
