"""Milliseconds of processor time that the density (elliptical slices) and its gradient (NUTS) take, as they are and compiled.

``python -m benchmarks.studies.speed_of_samplers [--repeats 100]``

Two layers of width 2, priors on every hyperparameter, a step function of 20, 100 and 300 rows, float64, one thread. The two forms alternate. The
table has medians, and the seconds that recording and compiling took.
"""

from __future__ import annotations

import argparse
import logging
import time

import torch
from pyro.ops.integrator import potential_grad
from torch import Tensor

from benchmarks.common.timing import Step, alternate
from pyro_dgp import CompiledDensity, module_local_parameters, whitened
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.zoo.recipes import deep_with_priors
from pyro_dgp.zoo.settings import Settings

KINDS = {"as it is": WhitenedDensity, "compiled": CompiledDensity}


def densities(rows: int) -> dict[str, WhitenedDensity]:
    """Return the densities of one model at the same data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(rows, 1, generator=generator) * 2 - 1
    y = torch.sign(x[:, 0]) + 0.1 * torch.randn(rows, generator=generator)
    model = whitened(deep_with_priors(x, Settings(width=2)))
    return {name: kind(model, (x, y), {}) for name, kind in KINDS.items()}


def density_step(density: WhitenedDensity, params: dict[str, Tensor]) -> Step:
    """Return one evaluation of the density at its starting values."""

    def step() -> None:
        density.evaluate(density.start)

    return step


def gradient_step(density: WhitenedDensity, params: dict[str, Tensor]) -> Step:
    """Return one gradient, computed as Pyro's integrator does."""

    def step() -> None:
        potential_grad(density.potential, params)

    return step


def measure(steps: dict[str, Step], repeats: int) -> tuple[float, float, float, float]:
    """Time both forms: milliseconds as it is and compiled, their ratio, and the seconds of the first compiled call."""
    begin = time.perf_counter()
    steps["compiled"]()
    spent = time.perf_counter() - begin
    _, cpu = alternate(steps, repeats)
    plain, compiled = (1e3 * float(cpu[name].median()) for name in KINDS)
    return plain, compiled, plain / compiled, spent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    logging.getLogger("pyro_dgp").setLevel(logging.ERROR)
    print(f"{'rows':>5} {'what':<9}{'as it is':>10}{'compiled':>10}{'ratio':>8}{'seconds to compile':>20}")
    for rows in (20, 100, 300):
        torch.manual_seed(0)
        with module_local_parameters():
            of = densities(rows)
            start = of["as it is"].unconstrained_start()
            of["compiled"].start = of["as it is"].start
            for what, step in (("density", density_step), ("gradient", gradient_step)):
                row = measure({name: step(density, start) for name, density in of.items()}, arguments.repeats)
                print(f"{rows:>5} {what:<9}" + "{:>10.2f}{:>10.2f}{:>8.1f}{:>20.0f}".format(*row), flush=True)


if __name__ == "__main__":
    main()
