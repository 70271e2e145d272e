"""Stochastic-gradient HMC beside doubly stochastic VI, and beside a closed form.

``python -m benchmarks.sghmc same --data FOLDER --out FILE [--dtype float32]`` runs what FILE (JSON lines) lacks and prints the table with the
paired differences of NLL: the same deep GP, inducing points, kernel, batch and learning rate. ``dsvi`` averages 10 samples a step where ``sghmc``
takes one; each row holds the sampler's R-hat and effective draws of the inducing variables, which permutations of hidden units make no gold
standard.

``python -m benchmarks.sghmc closed``: one layer with inducing points at its 10 rows, hyperparameters fixed, all rows in each gradient: how far means
and standard deviations of the function values are from the closed form, by step size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

from benchmarks.experiments import Experiment, main
from pyro_dgp import RBF, Gaussian, InducingPoints, MonteCarlo, StochasticGradientHMC, Variational, predict_draws
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.zoo.settings import Settings

EXPERIMENTS = {
    "same": Experiment(
        {"dsvi": Settings(), "sghmc": Settings()},
        {"energy": 5, "kin8nm": 3},
        keep_beta=False,
        differences=(("sghmc", "dsvi"),),
    ),
}
STEP_SIZES = (1.0, 0.5, 0.25)
ROWS, NOISE = 10, 0.1


def bias(step_size: float, draws: int, burn_in: int = 2000) -> dict[str, float]:
    """Largest error of a mean in posterior standard deviations, and largest relative error of a standard deviation, over the rows."""
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, ROWS)[:, None]
    y = torch.sin(2 * x[:, 0]) + NOISE**0.5 * torch.randn(ROWS)
    model = DeepGP(x, 1, 1)
    model.top.kernel, model.likelihood = RBF(lengthscale=0.7), Gaussian(variance=NOISE)
    guide = Variational(model.requires_grad_(False), InducingPoints(ROWS, covariance="delta"), MonteCarlo(1))
    guide.initialize(x, y)
    sampler = StochasticGradientHMC(step_size, burn_in=burn_in, thin=round(10 / step_size), learning_rate=0.0)
    sampled = sampler.run(guide, x, y, num_samples=draws, batch_size=ROWS).draws
    values = predict_draws(guide, sampled, x, num_draws=draws).functions().components.mean[..., 0]
    k = torch.exp(-0.5 * torch.cdist(x, x).square() / 0.49)
    noisy = k + NOISE * torch.eye(ROWS)
    mean, sd = k @ torch.linalg.solve(noisy, y), (k - k @ torch.linalg.solve(noisy, k)).diagonal().sqrt()
    return {
        "step_size": step_size,
        "mean": float(((values.mean(0) - mean).abs() / sd).max()),
        "sd": float((values.std(0) / sd - 1).abs().max()),
    }


def closed(draws: int = 4000) -> Iterable[dict[str, float]]:
    """By step size."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    for step_size in STEP_SIZES:
        yield bias(step_size, draws)


if __name__ == "__main__":
    if sys.argv[1:] == ["closed"]:
        for row in closed():
            print("step {step_size}: means off by {mean:.3f} sd at most, sds by {sd:.1%}".format(**row), flush=True)
    else:
        main(EXPERIMENTS, __doc__)
