"""Simulation-based calibration of the samplers (Talts et al. 2018): data from the prior, ranks of the truth among posterior draws.

``python -m benchmarks.studies.sampler_calibration ess|nuts [--simulations 200] [--out FILE] [--figure FILE] [--shift 1.0] [--table]``

Two layers at 20 inputs, with proper priors on both lengthscales and the noise. Each simulated data set gets one chain that starts from a draw of
the prior. About 100 thinned draws are kept, and the study records the rank among them of the true noise, lengthscales, top function value at the
first input, new y, and joint log likelihood. Without the last one a sampler that returns the prior would pass. A correct sampler has uniform ranks.

``--shift`` draws the data from a prior whose log lengthscales are that many standard deviations higher than the sampler's; the test must then fail.
Resumable, one JSON line a simulation.
"""

from __future__ import annotations

import argparse
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
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor

from benchmarks.common.records import Record, agrees, append, read
from pyro_dgp import (
    CompiledDensity,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    Matern52,
    PosteriorDraws,
    WhitenedNUTS,
    module_local_parameters,
    predict,
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

#: Added to the seed of a simulation for its chain. With the same seed the chain would start at the truth, which is a draw of the prior too.
CHAIN_SEED = 10**6


class TwoLayers(PyroModule):
    """Two GPs of one output each, the first with the identity as its mean; priors on lengthscales and noise."""

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
    """Draws the functions of an observation as well as its targets, and keeps the functions."""

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if isinstance(msg["fn"], Observation):
            prior = next(iter(msg["fn"].priors.values()))
            self.functions = prior.rsample()
            msg["value"] = msg["fn"].conditional.given(self.functions).sample()


def simulate(model: PyroModule, x: Tensor, new: Tensor) -> tuple[dict[str, Tensor], Tensor, dict[str, float]]:
    """Draw data and truth from the prior.

    :return: latent values at ``x`` by site, targets ``(N,)`` there, and the true value of each ranked quantity.
    """
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
    *,
    draws: int,
    thin: int,
    warmup: int,
    seed: int,
) -> dict[str, int]:
    """Count the kept draws that lie below the truth, by quantity."""
    torch.manual_seed(seed)
    new = x.new_tensor([[1.2]])
    values, y, truth = simulate(data_model, x, new)
    result = run_chains(
        kernel, (x, y), num_samples=draws * thin, warmup_steps=warmup, num_chains=1, seed=seed + CHAIN_SEED
    )
    kept = {name: sampled[thin - 1 :: thin] for name, sampled in result.flat.items()}
    density = WhitenedDensity(whitened(model), (x, y), {})
    torch.manual_seed(seed + 1)
    at_first = predict(PosteriorDraws(model, kept, (x, y)), x[:1], num_samples=draws).functions().components
    at_new = predict(PosteriorDraws(model, kept, (x, y)), new, num_samples=draws)
    sampled = {name: kept[name] for name in truth if name in kept}
    sampled["f"] = at_first.sample()[:, 0, 0]
    sampled["new y"] = at_new.mixture().components.sample()[:, 0]
    truth["log likelihood"] = density.evaluate(values).log_likelihood
    each = [{name: value[i] for name, value in kept.items()} for i in range(draws)]
    sampled["log likelihood"] = torch.tensor([density.evaluate(draw).log_likelihood for draw in each])
    return {name: int((sampled[name] < truth[name]).sum()) for name in sampled}


def p_values(rows: list[dict[str, int]], draws: int, bins: int = 10) -> dict[str, float]:
    """Return the p value of a chi-squared test of uniform ranks ``0..draws``, by quantity."""
    edges = np.linspace(-0.5, draws + 0.5, bins + 1)
    expected = np.histogram(np.arange(draws + 1), edges)[0] / (draws + 1) * len(rows)
    return {
        name: float(stats.chisquare(np.histogram([row[name] for row in rows], edges)[0], expected).pvalue)
        for name in rows[0]
    }


def draw(rows: list[dict[str, int]], draws: int, *, path: Path, title: str) -> None:
    """Draw histograms of ranks, with the band in which 99 % of the counts of uniform ranks lie."""
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
    """Make the simulations that the file lacks, then test the ranks."""
    arguments = _arguments()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    key = {"sampler": arguments.sampler, "shift": arguments.shift, "draws": arguments.draws}
    key |= {"thin": THIN[arguments.sampler], "warmup": WARMUP[arguments.sampler]}
    done = {row["seed"]: row["ranks"] for row in read(arguments.out, "ranks") if agrees(row, key)}
    for seed in range(0 if arguments.table else arguments.simulations):
        if seed not in done:
            done[seed] = simulated_ranks(key, seed)
            append(arguments.out, key | {"seed": seed, "ranks": done[seed]})
    if not done:
        sys.exit(f"{arguments.out} holds no such runs")
    rows = list(done.values())
    for name, p in p_values(rows, arguments.draws).items():
        print(f"{name:<28} p = {p:.3g}")
    print(f"{len(rows)} simulations, {arguments.draws} draws each")
    if arguments.figure is not None:
        title = f"{arguments.sampler}: ranks of the truth, {len(rows)} simulations"
        draw(rows, arguments.draws, path=arguments.figure, title=title)


def simulated_ranks(key: Record, seed: int) -> dict[str, int]:
    """Simulate one data set and rank the truth among the draws of the sampler that ``key`` names."""
    x = torch.linspace(-1, 1, 20)[:, None]
    chain = {name: key[name] for name in ("draws", "thin", "warmup")}
    with module_local_parameters():
        model, data_model = TwoLayers(), TwoLayers(key["shift"])
        return ranks(model, data_model, KERNELS[key["sampler"]](model), x, **chain, seed=seed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sampler", choices=KERNELS)
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--shift", type=float, default=0.0, help="of the data's prior, in standard deviations")
    parser.add_argument("--out", type=Path, default=Path("results/sampler_calibration.jsonl"))
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--table", action="store_true", help="run nothing: report the simulations that the file holds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
