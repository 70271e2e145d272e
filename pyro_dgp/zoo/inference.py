"""Ways to fit one model object, with one interface: variational, marginal likelihood, MCMC."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor, nn

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.progress import Progress
from pyro_dgp.internal.site_names import function_site_of, inducing_site, process_parameter
from pyro_dgp.losses import Loss, MarginalLikelihood
from pyro_dgp.mcmc import predict_mcmc, run_chains
from pyro_dgp.mcmc.diagnostics import convergence
from pyro_dgp.mcmc.sghmc import StochasticGradientHMC, predict_draws
from pyro_dgp.models.priors import describe
from pyro_dgp.prediction.from_guide import predict
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.processes import ProcessFamily
from pyro_dgp.propagation import MonteCarlo, Propagation
from pyro_dgp.training.loop import OptimizerRecipe, adam, fit
from pyro_dgp.training.validation import Validation, fit_validated
from pyro_dgp.zoo.settings import Settings

#: A figure of the results table; nothing where it cannot be had, several by name.
Figure = float | int | str | dict[str, float | None] | None

#: Draws of MCMC that a prediction is made from, at most.
MOST_DRAWS = 1000


@dataclass
class Fitted:
    """A fitted method.

    :ivar predict: from inputs ``(N, D)`` to a :class:`Prediction`.
    :ivar rows: training rows used.
    :ivar steps: optimiser steps, or MCMC iterations of all chains, warm-up included.
    :ivar draws: posterior draws by site ``(chains, draws, ...)``, for MCMC.
    :ivar sample_stats: by name ``(chains, draws)``, for MCMC.
    :ivar diagnostics: figures for the results table.
    """

    predict: Callable[[Tensor], Prediction]
    rows: int
    steps: int
    seconds: float
    draws: dict[str, Tensor] = field(default_factory=dict)
    sample_stats: dict[str, np.ndarray] = field(default_factory=dict)
    diagnostics: Mapping[str, Figure] = field(default_factory=dict)


class Inference(ABC):
    """A way to fit a model that is called as ``model(x, y)``."""

    @abstractmethod
    def run(self, model: nn.Module, x: Tensor, y: Tensor, settings: Settings, progress: Progress) -> Fitted:
        """Fit ``model`` to all of ``x`` ``(N, D)`` and ``y``, in place."""

    def most_rows(self, settings: Settings) -> int | None:
        """The largest training set that it is meant for; nothing if there is no such limit."""
        return None

    def check(self, settings: Settings) -> None:
        """Raise ``ValueError`` with one sentence for settings that it cannot run with."""

    def remarks(self, settings: Settings) -> list[str]:
        """Sentences to be said before it starts."""
        return []

    def approximates_posterior(self, settings: Settings) -> bool:
        """Whether what it makes is meant to be close to the posterior; predictive losses do not aim at it."""
        return True

    def saving_to(self, folder: Path) -> Inference:
        """The same, with its state kept in a folder where it can go on from there."""
        return self


@runtime_checkable
class Remarking(Protocol):
    """A recipe that has something to say about the settings."""

    def remarks(self, settings: Settings) -> list[str]:
        """Sentences to be said before it starts."""


@dataclass(frozen=True)
class ByGuide(Inference):
    """Stochastic variational inference, or any loss of this library: a process, a propagation, a loss."""

    processes: Callable[[Settings], ProcessFamily | Mapping[str, ProcessFamily]]
    propagation: Callable[[Settings], Propagation]
    loss: Callable[[Settings, int], Loss]
    optimizer: OptimizerRecipe = adam

    def run(self, model: nn.Module, x: Tensor, y: Tensor, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        start = time.perf_counter()
        guide = self.guide(model, settings)
        guide.initialize(x, y)
        steps = settings.steps(len(x), settings.batch_size)
        loss = self.loss(settings, len(x))
        fit(
            loss(model, guide), x, y, steps=steps, batch_size=settings.batch_size, learning_rate=settings.learning_rate, seed=settings.seed,
            callback=lambda step, value: progress(step + 1, steps, {"loss": value}), optimizer=self.optimizer,
        )  # fmt: skip
        figures = self.figures(guide, settings) | loss.figures()
        return Fitted(partial(predict, guide), len(x), steps, time.perf_counter() - start, diagnostics=figures)

    def figures(self, guide: Variational, settings: Settings) -> dict[str, Figure]:
        """M of the first layer, and mixture components of the propagation in training if there are hidden layers to carry."""
        families = self.processes(settings)
        first = families if isinstance(families, ProcessFamily) else next(iter(families.values()))
        figures: dict[str, Figure] = {"inducing": first.num_inducing}
        return figures | ({"components": guide.propagation.num_components} if guide.hidden else {})

    def guide(self, model: nn.Module, settings: Settings) -> Variational:
        """The guide before it is initialised."""
        return Variational(model, self.processes(settings), self.propagation(settings))

    def approximates_posterior(self, settings: Settings) -> bool:
        """By the loss."""
        return self.loss(settings, 1).approximates_posterior

    def check(self, settings: Settings) -> None:
        """Whether the propagation can be built."""
        self.propagation(settings)

    def remarks(self, settings: Settings) -> list[str]:
        """Those of the propagation."""
        return self.propagation.remarks(settings) if isinstance(self.propagation, Remarking) else []


@dataclass(frozen=True)
class ByValidatedGuide(ByGuide):
    """The same with validation rows, for losses that overfit: beta, early stopping and the checkpoint chosen by them."""

    validation: Validation = Validation()

    def run(self, model: nn.Module, x: Tensor, y: Tensor, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        start = time.perf_counter()
        guide = self.guide(model, settings)
        steps = settings.steps(len(x), settings.batch_size)
        result = fit_validated(
            guide, lambda beta, rows: self.loss(replace(settings, beta=beta), rows), x, y, steps=steps, batch_size=settings.batch_size,
            learning_rate=settings.learning_rate, seed=settings.seed, validation=self.validation, split=settings.split,
            beta=settings.beta if self.searches else self.validation.betas[0], report=progress, optimizer=self.optimizer,
        )  # fmt: skip
        figures = self.figures(guide, settings) | {
            "beta": result.beta,
            "best_step": result.best_step,
            "run_steps": result.run_steps,
            "search_steps": result.search_steps,
            "final_steps": result.steps - result.search_steps,
            "n_validation": result.validation_rows,
            "validation_nll": result.validation_nll,
            "validation_error": result.validation_error,
            "searched_validation_nll": {
                f"{beta:g}": nll if math.isfinite(nll) else None for beta, nll in result.searched.items()
            },
            "validation_seconds": result.extra_seconds,
        }
        if result.failure is not None:
            figures["failure"] = result.failure
        seconds = time.perf_counter() - start
        return Fitted(partial(predict, guide), result.rows, result.steps, seconds, diagnostics=figures)

    def remarks(self, settings: Settings) -> list[str]:
        """The held-out rows, and the search."""
        searched = ", ".join(f"{beta:g}" for beta in self.validation.betas)
        beta = f"beta from {searched}, " if settings.beta is None else f"beta {settings.beta:g} as given, "
        return [
            *super().remarks(settings),
            f"holds out {self.validation.share:.0%} of the training rows for validation: "
            f"{beta if self.searches else ''}best checkpoint{self._lengths()}",
        ]

    def _lengths(self) -> str:
        shares = [f"{share:.0%}" for share in self.validation.runs]
        return f" of runs over {' and '.join(shares)} of the steps" if len(shares) > 1 else ""

    @property
    def searches(self) -> bool:
        """Whether there is a beta to choose."""
        return len(self.validation.betas) > 1


@dataclass(frozen=True)
class ByMarginalLikelihood(Inference):
    """Type-II maximum likelihood of an exact GP, all data in each step."""

    largest: int = 3000
    default_steps: int = 300

    def run(self, model: nn.Module, x: Tensor, y: Tensor, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        steps = settings.epochs if settings.epochs is not None else self.default_steps
        result = fit(
            MarginalLikelihood(model), x, y, steps=steps, batch_size=len(x), learning_rate=max(settings.learning_rate, 0.03), seed=settings.seed,
            callback=lambda step, loss: progress(step + 1, steps, {"loss": loss}),
        )  # fmt: skip
        return Fitted(partial(predict_mcmc, model, {}, x, y), len(x), steps, result.seconds)

    def most_rows(self, settings: Settings) -> int:
        """One Cholesky factorisation of all rows a step."""
        return self.largest


def mcmc_points(settings: Settings) -> int | None:
    """The largest training set of exact layers."""
    return settings.mcmc_points


@dataclass(frozen=True)
class ByMCMC(Inference):
    """Sampling by a kernel of Pyro's MCMC, chains in processes of their own.

    :ivar kernel: from the model, the training data and the settings.
    :ivar rows: the largest training set.
    """

    kernel: Callable[[nn.Module, Tensor, Tensor, Settings], MCMCKernel]
    rows: Callable[[Settings], int | None] = mcmc_points
    folder: Path | None = None

    def run(self, model: nn.Module, x: Tensor, y: Tensor, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        kernel = self.kernel(model, x, y, settings)
        result = run_chains(
            kernel, (x, y), num_samples=settings.mcmc_samples, warmup_steps=settings.warmup, num_chains=settings.chains, seed=settings.seed,
            report=progress, folder=self.folder,
        )  # fmt: skip
        return Fitted(
            partial(predict_mcmc, kernel.model, result.flat, x, y, num_draws=_predicted_draws(settings)), len(x),
            (settings.warmup + settings.mcmc_samples) * settings.chains, result.seconds, result.draws,
            result.stats, convergence(result.draws, result.stats.get("diverging")),
        )  # fmt: skip

    def saving_to(self, folder: Path) -> ByMCMC:
        """Chains are saved, and go on where they were interrupted."""
        return replace(self, folder=folder)

    def most_rows(self, settings: Settings) -> int | None:
        """``mcmc_points`` for exact layers: each run of the model factorises one matrix of all rows for each of them."""
        return self.rows(settings)

    def remarks(self, settings: Settings) -> list[str]:
        """The priors."""
        remarks = [f"priors of the sampled hyperparameters: {describe()}"]
        kept, total = _predicted_draws(settings), settings.chains * settings.mcmc_samples
        if kept < total:
            remarks.append(
                f"predictions and the ArviZ file are made from {kept} of its {total} draws, R-hat and ESS from all"
            )
        return remarks


def _predicted_draws(settings: Settings) -> int:
    """Draws that predictions are made from: all, or :data:`MOST_DRAWS` at most, as many of each chain."""
    return settings.chains * min(settings.mcmc_samples, max(1, MOST_DRAWS // settings.chains))


@dataclass(frozen=True)
class BySGHMC(Inference):
    """Sampling of inducing variables by stochastic-gradient HMC; hyperparameters by moving windows."""

    processes: Callable[[Settings], ProcessFamily]
    sampler: StochasticGradientHMC = StochasticGradientHMC()

    def run(self, model: nn.Module, x: Tensor, y: Tensor, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        family, steps = self.processes(settings), settings.steps(len(x), settings.batch_size)
        guide = Variational(model, family, MonteCarlo(1))
        guide.initialize(x, y)
        sampler = replace(self.sampler, burn_in=steps, learning_rate=settings.learning_rate)
        result = sampler.run(
            guide, x, y, num_samples=settings.mcmc_samples, batch_size=settings.batch_size, seed=settings.seed, report=progress,
        )  # fmt: skip
        draws = {_site(name): values.mT.unsqueeze(0) for name, values in result.draws.items()}
        figures = {"inducing": family.num_inducing} | {
            name: figure for name, figure in convergence(draws, None).items() if name != "divergences"
        }
        return Fitted(
            partial(predict_draws, guide, result.draws, num_draws=settings.mcmc_samples), len(x), steps + settings.mcmc_samples * sampler.thin, result.seconds,
            draws, {"potential": result.potential.numpy()[None]}, figures,
        )  # fmt: skip

    def remarks(self, settings: Settings) -> list[str]:
        """What it makes of the settings of chains."""
        return [
            "one chain, whatever --chains says; its burn-in are the epochs of training, not --warmup; R-hat compares the halves of the chain"
        ]


def _site(parameter: str) -> str:
    """The name that sparse MCMC gives the inducing variables of a guide's parameter: ``y_f_inducing_whitened``."""
    process = process_parameter(parameter)
    assert process is not None
    return inducing_site(function_site_of(process[0]))
