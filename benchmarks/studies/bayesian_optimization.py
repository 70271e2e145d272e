"""Bayesian optimisation by drawn functions of a deep GP, beside random search and GPyTorch's exact GP, on Branin and Hartmann-6.

``python -m benchmarks.studies.bayesian_optimization [--problems branin,hartmann6] [--methods a,b] [--seeds 20] [--out FILE] [--table]``

Eight random inputs, then six rounds of four, without noise, to be minimised; Matern 5/2 with ARD everywhere, fitted anew in each round. Makes the runs that
FILE (one JSON line a run) lacks and prints a table of the simple regret, the distance of the best value found from the minimum.

- ``random``: uniform inputs.
- ``deep-thompson``: four functions drawn from a deep GP of two layers, each followed to its minimum by gradient.
- ``deep-improvement``: the four inputs whose expected improvement, together, over 64 drawn functions is largest, by gradient.
- ``exact-thompson``: as the first, from exact regression with this library.
- ``gpytorch-thompson``: as the first, from GPyTorch's exact GP.
- ``gpytorch-improvement``: as the second, from joint draws of GPyTorch's exact GP.

All search for their proposals in the same way. The deep GP is fitted by Pyro's ``SVI`` to the whitened model, whose upper layer is integrated out: q is a normal
with independent hidden values and hyperparameters, which have priors. Its settings were chosen on other functions and on seeds from 100.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, init_to_median
from torch import Tensor

from benchmarks.common.records import Record, append, read
from benchmarks.common.simulators import hartmann
from pyro_dgp import (
    DeepGP,
    FunctionDraws,
    Gaussian,
    MarginalLikelihood,
    PosteriorDraws,
    draw_functions,
    fit,
    module_local_parameters,
    whitened,
    with_priors,
)

FIRST, ROUNDS, TOGETHER, CLIMBS, DRAWS = 8, 6, 4, 60, 64
#: Training steps of the exact GPs, and of the deep one.
STEPS, DEEP_STEPS = 300, 250
#: Noise variance at the start of training, for targets of unit variance: the functions have no noise, and training from 0.1 does not end there.
NOISE = 1e-3
#: Of the deep GP: its noise variance, which is not trained, and the median of the prior of the variance of the hidden functions around the identity, in
#: units of standardised inputs.
DEEP_NOISE, WARP = 1e-4, 0.02
#: Function ``draws(x) -> values`` of S draws: inputs ``(N, D)`` or ``(B, N, D)``, values ``(S, N)`` or ``(S, B, N)``.
Draws = Callable[[Tensor], Tensor]


def branin(u: Tensor) -> Tensor:
    """Branin's function on the unit square (Dixon and Szego 1978): three minima of 0.397887."""
    x, y = 15 * u[..., 0] - 5, 15 * u[..., 1]
    valley = y - 5.1 / (4 * math.pi**2) * x.square() + 5 / math.pi * x - 6
    return valley.square() + 10 * (1 - 1 / (8 * math.pi)) * torch.cos(x) + 10


def hartmann6(u: Tensor) -> Tensor:
    """Hartmann's function of six inputs in [0, 1]: a minimum of -3.32237."""
    return torch.as_tensor(hartmann(u.numpy()))


#: By name: the function, its number of inputs, and its minimum.
PROBLEMS = {"branin": (branin, 2, 0.397887), "hartmann6": (hartmann6, 6, -3.32237)}


def without_outputs(functions: FunctionDraws) -> Draws:
    """Return the values of functions of one output."""
    return lambda x: functions(x.flatten(0, -2))[..., 0].unflatten(-1, x.shape[:-1])


def standard(x: Tensor) -> Tensor:
    """Return inputs of the unit cube in units in which uniform ones have mean 0 and variance 1."""
    return 12**0.5 * (x - 0.5)


def deep_draws(x: Tensor, y: Tensor, count: int) -> Draws:
    """Fit a deep GP of two layers by normals over hidden values and hyperparameters, and draw functions given their medians."""
    inputs = standard(x)
    model = DeepGP(inputs, layers=2, width=x.shape[-1])
    model.hidden[0].kernel.variance = WARP
    with_priors(model)
    model.likelihood = Gaussian(variance=DEEP_NOISE, floor=DEEP_NOISE / 10).requires_grad_(False)
    with module_local_parameters(model), pyro.validation_enabled(False):
        posterior = whitened(model)
        guide = AutoDiagonalNormal(posterior, init_loc_fn=init_to_median, init_scale=0.1)
        guide(inputs, y)
        bound = Trace_ELBO()
        optimizer = torch.optim.Adam(guide.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, DEEP_STEPS)
        for _ in range(DEEP_STEPS):
            optimizer.zero_grad()
            bound.differentiable_loss(posterior, guide, inputs, y).backward()
            optimizer.step()
            scheduler.step()
        with torch.no_grad():
            draws = {name: value[None] for name, value in guide.median(inputs, y).items()}
    functions = without_outputs(draw_functions(PosteriorDraws(model, draws, (inputs, y)), count))
    return lambda at: functions(standard(at))


def exact_draws(x: Tensor, y: Tensor, count: int) -> Draws:
    """Train an exact GP by the marginal likelihood and draw functions."""
    model = DeepGP(x, layers=1, likelihood=Gaussian(variance=NOISE))
    fit(MarginalLikelihood(model), x, y, steps=STEPS, batch_size=len(x), learning_rate=0.03)
    return without_outputs(draw_functions(PosteriorDraws(model, {}, (x, y)), count))


def gpytorch_model(x: Tensor, y: Tensor) -> Any:
    """Train GPyTorch's exact GP."""
    import gpytorch

    class Exact(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=x.shape[-1]))
            self.kernel.base_kernel.lengthscale = x.shape[-1] ** 0.5
            self.likelihood.noise = NOISE

        def forward(self, at: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean(at), self.kernel(at))

    model = Exact().train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (-objective(model(x), y)).backward()
        optimizer.step()
    return model.eval()


def gpytorch_draws(x: Tensor, y: Tensor, count: int) -> Draws:
    """Train GPyTorch's exact GP and draw values jointly at the inputs asked for, with the same normal numbers at each call."""
    import gpytorch

    model, normal = gpytorch_model(x, y), torch.randn(count, 3000)

    def draws(at: Tensor) -> Tensor:
        with (
            gpytorch.settings.fast_computations(False, False, False),
            gpytorch.settings.skip_posterior_variances(False),
        ):
            posterior = model(at)
        covariance = posterior.covariance_matrix + 1e-6 * torch.eye(at.shape[-2])
        lower = torch.linalg.cholesky(covariance)
        values: Tensor = posterior.mean + torch.einsum("...nm,sm->s...n", lower, normal[:, : at.shape[-2]])
        return values

    return draws


def gpytorch_functions(x: Tensor, y: Tensor, count: int) -> Draws:
    """Train GPyTorch's exact GP and draw values jointly at candidates; between these, each draw is the mean given its values there."""
    model, known = gpytorch_model(x, y), candidates(x, y)
    with torch.no_grad():
        posterior = model(known)
        lower = torch.linalg.cholesky(posterior.covariance_matrix + 1e-6 * torch.eye(len(known)))
        values = posterior.mean[:, None] + lower @ torch.randn(len(known), count) - model.mean.constant
        prior = torch.linalg.cholesky(model.kernel(known).to_dense() + 1e-6 * torch.eye(len(known)))
        weights = torch.cholesky_solve(values, prior)

    def draws(at: Tensor) -> Tensor:
        rows = at.flatten(0, -2)
        found = model.mean.constant.detach() + model.kernel(rows, known).to_dense() @ weights
        return found.mT.unflatten(-1, at.shape[:-1])

    return draws


def candidates(x: Tensor, y: Tensor) -> Tensor:
    """Return the inputs tried, 1000 random ones, and 500 near the five best, at distances of 0.2 to 0.01 in each input."""
    best = x[y.argsort()[:5]].repeat(100, 1)
    near = best + 0.2 * 0.05 ** torch.rand(len(best), 1) * torch.randn_like(best)
    return torch.cat([x, torch.rand(1000, x.shape[-1]), near.clamp(0.0, 1.0)])


def descended(objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Follow an objective to a minimum inside the unit cube by Adam, whose steps shrink to nothing."""
    at = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([at], lr=0.03)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, CLIMBS)
    for _ in range(CLIMBS):
        optimizer.zero_grad()
        objective(at).sum().backward()
        optimizer.step()
        scheduler.step()
        at.data.clamp_(0.0, 1.0)
    return at.detach()


def thompson(draws: Draws, x: Tensor, y: Tensor) -> Tensor:
    """Return the minimum of each of four draws, followed from the best five candidates of each."""
    inputs = candidates(x, y)
    starts = draws(inputs).topk(5, largest=False).indices

    def own(at: Tensor) -> Tensor:  # each draw at inputs of its own, (S, 5, D) -> (S, 5)
        return draws(at).diagonal().mT

    ends = descended(own, inputs[starts])
    with torch.no_grad():
        return ends[torch.arange(len(ends)), own(ends).argmin(1)]


def greedy(values: Tensor, lowest: Tensor) -> Tensor:
    """Return the numbers of the four candidates, added one by one, that leave the lowest mean of the minimum of each draw, ``(S, N)``."""
    chosen, reached = [], lowest.expand(len(values))
    for _ in range(TOGETHER):
        chosen.append(torch.minimum(reached[:, None], values).mean(0).argmin())
        reached = torch.minimum(reached, values[:, chosen[-1]])
    return torch.stack(chosen)


def improvement(draws: Draws, x: Tensor, y: Tensor) -> Tensor:
    """Return the four inputs of largest expected improvement together: five greedy choices among the candidates, and one of all, followed."""

    def expected_minimum(at: Tensor) -> Tensor:  # (B, 4, D) -> (B,)
        return draws(at).amin(-1).clamp_max(y.min()).mean(0)

    inputs = candidates(x, y)
    values = draws(inputs)
    parts = [torch.arange(len(inputs)), *torch.randperm(len(inputs)).chunk(4)]
    starts = torch.stack([inputs[part[greedy(values[:, part], y.min())]] for part in parts])
    ends = torch.cat([descended(expected_minimum, starts), starts])
    with torch.no_grad():
        return ends[expected_minimum(ends).argmin()]


METHODS: dict[str, tuple[Callable[[Tensor, Tensor, int], Draws], Callable[[Draws, Tensor, Tensor], Tensor], int]] = {
    "deep-thompson": (deep_draws, thompson, TOGETHER),
    "deep-improvement": (deep_draws, improvement, DRAWS),
    "exact-thompson": (exact_draws, thompson, TOGETHER),
    "gpytorch-thompson": (gpytorch_functions, thompson, TOGETHER),
    "gpytorch-improvement": (gpytorch_draws, improvement, DRAWS),
}


def run(problem: str, method: str, seed: int) -> Record:
    """Make one run; equal seeds share the first inputs."""
    function, inputs, minimum = PROBLEMS[problem]
    torch.manual_seed(seed)
    start, x = time.perf_counter(), torch.rand(FIRST, inputs)
    y = function(x)
    for _ in range(ROUNDS):
        if method == "random":
            proposed = torch.rand(TOGETHER, inputs)
        else:
            train, propose, count = METHODS[method]
            scaled = (y - y.mean()) / y.std()
            proposed = propose(train(x, scaled, count), x, scaled)
        x, y = torch.cat([x, proposed]), torch.cat([y, function(proposed)])
    regrets = (y.cummin(0).values - minimum)[FIRST - 1 :: TOGETHER]
    return {
        "experiment": problem,
        "method": method,
        "seed": seed,
        "regrets": [round(value, 6) for value in regrets.tolist()],
        "seconds": round(time.perf_counter() - start, 1),
    }


def print_table(rows: list[Record]) -> None:
    """Print the median and the quartiles of the regret after the last round."""
    print(
        "| problem | method | seeds | median regret | lower quartile | upper quartile | seconds |\n|---|---|---|---|---|---|---|"
    )
    for problem in PROBLEMS:
        for method in ("random", *METHODS):
            own = [row for row in rows if (row["experiment"], row["method"]) == (problem, method)]
            if own:
                ends = torch.tensor([row["regrets"][-1] for row in own])
                lower, median, upper = ends.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
                seconds = torch.tensor([row["seconds"] for row in own]).mean()
                print(
                    f"| {problem} | {method} | {len(own)} | {median:.3f} | {lower:.3f} | {upper:.3f} | {seconds:.0f} |"
                )


def main() -> None:
    """Make the runs that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--methods", default=",".join(("random", *METHODS)))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/bayesian_optimization.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the table of the runs that there are")
    arguments = parser.parse_args()
    rows = read(arguments.out)
    if not arguments.table:
        torch.set_default_dtype(torch.float64)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        done = {(row["experiment"], row["method"], row["seed"]) for row in rows}
        for seed in range(arguments.seeds):
            for problem in arguments.problems.split(","):
                for method in arguments.methods.split(","):
                    if (problem, method, seed) not in done:
                        rows.append(run(problem, method, seed))
                        append(arguments.out, rows[-1])
                        print(rows[-1], flush=True)
    print_table(rows)


if __name__ == "__main__":
    main()
