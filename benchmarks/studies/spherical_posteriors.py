"""Activations as features of mismatched kernels, and their repair by a few orthogonal points: Figs. 1 to 4 and 6 of Tiao et al. 2023.

``python -m benchmarks.studies.spherical_posteriors [--out FILE] [--figures DIR] [--threads N]``

One input, 40 rows of a sine with noise on both sides of a gap, 16 units. Each kernel has the hyperparameters of an exact GP, and q(v) is the best one
in closed form, so that nothing but the features differs. ``sd`` is the mean over inputs of the standard deviation of q(f) over that of the exact
posterior, ``left`` the mean share of the prior's variance that the features leave, ``least`` its minimum, ``gap`` the distance of the bound from
the evidence in nats. Features are published (``relu``, ``softplus`` whole) or cut to the levels. The time of a training step is that of 8 levels and 8
orthogonal points over that of 16 levels, 128 units, 8 inputs, 1000 rows, in turns.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import pandas as pd
import pyro
import torch
from torch import Tensor

from benchmarks.common.timing import alternate, library_step, toy
from pyro_dgp import (
    ELBO,
    ActivationFeatures,
    ArcCosine,
    DeepGP,
    Gaussian,
    InducingPoints,
    MarginalLikelihood,
    Matern52,
    MonteCarlo,
    Orthogonal,
    PublishedActivationFeatures,
    Spherical,
    SphericalHarmonics,
    Variational,
    fit,
)
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.kernels import Kernel
from pyro_dgp.processes import BasisFamily

LEVELS, UNITS, POINTS = 8, 16, 8
ROWS, BATCH, INPUTS, MANY_UNITS = 4000, 1000, 8, 128
ACTIVATIONS = ("relu", "softplus")


def kernels() -> dict[str, Kernel]:
    """Kernels of the figure: one that has even levels alone above the first, and one that has all."""
    return {"arc-cosine": ArcCosine(1, 1), "Matern 5/2": Spherical(Matern52(lengthscale=0.5), 1)}


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets, and inputs at which the posterior is looked at."""
    torch.manual_seed(0)
    x = torch.cat([torch.linspace(-1.6, -0.3, 20), torch.linspace(0.4, 1.6, 20)])[:, None]
    return x, torch.sin(3 * x[:, 0]) + 0.15 * torch.randn(40), torch.linspace(-2.5, 2.5, 201)[:, None]


def families(activation: str) -> dict[str, BasisFamily | Orthogonal]:
    """The features of a row, by name."""
    found: dict[str, BasisFamily | Orthogonal] = {}
    for name, kind in (("published", PublishedActivationFeatures), ("cut", ActivationFeatures)):
        found[f"{name}, {LEVELS} levels"] = kind(UNITS, activation, num_levels=LEVELS)
        found[f"{name}, {2 * LEVELS} levels"] = kind(UNITS, activation, num_levels=2 * LEVELS)
        found[f"{name}, {LEVELS} levels, {POINTS} points"] = Orthogonal(
            kind(UNITS, activation, num_levels=LEVELS), InducingPoints(POINTS)
        )
    return found


def exact(kernel: Kernel, x: Tensor, y: Tensor) -> DeepGP:
    """One exact GP with this kernel, its hyperparameters by the marginal likelihood."""
    model = DeepGP(x, 1, likelihood=Gaussian(variance=0.05))
    model.top.kernel = kernel
    pyro.clear_param_store()
    fit(MarginalLikelihood(model), x, y, steps=300, batch_size=len(x), learning_rate=0.05)
    return model


def posterior(columns: Tensor, prior: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the best q(f) behind the training rows, and the bound, from whitened columns ``(M, N + N*)`` and prior variances."""
    a, at = columns[:, : len(y)], columns[:, len(y) :]
    b = torch.eye(len(a)) + a @ a.T / noise
    mean = at.T @ torch.linalg.solve(b, a @ y / noise)
    variance = prior[len(y) :] - at.square().sum(0) + (at * torch.linalg.solve(b, at)).sum(0)
    covered = torch.distributions.MultivariateNormal(torch.zeros(len(y)), a.T @ a + noise * torch.eye(len(y)))
    bound = covered.log_prob(y) - (prior[: len(y)] - a.square().sum(0)).sum() / (2 * noise)
    return mean, variance, bound


@torch.no_grad()
def compare(name: str, kernel: Kernel) -> tuple[list[dict[str, float | str]], dict[str, tuple[Tensor, Tensor]]]:
    """Return one row for each of the features of a kernel, and means and standard deviations to be drawn."""
    x, y, grid = data()
    with torch.enable_grad():
        model = exact(kernel, x, y)
    everything = torch.cat([x, grid])
    prior: FunctionPrior = model.top(everything)
    variances, noise = prior.variance[:, 0], model.likelihood.variance.reshape(())
    k = prior.covariance_matrix[0]
    n = len(y)
    root = torch.linalg.cholesky(k[:n, :n] + noise * torch.eye(n))
    half = torch.linalg.solve_triangular(root, k[:n, n:], upper=False)
    mean = half.T @ torch.linalg.solve_triangular(root, y[:, None], upper=False)[:, 0]
    sd = (variances[n:] - half.square().sum(0)).sqrt()
    evidence = torch.distributions.MultivariateNormal(torch.zeros(n), scale_tril=root).log_prob(y)
    rows: list[dict[str, float | str]] = []
    drawn = {"exact": (mean, sd)}
    for activation in ACTIVATIONS:
        for label, family in families(activation).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # published units warn of what is measured here
                process = family.create(model.top(x), hidden=False)
            try:
                a = process.basis.columns(prior)[0]
            except NotPositiveDefiniteError:  # published units leave a negative variance, of which nothing can be made
                rows.append({"kernel": name, "activation": activation, "features": label, "size": process.basis.size})
                continue
            found, variance, bound = posterior(a, variances, y, noise)
            left = (variances - a.square().sum(0)) / variances
            deviation = variance.clamp_min(0).sqrt()
            drawn[f"{activation}, {label}"] = (found, deviation)
            rows.append(
                {
                    "kernel": name,
                    "activation": activation,
                    "features": label,
                    "size": process.basis.size,
                    "sd": float((deviation / sd).mean()),
                    "left": float(left[n:].mean()),
                    "least": float(left.min()),
                    "gap": float(evidence - bound),
                    "error": float((found - mean).abs().mean()),
                }
            )
    return rows, drawn


def times(repeats: int) -> dict[str, float]:
    """Return medians of the processor time of a step, milliseconds."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    few, many = (ActivationFeatures(MANY_UNITS, "softplus", num_levels=levels) for levels in (LEVELS, 2 * LEVELS))
    kinds = {"8 levels": few, "16 levels": many, "8 levels, 8 points": Orthogonal(few, InducingPoints(POINTS))}
    steps, rows = {}, toy(ROWS, INPUTS)
    for name, family in kinds.items():
        torch.manual_seed(0)
        guide = Variational(DeepGP(rows[0], 1, kernel="matern52-spherical"), family, MonteCarlo(1))
        steps[name] = library_step(ELBO(ROWS), guide, rows, batch=BATCH)
    _, cpu = alternate(steps, repeats)
    torch.set_default_dtype(before)
    return {name: 1000 * float(each.median()) for name, each in cpu.items()}


def draw(drawn: dict[str, dict[str, tuple[Tensor, Tensor]]], figures: Path) -> None:
    """Draw harmonics and a unit on the sphere (Figs. 1 and 2), what features leave (Fig. 3), and posteriors (Figs. 4 and 6)."""
    import matplotlib.pyplot as plt

    figures.mkdir(parents=True, exist_ok=True)
    _draw_sphere(figures)
    x, y, grid = data()
    labels = [f"published, {LEVELS} levels", f"published, {LEVELS} levels, {POINTS} points"]
    canvas, panels = plt.subplots(
        len(labels), 2 * len(drawn), figsize=(13, 6), sharex=True, sharey=True, layout="constrained"
    )
    for column, (kernel, activation) in enumerate(
        (kernel, activation) for kernel in drawn for activation in ACTIVATIONS
    ):
        for axes, label in zip(panels[:, column], labels, strict=True):
            exact_mean, exact_sd = drawn[kernel]["exact"]
            mean, sd = drawn[kernel].get(f"{activation}, {label}", (torch.full_like(exact_mean, torch.nan),) * 2)
            axes.fill_between(grid[:, 0], mean - 2 * sd, mean + 2 * sd, alpha=0.3, label="two standard deviations")
            axes.plot(grid[:, 0], mean, label="mean")
            for line in (exact_mean - 2 * exact_sd, exact_mean + 2 * exact_sd):
                axes.plot(grid[:, 0], line, "k--", linewidth=0.8, label="exact" if line is not exact_mean else None)
            axes.plot(x[:, 0], y, "k.", markersize=3)
            axes.set_title(f"{kernel}, {activation}\n{label.removeprefix('published, ')}", fontsize=9)
            axes.set_ylim(-3, 3)
    handles, names = panels[0, 0].get_legend_handles_labels()
    canvas.legend(handles[:3], names[:3], loc="outside lower center", ncols=3)
    canvas.savefig(figures / "spherical_posteriors.png")


def _draw_sphere(figures: Path) -> None:
    import matplotlib.pyplot as plt

    azimuth, polar = torch.meshgrid(torch.linspace(0, 2 * torch.pi, 90), torch.linspace(0, torch.pi, 45), indexing="ij")
    points = torch.stack([polar.sin() * azimuth.cos(), polar.sin() * azimuth.sin(), polar.cos()], -1)
    model = DeepGP(torch.randn(50, 2), 1, kernel="matern52-spherical")
    pyro.clear_param_store()
    prior = model.top(torch.randn(50, 2))
    with torch.no_grad():
        flat = points.reshape(-1, 3)
        # Inputs are (x1, x2) with a bias of one behind them: a direction with a positive last entry is the lift of one of them.
        upper = torch.where(flat[:, 2:].abs() < 1e-3, 1e-3, flat[:, 2:])
        at = prior.at(flat[:, :2] / upper)
        norms = (at.x.square().sum(-1) + 1).sqrt()
        harmonic = SphericalHarmonics(16).create(prior, hidden=False).basis.columns(at)[0] / norms
        unit = PublishedActivationFeatures(3, "relu").create(prior, hidden=False).basis
        cosine = flat @ torch.nn.functional.normalize(unit.directions[0].detach(), dim=0)
    # Odd levels change their sign below the equator, where the lift is the opposite direction.
    signs = torch.where(flat[:, 2] < 0, -1.0, 1.0)
    panels = {
        "level 0": harmonic[0],
        "level 1": harmonic[2] * signs,
        "level 2": harmonic[5],
        "level 3": harmonic[10] * signs,
        "a rectified linear unit": cosine.relu(),
    }
    canvas = plt.figure(figsize=(13, 2.9))
    for number, (title, values) in enumerate(panels.items(), 1):
        axes = canvas.add_subplot(1, len(panels), number, projection="3d")
        shown = values.reshape(azimuth.shape)
        limit = float(shown.abs().max())
        axes.plot_surface(
            *points.unbind(-1),
            facecolors=plt.cm.coolwarm(((shown / limit + 1) / 2).numpy()),
            rstride=1,
            cstride=1,
            linewidth=0,
        )
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
        axes.set_box_aspect((1, 1, 1), zoom=1.7)
    canvas.savefig(figures / "spherical_features-sphere.png", dpi=110)


def main() -> None:
    """Compare, time, print and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="file of the rows and times, JSON; none is written if not given")
    parser.add_argument("--figures", type=Path, help="folder of the figures; none are drawn if not given")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--repeats", type=int, default=50, help="timed steps of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_default_dtype(torch.float64)
    rows, drawn = [], {}
    for name, kernel in kernels().items():
        more, drawn[name] = compare(name, kernel)
        rows += more
    print(pd.DataFrame(rows).round(3).to_string(index=False))
    measured = times(arguments.repeats)
    print(
        {name: round(value, 2) for name, value in measured.items()},
        "8 levels and points over 16 levels:",
        round(measured["8 levels, 8 points"] / measured["16 levels"], 3),
    )
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"rows": rows, "milliseconds": measured}, indent=2))
    if arguments.figures is not None:
        draw(drawn, arguments.figures)


if __name__ == "__main__":
    main()
