"""Agreement of ``dsvi`` and ``nuts`` on one model object: a two-layer deep GP on 40 noisy points of a step function.

``python -m benchmarks.studies.step_function_agreement [--figure FILE] [--draws K] [--steps N]``

Prints the accuracy of both, the distance between their predictive distributions and the diagnostics of the chain, and draws them in one figure.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pyro.infer import MCMC, NUTS

from pyro_dgp import (
    ELBO,
    InducingPoints,
    MonteCarlo,
    PosteriorDraws,
    Variational,
    module_local_parameters,
    predict,
    whitened,
)
from pyro_dgp.mcmc.diagnostics import convergence
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.models.priors import with_priors
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.training.loop import fit

NOISE = 0.1


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw 40 inputs in [-1, 1], and a step from -1 to 1 at 0 with noise of standard deviation 0.1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(40, 1, generator=generator).sort(0).values * 2 - 1
    return x, step(x) + NOISE * torch.randn(40, generator=generator)


def step(x: torch.Tensor) -> torch.Tensor:
    """Return the step without noise, ``(N,)``."""
    return (x[:, 0] > 0).to(x) * 2 - 1


def wasserstein(a: Prediction, b: Prediction) -> torch.Tensor:
    """Return the 1-Wasserstein distance of two predictive distributions at each input: the mean gap of their quantiles."""
    levels = (torch.arange(200) + 0.5) / 200
    return (a.quantile(levels) - b.quantile(levels)).abs().mean(0)


def run(draws: int = 300, warmup: int = 300, steps: int = 3000, depth: int = 6) -> dict:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x, y = data()
    grid = torch.linspace(-1.3, 1.3, 261)[:, None]
    model = with_priors(DeepGP(x, layers=2, width=1))  # the one model object: dsvi and nuts fit the same priors
    guide = Variational(model, InducingPoints(40), MonteCarlo(10))
    guide.initialize(x, y)
    with module_local_parameters():
        training = fit(ELBO(num_data=40)(model, guide), x, y, steps=steps)
    dsvi = predict(guide, grid, num_samples=400, num_hyperparameter_draws=40)
    start = time.perf_counter()
    with module_local_parameters(model):
        mcmc = MCMC(
            NUTS(whitened(model), max_tree_depth=depth, target_accept_prob=0.9), draws, warmup, disable_progbar=True
        )
        mcmc.run(x, y)
    samples = {name: values.detach() for name, values in mcmc.get_samples().items()}
    seconds = time.perf_counter() - start
    nuts = predict(PosteriorDraws(model, samples, (x, y)), grid, num_samples=200)
    diverging = torch.zeros(1, draws, dtype=torch.bool)
    diverging[0, mcmc.diagnostics()["divergences"]["chain 0"]] = True
    figures = convergence({k: v[None] for k, v in samples.items()}, diverging.numpy())
    truth, away = step(grid), (grid[:, 0].abs() > 0.1) & (grid[:, 0].abs() <= 1)
    inside = grid[:, 0].abs() <= 1
    result = {"dsvi_seconds": training.seconds, "nuts_seconds": seconds, **figures}
    for name, prediction in (("dsvi", dsvi), ("nuts", nuts)):
        result[f"{name}_rmse_away_from_the_jump"] = float((prediction.mean - truth)[away].square().mean().sqrt())
        result[f"{name}_nll_of_new_data"] = -float(prediction.log_prob(truth + NOISE * torch.randn(261))[inside].mean())
    distance = wasserstein(dsvi, nuts)
    result["wasserstein_mean"], result["wasserstein_max"] = (
        float(distance[inside].mean()),
        float(distance[inside].max()),
    )
    return {"figures": result, "x": x, "y": y, "grid": grid[:, 0], "dsvi": dsvi, "nuts": nuts, "distance": distance}


def draw(outcome: dict, path: Path) -> None:
    """Draw both predictive distributions, and their distance."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3, sharex=True)
    for axis, name in zip(axes, ("dsvi", "nuts"), strict=False):
        low, high = outcome[name].quantile([0.05, 0.95])
        axis.fill_between(outcome["grid"], low, high, alpha=0.25, lw=0, label="90 % of new y")
        axis.plot(outcome["grid"], outcome[name].mean, lw=1.5, label="predictive mean")
        axis.plot(outcome["x"][:, 0], outcome["y"], ".", color="0.2", ms=5, label="data")
        axis.set(title=name, xlabel="x", ylim=(-2.2, 2.2))
        axis.legend(fontsize=8, loc="upper left")
    axes[2].plot(outcome["grid"], outcome["distance"], color="C2")
    axes[2].set(title="1-Wasserstein distance of the two", xlabel="x", ylim=(0, None))
    figure.savefig(path, dpi=120)


def main() -> None:
    """Fit both, print the figures and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    outcome = run(draws=arguments.draws, warmup=arguments.draws, steps=arguments.steps)
    print(json.dumps(outcome["figures"], indent=2))
    if arguments.figure is not None:
        draw(outcome, arguments.figure)


if __name__ == "__main__":
    main()
