"""Programs of every kind of run that is saved as it goes. Each returns numbers by which two runs are told apart to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch

from pyro_dgp import (
    ELBO,
    Checkpoints,
    DeepGP,
    EllipticalSlice,
    Fallback,
    InducingPoints,
    MonteCarlo,
    NumpyStream,
    PredictiveLogLikelihood,
    Settings,
    SigmaPoints,
    StochasticGradientHMC,
    Validation,
    Variational,
    WhitenedNUTS,
    fit,
    fit_stream,
    fit_validated,
    run_chains,
    sweep,
    with_priors,
)
from pyro_dgp.comparison import gap_study, one_method
from pyro_dgp.comparison import sweep as of_sweeps
from pyro_dgp.comparison.request import Request
from pyro_dgp.comparison.run import run as compare_request
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.mcmc import single_chain

#: Seconds between two saves of every program.
SECONDS = 0.1

#: Numbers and tensors, in dictionaries and lists.
Numbers = dict[str, Any]


def data(rows: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two inputs and a target."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 2, generator=generator)
    return x, torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(rows, generator=generator)


def start(propagation: Any = None, covariance: str = "full") -> tuple[Variational, torch.Tensor, torch.Tensor]:
    """Return an initialised guide of two layers, and its data."""
    pyro.set_rng_seed(0)
    x, y = data()
    guide = Variational(DeepGP(x, 2, 2), InducingPoints(10, covariance), propagation or MonteCarlo(2))
    guide.initialize(x, y)
    return guide, x, y


def parameters(guide: Variational) -> Numbers:
    """Return all parameters of a guide and its model."""
    return {name: value.detach() for name, value in guide.state_dict().items() if isinstance(value, torch.Tensor)} | {
        f"model.{name}": value.detach() for name, value in guide.model.state_dict().items()
    }


def svi(folder: Path) -> Numbers:
    """Train by the ELBO."""
    guide, x, y = start()
    with Checkpoints(folder / "saved", seconds=SECONDS):
        result = fit(ELBO(60)(guide.model, guide), x, y, steps=200, batch_size=16)
    return parameters(guide) | {"losses": result.losses}


def validated(folder: Path) -> Numbers:
    """Search for beta and the best step by held-out rows, with a fallback."""
    guide, x, y = start(SigmaPoints("qr3", 4))
    with Checkpoints(folder / "saved", seconds=SECONDS):
        fitted = fit_validated(
            guide,
            lambda beta, rows: PredictiveLogLikelihood(rows, beta),
            x,
            y,
            steps=40,
            batch_size=16,
            validation=Validation(betas=(0.1, 1.0), share=0.2, checks=5, folds=2),
            fallback=Fallback(ELBO),
        )
    return parameters(fitted.guide) | {"nll": fitted.validation_nll, "best": fitted.best_step}


def stream(folder: Path) -> Numbers:
    """Train on rows that stay on disk."""
    guide, x, y = start()
    np.save(folder / "x.npy", x.numpy())
    np.save(folder / "y.npy", y.numpy())
    source = NumpyStream(folder / "x.npy", folder / "y.npy", block_rows=8, dtype=x.dtype)
    with Checkpoints(folder / "saved", seconds=SECONDS):
        result = fit_stream(ELBO(60)(guide.model, guide), source, steps=200, batch_size=16)
    return parameters(guide) | {"losses": result.losses}


def sghmc(folder: Path) -> Numbers:
    """Sample by stochastic-gradient HMC."""
    guide, x, y = start(MonteCarlo(1), "delta")
    sampler = StochasticGradientHMC(burn_in=100, thin=5, window=20)
    with Checkpoints(folder / "saved", seconds=SECONDS):
        result = sampler.run(guide, x, y, num_samples=20, batch_size=16)
    return {**result.draws, "potential": result.potential} | parameters(guide)


def _chains(kernel: Callable[[Any], Any], folder: Path, *, draws: int, processes: int = 1) -> Numbers:
    pyro.set_rng_seed(0)
    x, y = data(20)
    model = with_priors(DeepGP(x, 2, 1))
    chains = run_chains(
        kernel(model),
        (x, y),
        num_samples=draws,
        warmup_steps=draws,
        num_chains=2,
        seed=1,
        processes=processes,
        folder=folder / "saved",
    )
    return {**chains.draws} | {name: torch.as_tensor(values) for name, values in chains.stats.items()}


def ess(folder: Path) -> Numbers:
    """Sample by elliptical slices, two chains one after another."""
    return _chains(EllipticalSlice, folder, draws=20)


def ess_in_processes(folder: Path) -> Numbers:
    """Sample by elliptical slices, two chains in processes of their own."""
    return _chains(EllipticalSlice, folder, draws=20, processes=2)


def nuts(folder: Path) -> Numbers:
    """Sample by NUTS, two chains one after another."""
    return _chains(lambda model: WhitenedNUTS(model, max_tree_depth=3), folder, draws=20)


def _dataset() -> Dataset:
    x, y = data(50)
    return Dataset("planted", x.numpy(), y.numpy())


SMALL = Settings(epochs=10, inducing=8, width=1, mcmc_points=20, mcmc_samples=8, warmup=8)


def gap(folder: Path) -> Numbers:
    """Compare two methods and measure their distance from a sampler."""
    request = Request(
        output=folder / "saved", dataset=_dataset(), methods=("dsvi", "ess"), settings=SMALL, gap="ess", resume=True
    )
    compare_request(request, say=lambda sentence: None)
    rows = json.loads((folder / "saved" / "results.json").read_text())
    return {"gap": json.loads((folder / "saved" / "gap.json").read_text()), "rows": [_scores(row) for row in rows]}


def of_sweep(folder: Path) -> Numbers:
    """Sweep three methods over two splits."""
    output = folder / "saved.jsonl"
    rows = sweep([_dataset()], ["svgp", "dsvi", "ess"], splits=(0, 1), settings=SMALL, output=output)
    return {"rows": [_scores(row) for row in rows], "lines": len(output.read_text().splitlines())}


def _scores(row: dict[str, Any]) -> Numbers:
    """Return the figures of a row that do not depend on the clock."""
    return {name: row[name] for name in ("method", "split", "nll", "rmse", "crps", "steps")}


PROGRAMS: dict[str, Callable[[Path], Numbers]] = {
    "svi": svi,
    "validated": validated,
    "stream": stream,
    "sghmc": sghmc,
    "ess": ess,
    "nuts": nuts,
    "gap": gap,
    "sweep": of_sweep,
    "ess-processes": ess_in_processes,
}


def save_often() -> None:
    """Have chains, and the methods of a comparison and a sweep, saved as often as the programs save."""
    single_chain.SAVE_EVERY = SECONDS
    for module in (one_method, gap_study, of_sweeps):
        module.Checkpoints = partial(Checkpoints, seconds=SECONDS)  # type: ignore[attr-defined]
