"""Bayesian optimisation by drawn functions of a deep GP, beside random search and GPyTorch's exact GP, on Branin and Hartmann-6.

``python -m benchmarks.studies.bayesian_optimization [--problems branin,hartmann6] [--methods a,b] [--seeds 2] [--out FILE] [--table]``

Eight random inputs, then six rounds of four, without noise, to be minimised; Matern 5/2 with ARD everywhere, trained anew in each round. Makes the runs that FILE (one JSON line a run) lacks and prints a table
of the simple regret, the distance of the best value found from the minimum.

- ``random``: uniform inputs.
- ``deep-thompson``: four functions drawn from a deep GP of two layers, each followed to its minimum by gradient.
- ``deep-improvement``: the four inputs whose expected improvement, together, over 64 drawn functions is largest, by gradient.
- ``exact-thompson``: as the first, from exact regression with this library.
- ``gpytorch-improvement``: as the second, from joint draws of GPyTorch's exact GP.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.common.records import Record, append, read
from pyro_dgp import (
    ELBO,
    DeepGP,
    FunctionDraws,
    Gaussian,
    InducingPoints,
    MarginalLikelihood,
    MonteCarlo,
    Variational,
    draw_functions,
    draw_functions_mcmc,
    fit,
)

FIRST, ROUNDS, TOGETHER, CLIMBS, DRAWS = 8, 6, 4, 60, 64
#: Training steps of the exact GPs, and of the deep one.
STEPS, DEEP_STEPS = 300, 500
#: Noise variance at the start of training, for targets of unit variance: the functions have no noise, and training from 0.1 does not end there.
NOISE = 1e-3
#: Function ``draws(x) -> values``: inputs ``(S, N, D)`` or ``(N, D)``, values ``(S, N)``.
Draws = Callable[[Tensor], Tensor]


def branin(u: Tensor) -> Tensor:
    """Branin's function on the unit square (Dixon and Szego 1978): three minima of 0.397887."""
    x, y = 15 * u[..., 0] - 5, 15 * u[..., 1]
    valley = y - 5.1 / (4 * math.pi**2) * x.square() + 5 / math.pi * x - 6
    return valley.square() + 10 * (1 - 1 / (8 * math.pi)) * torch.cos(x) + 10


def hartmann6(u: Tensor) -> Tensor:
    """Hartmann's function of six inputs in [0, 1] (Dixon and Szego 1978): a minimum of -3.32237."""
    weights = u.new_tensor([1.0, 1.2, 3.0, 3.2])
    rates = u.new_tensor(
        [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    )
    centres = 1e-4 * u.new_tensor(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )
    return -(weights * torch.exp(-(rates * (u.unsqueeze(-2) - centres).square()).sum(-1))).sum(-1)


#: By name: the function, its number of inputs, and its minimum.
PROBLEMS = {"branin": (branin, 2, 0.397887), "hartmann6": (hartmann6, 6, -3.32237)}


def without_outputs(functions: FunctionDraws) -> Draws:
    """Return the values of functions of one output."""
    return lambda x: functions(x)[..., 0]


def deep_draws(x: Tensor, y: Tensor, count: int) -> Draws:
    """Train a deep GP of two layers and draw functions."""
    points = len(x.unique(dim=0))
    model = DeepGP(x, layers=2, width=x.shape[-1], likelihood=Gaussian(variance=NOISE))
    guide = Variational(model, InducingPoints(points), MonteCarlo(5))
    guide.initialize(x, y)
    fit(ELBO(num_data=len(x))(model, guide), x, y, steps=DEEP_STEPS, batch_size=len(x), learning_rate=0.03)
    return without_outputs(draw_functions(guide, count))


def exact_draws(x: Tensor, y: Tensor, count: int) -> Draws:
    """Train an exact GP by the marginal likelihood and draw functions."""
    model = DeepGP(x, layers=1, likelihood=Gaussian(variance=NOISE))
    fit(MarginalLikelihood(model), x, y, steps=STEPS, batch_size=len(x), learning_rate=0.03)
    return without_outputs(draw_functions_mcmc(model, {}, x, y, num_draws=count))


def gpytorch_draws(x: Tensor, y: Tensor, count: int) -> Draws:
    """Train GPyTorch's exact GP and draw values at any few inputs jointly, with the same normal numbers at each call."""
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
    model.eval()
    normal = torch.randn(count, TOGETHER)

    def draws(at: Tensor) -> Tensor:
        with (
            gpytorch.settings.fast_computations(False, False, False),
            gpytorch.settings.skip_posterior_variances(False),
        ):
            posterior = model(at)
        covariance = posterior.covariance_matrix + 1e-6 * torch.eye(at.shape[-2])
        values: Tensor = (torch.linalg.cholesky(covariance) @ normal[:, : at.shape[-2], None])[..., 0] + posterior.mean
        return values

    return draws


def descended(objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Follow an objective to a minimum inside the unit cube by Adam."""
    at = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([at], lr=0.02)
    for _ in range(CLIMBS):
        optimizer.zero_grad()
        objective(at).backward()
        optimizer.step()
        at.data.clamp_(0.0, 1.0)
    return at.detach()


def thompson(draws: Draws, x: Tensor, y: Tensor) -> Tensor:
    """Return the minimum of each of four draws, from the best of 2000 random inputs and of those tried."""
    candidates = torch.cat([torch.rand(2000, x.shape[-1]), x])
    best = draws(candidates).argmin(1)
    return descended(lambda at: draws(at).sum(), candidates[best].unsqueeze(1)).squeeze(1)


def improvement(draws: Draws, x: Tensor, y: Tensor) -> Tensor:
    """Return the four inputs of largest expected improvement together, the best of eight random starts near and far."""

    def minus_improvement(at: Tensor) -> Tensor:
        return -(y.min() - draws(at).amin(1)).clamp_min(0.0).mean()

    near = (x[y.argmin()] + 0.1 * torch.randn(4, TOGETHER, x.shape[-1])).clamp(0.0, 1.0)
    starts = torch.cat([torch.rand(200, TOGETHER, x.shape[-1]), near])
    with torch.no_grad():
        scores = torch.stack([minus_improvement(start) for start in starts])
    ends = [descended(minus_improvement, starts[number]) for number in scores.argsort()[:4]]
    with torch.no_grad():
        return min(ends, key=lambda end: float(minus_improvement(end)))


METHODS: dict[str, tuple[Callable[[Tensor, Tensor, int], Draws], Callable[[Draws, Tensor, Tensor], Tensor], int]] = {
    "deep-thompson": (deep_draws, thompson, TOGETHER),
    "deep-improvement": (deep_draws, improvement, DRAWS),
    "exact-thompson": (exact_draws, thompson, TOGETHER),
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
    """Print the mean, smallest and largest regret after the last round."""
    print("| problem | method | seeds | mean regret | smallest | largest | seconds |\n|---|---|---|---|---|---|---|")
    for problem in PROBLEMS:
        for method in ("random", *METHODS):
            own = [row for row in rows if (row["experiment"], row["method"]) == (problem, method)]
            if own:
                ends = torch.tensor([row["regrets"][-1] for row in own])
                seconds = torch.tensor([row["seconds"] for row in own]).mean()
                print(
                    f"| {problem} | {method} | {len(own)} | {ends.mean():.3f} | {ends.min():.3f} | {ends.max():.3f} | {seconds:.0f} |"
                )


def main() -> None:
    """Make the runs that are missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--methods", default=",".join(("random", *METHODS)))
    parser.add_argument("--seeds", type=int, default=2)
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
