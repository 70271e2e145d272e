"""Gradients and effective draws a second of the No-U-Turn sampler, beside NumPyro's and BlackJAX's on the same density.

``python -m benchmarks.studies.samplers_beside_jax [--problem step,yacht] [--rows 20,100,300] [--chains 4] [--data FOLDER] [--out FILE]``

Two layers of width 2, priors on every hyperparameter, float64. Two processes of one thread each share the chains; those of a process are a batch (a
vectorised program in JAX). All chains start at the same points: draws of the prior on the step function, ends of ascents on yacht. The samplers have
equal warm-up, draws and largest tree depth, an acceptance rate of 0.8, and otherwise their own defaults. Judged are the log density of the test rows and
the predictive mean at each of them, which a permutation of hidden units leaves unchanged. FILE gets one JSON line a run, and runs that it holds are not
repeated. Needs ``pip install numpyro blackjax jax==0.9.0``; the study ends where the density in JAX is not the model's, as it was with JAX 0.10.2.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.common.data import add_data_option, require_data
from benchmarks.common.jax_samplers import Plan, Sampled, by_blackjax, by_numpyro, require_agreement, require_peers
from benchmarks.common.records import append, read
from benchmarks.common.sampled_data import Data, effective, judged, step_function, yacht
from pyro_dgp import Ascent, CompiledDensity, DeepGP, WhitenedNUTS, module_local_parameters, run_chains, whitened
from pyro_dgp.mcmc.chains import Chains
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.zoo.recipes import deep_with_priors
from pyro_dgp.zoo.settings import Settings

#: Options of XLA: one thread.
XLA_FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

#: Processes that share the chains, one thread each.
PROCESSES = 2


def built(data: Data) -> DeepGP:
    """Build the model of the study: equal in every process."""
    torch.manual_seed(0)
    return deep_with_priors(data[0], Settings(width=2))


def by_pyro_dgp(model: DeepGP, x: torch.Tensor, y: torch.Tensor, plan: Plan) -> Sampled:
    """Sample with ``WhitenedNUTS``, all chains of the process in step."""
    begin = perf_counter()
    chains = len(next(iter(plan.starts.values())))
    ends: list[float] = []

    def told(done: int, total: int, figures: Any) -> None:
        if done >= chains * plan.warmup and not ends:
            ends.append(perf_counter())

    kernel = _FromStarts(model, plan)
    result = run_chains(
        kernel,
        (x, y),
        num_samples=plan.draws,
        warmup_steps=plan.warmup,
        num_chains=chains,
        seed=plan.seed,
        processes=1,
        report=told,
    )
    end = perf_counter()
    draws = {name: values.numpy() for name, values in result.draws.items()}
    return Sampled(draws, int(result.stats["n_steps"].sum()), end - begin, end - ends[0])


class _FromStarts(WhitenedNUTS):
    """The sampler whose chains start at given points, one after another."""

    def __init__(self, model: Any, plan: Plan) -> None:
        super().__init__(model, max_tree_depth=plan.max_tree_depth, density=CompiledDensity)
        self.plan = plan

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Set up the chain whose seed torch has."""
        number = (torch.initial_seed() - self.plan.seed) // 1000
        self.initial_params = {name: torch.as_tensor(each[number]) for name, each in self.plan.starts.items()}
        super().setup(warmup_steps, *args, **kwargs)


SAMPLERS = {"pyro_dgp": by_pyro_dgp, "numpyro": by_numpyro, "blackjax": by_blackjax}


def sample(name: str, data: Data, plan: Plan) -> Sampled:
    """Run the chains of one process."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with module_local_parameters():
        if name != "pyro_dgp":
            import jax  # type: ignore[import-not-found]

            jax.config.update("jax_enable_x64", True)
            require_agreement(built(data), data[0], data[1], plan)
        return SAMPLERS[name](built(data), data[0], data[1], plan)


def starts(data: Data, problem: str, chains: int, seed: int) -> dict[str, np.ndarray]:
    """Return the first points of all chains."""
    found = []
    with module_local_parameters():
        model = built(data)  # which seeds the generator
        for chain in range(chains):
            torch.manual_seed(1000 * seed + chain)
            density = WhitenedDensity(whitened(model), data[:2], {})
            found.append(density.unconstrained_start() if problem == "step" else Ascent()(density))
    return {name: np.stack([each[name].numpy() for each in found]) for name in found[0]}


def run(name: str, data: Data, row: dict[str, Any]) -> dict[str, Any]:
    """Run one sampler in processes of its own and return its line of the file."""
    first = starts(data, row["problem"], row["chains"], row["seed"])
    parts = [
        {key: part for key, part in zip(first, each, strict=True)}
        for each in zip(*(np.array_split(value, PROCESSES) for value in first.values()), strict=True)
    ]
    plans = [
        Plan(
            part,
            warmup=row["warmup"],
            draws=row["draws"],
            max_tree_depth=row["max_tree_depth"],
            seed=10**6 * (row["seed"] + 1) + 10**5 * number,
        )
        for number, part in enumerate(parts)
    ]
    os.environ["XLA_FLAGS"] = XLA_FLAGS
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        done = list(pool.map(sample, [name] * len(plans), [data] * len(plans), plans))
    draws = {key: torch.from_numpy(np.concatenate([each.draws[key] for each in done])) for key in done[0].draws}
    with module_local_parameters():
        values, nll = judged(Chains(draws, model=built(data), args=data[:2]), data)
    r_hat, count = effective(values)
    seconds, drawing = max(each.seconds for each in done), max(each.drawing_seconds for each in done)
    gradients = sum(each.gradients for each in done)
    return row | {
        "sampler": name,
        "seconds": seconds,
        "drawing_seconds": drawing,
        "gradients": gradients,
        "gradients_per_second": gradients / drawing,
        "r_hat_max": float(r_hat.max()),
        "ess_density": float(count[0]),
        "ess_min": float(count.min()),
        "ess_median": float(np.median(count)),
        "nll_by_chain": nll,
    }


def report(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    print(
        f"{'problem':<8}{'rows':>5}{'chains':>7} {'sampler':<10}{'gradients/s':>12}{'a draw':>8}{'ESS/s: density':>15}{'least':>8}{'median':>8}{'seconds':>9}{'R-hat':>7}"
    )
    for row in sorted(rows, key=lambda row: (row["problem"], row["rows"], row["chains"], row["seed"], row["sampler"])):
        drawing = row["drawing_seconds"]
        each = [row[f"ess_{name}"] / drawing for name in ("density", "min", "median")]
        per_draw = row["gradients"] / (row["draws"] * row["chains"])
        print(
            f"{row['problem']:<8}{row['rows']:>5}{row['chains']:>7} {row['sampler']:<10}{row['gradients_per_second']:>12.0f}{per_draw:>8.1f}"
            + "{:>15.2f}{:>8.2f}{:>8.2f}".format(*each)
            + f"{row['seconds']:>9.0f}{row['r_hat_max']:>7.3f}"
        )


def main() -> None:
    """Make the runs that the file lacks and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--problem", default="step,yacht")
    parser.add_argument("--rows", default="20,100,300")
    parser.add_argument("--chains", default="4", help="numbers of chains, with commas between")
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--max-tree-depth", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--out", type=Path, default=Path("results/samplers_beside_jax.jsonl"))
    parser.add_argument("--table", action="store_true", help="run nothing: report the runs that the file holds")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    if not arguments.table:
        _make(arguments)
    report(read(arguments.out, "sampler"))


def _make(arguments: argparse.Namespace) -> None:
    require_peers()
    if "yacht" in arguments.problem:
        require_data(arguments)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    plain = {"warmup": arguments.warmup, "draws": arguments.draws, "max_tree_depth": arguments.max_tree_depth}
    cases = [
        {"problem": problem, "rows": int(rows), "chains": int(chains), "seed": seed} | plain
        for seed in range(arguments.seeds)
        for problem in arguments.problem.split(",")
        for rows in arguments.rows.split(",")
        for chains in arguments.chains.split(",")
    ]
    for case in cases:
        data = step_function(case["rows"]) if case["problem"] == "step" else yacht(arguments.data, case["rows"])
        for name in arguments.samplers.split(","):
            wanted = case | {"sampler": name}
            if any(
                all(row.get(key) == value for key, value in wanted.items()) for row in read(arguments.out, "sampler")
            ):
                continue
            row = run(name, data, case)
            append(arguments.out, row)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
