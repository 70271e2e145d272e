"""Mixing of the samplers on a deep GP: R-hat, effective samples, divergences and seconds on a step function and on yacht.

``python -m benchmarks.studies.sampler_mixing step|yacht --samplers ess,nuts [--data FOLDER] [--folder FOLDER] [--out FILE] [--figure FILE]``

Two layers, priors on every hyperparameter, 100 training rows, 4 chains. For the step function the hidden layer has width 2 and chains start from
draws of the prior. For yacht, whose noise is small, the hidden layer is as wide as there are inputs, and each chain starts from an ascent from a
draw of the prior.

The judged quantities are those that a user takes from the chains and that a permutation of hidden units leaves unchanged: for each draw, the log
density of the test rows and the predictive mean at each of them. The NLL of each chain shows whether chains are in different modes. Chains are saved
in the folder of ``--folder``, so that the same command goes on after an interruption; FILE gets one JSON line a sampler.
"""

from __future__ import annotations

import argparse
import json
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

from benchmarks.common.data import add_data_option, require_data
from benchmarks.common.records import append, read
from benchmarks.common.sampled_data import Data, effective, judged, step_function, yacht
from pyro_dgp import (
    Ascent,
    CompiledDensity,
    EllipticalSlice,
    PriorDraw,
    SurrogateSlice,
    WhitenedNUTS,
    run_chains,
)
from pyro_dgp.mcmc.initial_points import Start
from pyro_dgp.zoo.recipes import deep_with_priors
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class Problem:
    """Model and sampler settings of a data set."""

    width: int
    start: Start
    tree_depth: int
    slices: type[EllipticalSlice]

    def ess(self, model: PyroModule) -> MCMCKernel:
        """Return elliptical slice sampling of a model."""
        return self.slices(model, density=CompiledDensity, start=self.start)

    def nuts(self, model: PyroModule) -> MCMCKernel:
        """Return the No-U-Turn sampler of a model."""
        return WhitenedNUTS(
            model, max_tree_depth=self.tree_depth, density=CompiledDensity, start=self.start, target_accept_prob=0.9
        )


PROBLEMS = {"step": Problem(2, PriorDraw(), 6, EllipticalSlice), "yacht": Problem(6, Ascent(), 7, SurrogateSlice)}
SAMPLERS: dict[str, Callable[[Problem, PyroModule], MCMCKernel]] = {"ess": Problem.ess, "nuts": Problem.nuts}


def figures(values: np.ndarray, seconds: float) -> dict[str, Any]:
    """Compute diagnostics of the judged quantities, of which the first is the log density."""
    r_hat, count = effective(values)
    return {
        "r_hat_density": float(r_hat[0]),
        "share_of_means_within_1.01": float((r_hat[1:] <= 1.01).mean()),
        "r_hat_max": float(r_hat.max()),
        "ess_density": float(count[0]),
        "ess_min": float(count.min()),
        "ess_min_per_second": float(count.min() / seconds),
        "ess_density_per_second": float(count[0] / seconds),
    }


def draw(traces: dict[str, np.ndarray], path: Path, title: str) -> None:
    """Draw the log density of the test rows, chain by chain."""
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
    """Sample, or continue an interrupted run, and report."""
    arguments = _arguments()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    if arguments.problem == "yacht":
        require_data(arguments)
    data = step_function() if arguments.problem == "step" else yacht(arguments.data)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    traces = {}
    for name in arguments.samplers.split(","):
        row, traces[name] = sample(name, data, arguments)
        print(json.dumps(row), flush=True)
        if row not in read(arguments.out, "sampler"):
            append(arguments.out, row)
    if arguments.figure is not None:
        draw(traces, arguments.figure, f"{arguments.problem}: {arguments.chains} chains of {arguments.draws} draws")


def sample(name: str, data: Data, arguments: argparse.Namespace) -> tuple[dict[str, Any], np.ndarray]:
    """Run the chains of one sampler; return its line of the file and the judged quantities of each draw."""
    torch.manual_seed(0)
    problem = PROBLEMS[arguments.problem]
    model = deep_with_priors(data[0], Settings(width=problem.width))
    folder = arguments.folder / arguments.problem / name
    chains = run_chains(
        SAMPLERS[name](problem, model),
        data[:2],
        num_samples=arguments.draws,
        warmup_steps=arguments.warmup,
        num_chains=arguments.chains,
        processes=arguments.processes,
        folder=folder,
    )
    values, nll = judged(chains, data)
    row = {
        "problem": arguments.problem,
        "sampler": name,
        "draws": arguments.draws,
        "warmup": arguments.warmup,
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
    return row, values


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--samplers", default="ess,nuts")
    add_data_option(parser)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--processes", type=int, help="number of processes; one for each core if not given")
    parser.add_argument("--folder", type=Path, default=Path("results/chains"), help="folder in which chains are saved")
    parser.add_argument("--out", type=Path, default=Path("results/sampler_mixing.jsonl"))
    parser.add_argument("--figure", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
