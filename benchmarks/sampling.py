"""How well the samplers mix on a deep GP: R-hat, effective samples, divergences and seconds on a step function and on yacht.

``python -m benchmarks.sampling step|yacht --samplers ess,nuts [--data FOLDER] [--folder FOLDER] [--out FILE] [--figure FILE]``

Two layers, priors on every hyperparameter, 100 training rows, 4 chains: of width 2 from draws of the prior for the step function; for
yacht, whose noise is small, as wide as there are inputs and after an ascent from draws of the prior. Judged by what a user takes from the
chains and what permutations of hidden units leave alone: the log density of the test rows and the predictive mean at each of
them, draw by draw. Chains that stand in different modes are shown with their NLL. Interrupted, the same command goes on (chains are saved
in the folder); one JSON line a sampler.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.nn import PyroModule
from torch import Tensor

from benchmarks.experiments import read
from pyro_dgp import (
    Ascent,
    CompiledDensity,
    EllipticalSlice,
    PriorDraw,
    SurrogateScale,
    WhitenedNUTS,
    predict_mcmc,
    run_chains,
)
from pyro_dgp.data.reading import load
from pyro_dgp.data.splitting import split
from pyro_dgp.export.arviz_groups import import_arviz
from pyro_dgp.mcmc.initial_points import Start
from pyro_dgp.zoo.recipes import deep_with_priors
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class Problem:
    """How a data set is modelled and sampled."""

    width: int
    start: Start
    tree_depth: int
    surrogate_scale: SurrogateScale | None

    def ess(self, model: PyroModule) -> MCMCKernel:
        """Elliptical slices."""
        return EllipticalSlice(model, density=CompiledDensity, start=self.start, surrogate_scale=self.surrogate_scale)

    def nuts(self, model: PyroModule) -> MCMCKernel:
        """The No-U-Turn sampler."""
        return WhitenedNUTS(model, self.tree_depth, CompiledDensity, self.start, target_accept_prob=0.9)


PROBLEMS = {"step": Problem(2, PriorDraw(), 6, None), "yacht": Problem(6, Ascent(), 7, SurrogateScale())}
SAMPLERS: dict[str, Callable[[Problem, PyroModule], MCMCKernel]] = {"ess": Problem.ess, "nuts": Problem.nuts}


def step_function() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """100 training and 50 test points of a step of height 2 with noise of 0.1, standardised."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(150, 1, generator=generator) * 2 - 1
    y = torch.sign(x[:, 0]) + 0.1 * torch.randn(150, generator=generator)
    y = (y - y[:100].mean()) / y[:100].std()
    return x[:100], y[:100], x[100:], y[100:]


def yacht(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """100 training rows of split 0, and its test rows."""
    part = split(load(folder / "yacht.npz"), 0, dtype=torch.float64)
    rows = torch.randperm(len(part.x_train), generator=torch.Generator().manual_seed(0))[:100]
    return part.x_train[rows], part.y_train[rows], part.x_test, part.y_test


def judged(model: Any, chains: Any, data: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[np.ndarray, list[float]]:
    """Mean log density of the test rows, and predictive means, of each draw: ``(chains, draws, 1 + N)``; and the NLL of each chain's
    mixture, nats per row.
    """
    x, y, new, target = data
    count, draws = next(iter(chains.draws.values())).shape[:2]
    torch.manual_seed(0)
    mixture = predict_mcmc(model, chains.flat, x, y, new, num_draws=count * draws).mixture()
    density = mixture.component_log_prob(target)
    by_chain = density.reshape(count, draws, -1).logsumexp(1) - np.log(draws)
    values = torch.cat([density.mean(-1, keepdim=True), mixture.components.mean], 1).reshape(count, draws, -1)
    return values.numpy(), (-by_chain.mean(-1)).tolist()


def figures(values: np.ndarray, seconds: float) -> dict[str, Any]:
    """Diagnostics of the judged quantities; the first is the log density."""
    az = import_arviz()
    data = az.convert_to_dataset(values)
    r_hat, effective = az.rhat(data)["x"].values, az.ess(data)["x"].values
    return {
        "r_hat_density": float(r_hat[0]),
        "share_of_means_within_1.01": float((r_hat[1:] <= 1.01).mean()),
        "r_hat_max": float(r_hat.max()),
        "ess_density": float(effective[0]),
        "ess_min": float(effective.min()),
        "ess_min_per_second": float(effective.min() / seconds),
        "ess_density_per_second": float(effective[0] / seconds),
    }


def draw(traces: dict[str, np.ndarray], path: Path, title: str) -> None:
    """The log density of the test rows, chain by chain."""
    figure = Figure(figsize=(9, 2.6 * len(traces)), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, (name, values) in zip(np.atleast_1d(figure.subplots(len(traces), 1)), traces.items(), strict=True):
        for number, chain in enumerate(values[:, :, 0]):
            axis.plot(chain, lw=0.6, label=f"chain {number}")
        axis.set_title(name, fontsize=9)
        axis.set_ylabel("mean log density\nof test rows", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7, ncols=4)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Sample, or go on, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--samplers", default="ess,nuts")
    parser.add_argument("--data", type=Path, default=os.environ.get("PYRO_DGP_DATA") or None)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--processes", type=int, help="as many as there are cores if not given")
    parser.add_argument("--folder", type=Path, default=Path("results/chains"), help="where chains are kept")
    parser.add_argument("--out", type=Path, default=Path("results/sampling.jsonl"))
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    if arguments.problem == "yacht" and arguments.data is None:
        sys.exit("say where the data sets are: --data FOLDER or PYRO_DGP_DATA")
    data = step_function() if arguments.problem == "step" else yacht(arguments.data)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    traces, problem = {}, PROBLEMS[arguments.problem]
    for name in arguments.samplers.split(","):
        torch.manual_seed(0)
        model = deep_with_priors(data[0], Settings(width=problem.width))
        folder = arguments.folder / arguments.problem / name
        chains = run_chains(
            SAMPLERS[name](problem, model), data[:2], arguments.draws, arguments.warmup, arguments.chains, 0,
            arguments.processes, folder=folder,
        )  # fmt: skip
        values, nll = judged(model, chains, data)
        traces[name] = values
        key = {"problem": arguments.problem, "sampler": name, "draws": arguments.draws, "warmup": arguments.warmup}
        row = key | {
            "chains": arguments.chains,
            "width": problem.width,
            "seconds": chains.sampling_seconds,
            **figures(values, chains.sampling_seconds),
            "nll_by_chain": nll,
        }
        if "diverging" in chains.stats:
            row["diverging_share"] = float(chains.stats["diverging"].mean())
            row["mean_n_steps"] = float(chains.stats["n_steps"].mean())
            row["share_at_largest_depth"] = float((chains.stats["tree_depth"] >= problem.tree_depth).mean())
        print(json.dumps(row), flush=True)
        if row not in read(arguments.out):
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    if arguments.figure is not None:
        draw(traces, arguments.figure, f"{arguments.problem}: {arguments.chains} chains of {arguments.draws} draws")


if __name__ == "__main__":
    main()
