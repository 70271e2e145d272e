"""Simulation-based calibration of the samplers (Talts et al. 2018): data from the prior, ranks of the truth among posterior draws.

``python -m benchmarks.calibration ess|nuts [--simulations 200] [--out FILE] [--figure FILE] [--shift 1.0]``

Two layers at 20 inputs, with proper priors on both lengthscales and the noise. For each simulated data set one chain from a draw of the prior,
about 100 thinned draws, and the rank of the true noise, lengthscales, top function value at the first input, new y, and *joint log
likelihood*, without which a sampler that returns the prior would pass. A sampler that is right has uniform ranks. ``--shift``
draws the data from a prior whose log lengthscales are that many standard deviations higher than the sampler's: it must fail. Resumable,
one JSON line a simulation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pyro import distributions as dist
from pyro import poutine
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.nn import PyroModule, PyroSample
from pyro.poutine.messenger import Messenger
from scipy import stats
from torch import Tensor

from benchmarks.experiments import read
from pyro_dgp import (
    CompiledDensity,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    Matern52,
    WhitenedNUTS,
    module_local_parameters,
    predict_mcmc,
    run_chains,
    whitened,
)
from pyro_dgp.likelihoods import Observation
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.means import Projection

KERNELS: dict[str, Callable[[PyroModule], MCMCKernel]] = {
    "ess": lambda model: EllipticalSlice(model, density=CompiledDensity),
    "nuts": lambda model: WhitenedNUTS(model, max_tree_depth=5, density=CompiledDensity),
}
#: Sweeps between kept draws, and in the warm-up.
THIN = {"ess": 15, "nuts": 4}
WARMUP = {"ess": 300, "nuts": 150}

#: Added to the seed of a simulation for its chain, which would start at the truth otherwise: it starts at a draw of the prior, too.
CHAIN_SEED = 10**6


class TwoLayers(PyroModule):
    """GPs of one output each, the first about the identity; priors on what is not known."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.hidden, self.top = GaussianProcess(Matern52(), Projection(torch.eye(1))), GaussianProcess(Matern52())
        self.likelihood = Gaussian()
        for gp in (self.hidden, self.top):
            gp.kernel.lengthscale = PyroSample(dist.LogNormal(-0.5 + 0.5 * shift, 0.5))
        self.likelihood.variance = PyroSample(dist.LogNormal(-2.0, 0.5))
        self.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Pyro model."""
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


class _Simulate(Messenger):
    """Draws the functions of an observation too, and keeps them."""

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if isinstance(msg["fn"], Observation):
            prior = next(iter(msg["fn"].priors.values()))
            self.functions = prior.rsample()
            msg["value"] = msg["fn"].conditional.given(self.functions).sample()


def simulate(model: PyroModule, x: Tensor, new: Tensor) -> tuple[dict[str, Tensor], Tensor, dict[str, float]]:
    """Latent values at ``x`` (of whitened sites, rows of x alone), targets there, and true figures at ``x[0]`` and ``new``."""
    rows = len(x)
    with _Simulate() as drawn, poutine.trace() as trace:
        y = whitened(model)(torch.cat([x, new]))
    nodes = trace.trace.nodes
    values = {name: nodes[name]["value"] for name in trace.trace.stochastic_nodes if name != "y"}
    values = {name: value[:rows] if name.endswith("_whitened") else value for name, value in values.items()}
    truth = {name: float(value) for name, value in values.items() if value.dim() == 0}
    return values, y[:rows], truth | {"f": float(drawn.functions[0, 0]), "new y": float(y[rows])}


def ranks(
    model: PyroModule,
    data_model: PyroModule,
    kernel: MCMCKernel,
    x: Tensor,
    draws: int,
    thin: int,
    warmup: int,
    seed: int,
) -> dict[str, int]:
    """How many of the kept draws lie below the truth, by quantity."""
    torch.manual_seed(seed)
    new = x.new_tensor([[1.2]])
    values, y, truth = simulate(data_model, x, new)
    result = run_chains(kernel, (x, y), draws * thin, warmup_steps=warmup, num_chains=1, seed=seed + CHAIN_SEED)
    kept = {name: sampled[thin - 1 :: thin] for name, sampled in result.flat.items()}
    density = WhitenedDensity(whitened(model), (x, y), {})
    torch.manual_seed(seed + 1)
    at_first = predict_mcmc(model, kept, x, y, x[:1], num_draws=draws).functions().components
    at_new = predict_mcmc(model, kept, x, y, new, num_draws=draws)
    sampled = {name: kept[name] for name in truth if name in kept}
    sampled["f"] = at_first.sample()[:, 0, 0]
    sampled["new y"] = at_new.mixture().components.sample()[:, 0]
    truth["log likelihood"] = density.evaluate(values).log_likelihood
    each = [{name: value[i] for name, value in kept.items()} for i in range(draws)]
    sampled["log likelihood"] = torch.tensor([density.evaluate(draw).log_likelihood for draw in each])
    return {name: int((sampled[name] < truth[name]).sum()) for name in sampled}


def p_values(rows: list[dict[str, int]], draws: int, bins: int = 10) -> dict[str, float]:
    """Chi-squared test of uniform ranks ``0..draws``, by quantity."""
    edges = np.linspace(-0.5, draws + 0.5, bins + 1)
    expected = np.histogram(np.arange(draws + 1), edges)[0] / (draws + 1) * len(rows)
    return {
        name: float(stats.chisquare(np.histogram([row[name] for row in rows], edges)[0], expected).pvalue)
        for name in rows[0]
    }


def draw(rows: list[dict[str, int]], draws: int, path: Path, title: str) -> None:
    """Histograms of ranks with the band that holds 99 % of the counts of a uniform one."""
    names, bins = list(rows[0]), 10
    figure = Figure(figsize=(2.2 * len(names), 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    low, high = stats.binom(len(rows), 1 / bins).ppf([0.005, 0.995])
    p = p_values(rows, draws, bins)
    for axis, name in zip(figure.subplots(1, len(names), sharey=True), names, strict=True):
        axis.axhspan(low, high, color="0.9")
        axis.hist([row[name] for row in rows], np.linspace(-0.5, draws + 0.5, bins + 1), color="C0")
        axis.set_title(f"{name.replace('.kernel', '')}\np = {p[name]:.2g}", fontsize=8)
        axis.set_xlabel("rank", fontsize=8)
        axis.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run what the file lacks, then test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sampler", choices=KERNELS)
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--shift", type=float, default=0.0, help="of the data's prior, in standard deviations")
    parser.add_argument("--out", type=Path, default=Path("results/calibration.jsonl"))
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--table", action="store_true", help="run nothing, report what there is")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    x = torch.linspace(-1, 1, 20)[:, None]
    key = {"sampler": arguments.sampler, "shift": arguments.shift, "draws": arguments.draws}
    key |= {"thin": THIN[arguments.sampler], "warmup": WARMUP[arguments.sampler]}
    done = {r["seed"]: r["ranks"] for r in read(arguments.out) if all(r[k] == v for k, v in key.items())}
    for seed in range(0 if arguments.table else arguments.simulations):
        if seed in done:
            continue
        with module_local_parameters():
            model, data_model = TwoLayers(), TwoLayers(arguments.shift)
            kernel = KERNELS[arguments.sampler](model)
            done[seed] = ranks(
                model, data_model, kernel, x, arguments.draws, THIN[arguments.sampler], WARMUP[arguments.sampler], seed
            )
        with arguments.out.open("a") as file:
            file.write(json.dumps(key | {"seed": seed, "ranks": done[seed]}) + "\n")
    if not done:
        sys.exit(f"{arguments.out} holds no such runs")
    for name, p in p_values(list(done.values()), arguments.draws).items():
        print(f"{name:<28} p = {p:.3g}")
    print(f"{len(done)} simulations, {arguments.draws} draws each")
    if arguments.figure is not None:
        draw(
            list(done.values()),
            arguments.draws,
            arguments.figure,
            f"{arguments.sampler}: ranks of the truth, {len(done)} simulations",
        )


if __name__ == "__main__":
    main()
