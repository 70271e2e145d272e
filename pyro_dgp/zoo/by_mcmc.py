"""Inference by MCMC: kernels of Pyro's MCMC on the whitened model, in several chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor, nn

from pyro_dgp.internal.progress import Progress, silent
from pyro_dgp.mcmc import Chains, run_chains
from pyro_dgp.mcmc.diagnostics import convergence
from pyro_dgp.mcmc.initial_points import Start
from pyro_dgp.mcmc.kernel_state import can_be_saved
from pyro_dgp.zoo.anatomy import Anatomy, anatomy_of, free_parameters
from pyro_dgp.zoo.approximations import Approximation, exactly
from pyro_dgp.zoo.by_guide import ByGuide
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.predictors import DrawsPredictor, Saved, predictive_means
from pyro_dgp.zoo.recipes import elbo, monte_carlo, points_of_outputs
from pyro_dgp.zoo.settings import Settings
from pyro_dgp.zoo.starts import one_layer_first

#: Draws of MCMC that a prediction is made from, at most.
MOST_DRAWS = 1000

#: Method of the zoo that gives hyperparameters without priors their values, and what it is made of.
LEARNER_NAME, LEARNER = "dsvi", ByGuide(points_of_outputs, monte_carlo, elbo, first=one_layer_first)

#: Said of chains whose kernel does not say what its state is.
_UNSAVED = (
    "the state of {} cannot be saved, so --resume begins its chains again: give it state_dict and load_state_dict"
)

#: Builds a kernel from the model that is sampled, the training data and the settings.
KernelRecipe = Callable[[Any, Tensor, Tensor, Settings], MCMCKernel]


def mcmc_points(settings: Settings) -> int | None:
    """The largest training set of exact layers."""
    return settings.mcmc_points


@dataclass(frozen=True)
class ByMCMC(Inference):
    """Sampling by a kernel of Pyro's MCMC, chains in processes of their own.

    >>> from pyro_dgp import EllipticalSlice, WhitenedNUTS
    >>> by_slices = ByMCMC(EllipticalSlice)
    >>> by_nuts = ByMCMC(lambda model, x, y, settings: WhitenedNUTS(model, max_tree_depth=4))
    >>> by_nuts.most_rows(Settings(mcmc_points=50))
    50

    Hyperparameters with priors are sampled. Those without take values first that ``learner`` finds on the same rows, by the
    ELBO with the settings of ``dsvi``, and keep them.

    ``r_hat_max`` and ``ess_min`` of the results are over the log density and, at each training row, the function values of the
    likelihood (the predictive mean given the draw). Values of hidden functions are not judged: a hidden function and its mirror
    image explain the data equally well, so that chains may sit in either without being wrong.

    :param kernel: a class of kernels that is called with the model, or a function of the model, the training data and the settings
        that makes a kernel.
    :param rows: from the settings to the largest training set; nothing if there is no limit.
    :param folder: where chains are saved and resumed.
    :param approximation: from the model and the settings to the model that is sampled in its place.
    :param learner: inference that finds the hyperparameters that have no prior.
    :param start: first point of all chains, from what the learner has fitted; the kernel's own if not given.
    """

    kernel: type[MCMCKernel] | KernelRecipe
    _: KW_ONLY
    rows: Callable[[Settings], int | None] = mcmc_points
    folder: Path | None = None
    learner: Inference = LEARNER
    start: Callable[[Fitted], Start] | None = None
    approximation: Approximation = exactly

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        learned = None
        if free_parameters(model):
            few = replace(settings, inducing=min(settings.inducing, len(x)))
            learned = self.learner.run(model, x, y, settings=few, progress=silent)
        site = anatomy_of(model, x, y).response
        kernel = self._made_kernel(model, x, y, settings)
        if self.start is not None and learned is not None:
            kernel.start = self.start(learned)
        is_saved = self.folder is not None and can_be_saved(kernel)
        result = run_chains(
            kernel,
            (x, y),
            num_samples=settings.mcmc_samples,
            warmup_steps=settings.warmup,
            num_chains=settings.chains,
            seed=settings.seed,
            report=progress,
            folder=self.folder if is_saved else None,
        )
        inducing = dict(getattr(kernel.model, "inducing", {}))
        predictor = self._predictor(model, x, y, site, settings, result.draws, inducing)
        figures = convergence(
            monitored(result.stats.get("lp"), predictive_means(predictor, x, settings.chains)),
            result.stats.get("diverging"),
        )
        steps = (settings.warmup + settings.mcmc_samples) * settings.chains
        return Fitted(
            predictor,
            len(x),
            steps,
            seconds=(0.0 if learned is None else learned.seconds) + _wall_clock(result),
            draws=result.draws,
            sample_stats=result.stats,
            diagnostics=figures,
            remarks=() if is_saved or self.folder is None else (_UNSAVED.format(type(kernel).__name__),),
        )

    def restore(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, saved: Saved) -> DrawsPredictor:
        """See :class:`Inference`."""
        model.load_state_dict(saved.state("model"))
        site = anatomy_of(model, x, y).response
        draws, inducing = saved.group("draws"), saved.group("inducing")
        return self._predictor(model, x, y, site, settings, draws, inducing)

    def _predictor(
        self, model: nn.Module, x: Tensor, y: Tensor, site: str | None, settings: Settings, draws: Any, inducing: Any
    ) -> DrawsPredictor:
        approximation = partial(self.approximation, settings=settings)
        return DrawsPredictor(
            model, x, y, draws, inducing, predicted_draws(settings), site, approximation=approximation
        )

    def _made_kernel(self, model: nn.Module, x: Tensor, y: Tensor, settings: Settings) -> MCMCKernel:
        sampled = self.approximation(model, settings)
        if isinstance(self.kernel, type):
            return self.kernel(sampled)
        return self.kernel(sampled, x, y, settings)

    def saving_to(self, folder: Path) -> ByMCMC:
        """Chains are saved, and go on where they were interrupted."""
        return replace(self, folder=folder)

    def most_rows(self, settings: Settings) -> int | None:
        """``mcmc_points`` for exact layers: each run of the model factorises one matrix of all rows for each of them."""
        return self.rows(settings)

    def remarks(self, settings: Settings) -> list[str]:
        """The number of draws that predictions are made from."""
        kept, total = predicted_draws(settings), settings.chains * settings.mcmc_samples
        if kept == total:
            return []
        return [
            f"predictions, the ArviZ file and the R-hat of function values are made from {kept} of its {total} draws"
        ]

    def remarks_on(self, anatomy: Anatomy) -> list[str]:
        """Hyperparameters without priors."""
        if not anatomy.free:
            return []
        named = ", ".join(anatomy.free)
        return [f"no prior stands on {named}: fixed at the values that {self._learner_name} learns on the same rows"]

    @property
    def _learner_name(self) -> str:
        return LEARNER_NAME if self.learner == LEARNER else type(self.learner).__name__


def _wall_clock(result: Chains) -> float:
    """Time of sampling, seconds; of chains that were interrupted or made longer, that of all calls, if their processes share it evenly."""
    workers = min(len(result.diagnostics), torch.multiprocessing.cpu_count())
    return max(result.seconds, result.sampling_seconds / workers)


def predicted_draws(settings: Settings) -> int:
    """Draws that predictions are made from: all, or :data:`MOST_DRAWS` at most, as many of each chain."""
    return settings.chains * min(settings.mcmc_samples, max(1, MOST_DRAWS // settings.chains))


def monitored(log_density: np.ndarray | None, means: Tensor) -> dict[str, Tensor]:
    """The quantities by which chains are judged, see :class:`ByMCMC`: ``lp`` ``(chains, draws)`` and ``f`` ``(chains, draws, N)``."""
    quantities = {"f": means}
    return quantities if log_density is None else {"lp": means.new_tensor(log_density)} | quantities
