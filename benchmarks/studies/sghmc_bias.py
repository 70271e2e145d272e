"""Error of stochastic-gradient HMC where the posterior is known: function values of one layer beside the closed form, by step size.

``python -m benchmarks.studies.sghmc_bias [--draws 4000]``

One layer with inducing points at its 10 rows, hyperparameters fixed, all rows in each gradient.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from pyro_dgp import (
    RBF,
    Gaussian,
    InducingDraws,
    InducingPoints,
    MonteCarlo,
    StochasticGradientHMC,
    Variational,
    predict,
)
from pyro_dgp.models.deep_gp import DeepGP

STEP_SIZES = (1.0, 0.5, 0.25)
ROWS, NOISE, LENGTHSCALE = 10, 0.1, 0.7


def bias(step_size: float, draws: int, burn_in: int = 2000) -> dict[str, float]:
    """Measure the largest errors over the rows.

    :return: ``mean``, errors of means in posterior standard deviations; ``sd``, relative errors of standard deviations.
    """
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, ROWS)[:, None]
    y = torch.sin(2 * x[:, 0]) + NOISE**0.5 * torch.randn(ROWS)
    model = DeepGP(x, 1, 1)
    model.top.kernel, model.likelihood = RBF(lengthscale=LENGTHSCALE), Gaussian(variance=NOISE)
    guide = Variational(model.requires_grad_(False), InducingPoints(ROWS, covariance="delta"), MonteCarlo(1))
    guide.initialize(x, y)
    sampler = StochasticGradientHMC(step_size=step_size, burn_in=burn_in, thin=round(10 / step_size), learning_rate=0.0)
    sampled = sampler.run(guide, x, y, num_samples=draws, batch_size=ROWS).draws
    values = predict(InducingDraws(guide, sampled), x, num_samples=draws).functions().components.mean[..., 0]
    mean, sd = closed_form(x, y)
    return {
        "step_size": step_size,
        "mean": float(((values.mean(0) - mean).abs() / sd).max()),
        "sd": float((values.std(0) / sd - 1).abs().max()),
    }


def closed_form(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return posterior means and standard deviations ``(N,)`` of the function values."""
    k = torch.exp(-0.5 * torch.cdist(x, x).square() / LENGTHSCALE**2)
    noisy = k + NOISE * torch.eye(len(x))
    return k @ torch.linalg.solve(noisy, y), (k - k @ torch.linalg.solve(noisy, k)).diagonal().sqrt()


def main() -> None:
    """Print the errors of each step size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=4000)
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    for step_size in STEP_SIZES:
        row = bias(step_size, arguments.draws)
        print("step {step_size}: means off by {mean:.3f} sd at most, sds by {sd:.1%}".format(**row), flush=True)


if __name__ == "__main__":
    main()
