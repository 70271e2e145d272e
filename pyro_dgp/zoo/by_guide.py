"""Inference by a guide: stochastic variational inference, or any other loss of this library."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.progress import Progress
from pyro_dgp.losses import Loss
from pyro_dgp.processes import ProcessFamily, WhitenedProcess
from pyro_dgp.propagation import Propagation
from pyro_dgp.training.fallback import Fallback
from pyro_dgp.training.loop import fit
from pyro_dgp.training.optimising import Callback, OptimizerRecipe, adam
from pyro_dgp.training.second_start import SECOND, fit_with_second_start
from pyro_dgp.training.validated_fit import ValidatedFit, fit_validated
from pyro_dgp.training.validation import Validation
from pyro_dgp.zoo.anatomy import anatomy_of
from pyro_dgp.zoo.by_layer import ByLayer
from pyro_dgp.zoo.given_minutes import remarks_on_time, steps_within
from pyro_dgp.zoo.inference import Figure, Fitted, Inference
from pyro_dgp.zoo.predictors import IS_FALLBACK, GuidePredictor, Saved
from pyro_dgp.zoo.recipes import elbo
from pyro_dgp.zoo.settings import DEFAULT_ROWS, DEFAULT_SAMPLES, Settings

#: One family for all Gaussian processes, one for each by name, or one for the first layer and one for those above.
Families = ProcessFamily | Mapping[str, ProcessFamily] | ByLayer


@runtime_checkable
class Remarking(Protocol):
    """A recipe that has something to say about the settings."""

    def remarks(self, settings: Settings) -> list[str]:
        """Sentences to be said before it starts."""


@dataclass(frozen=True)
class ByGuide(Inference):
    """Stochastic variational inference, or any loss of this library: a process, a propagation, a loss.

    >>> from pyro_dgp import ELBO, InducingPoints, SigmaPoints
    >>> ByGuide(InducingPoints(20), SigmaPoints("qr3", 5), ELBO).approximates_posterior(Settings())
    True

    :param processes: what a guide takes, such as ``InducingPoints(20)``; or a function of the settings that makes it.
    :param propagation: such as ``MonteCarlo(10)``; or a function of the settings that makes it.
    :param loss: a class of losses, such as ``ELBO``; or a function of the settings and the number of training rows that makes one.
    :param optimizer: builds the optimiser from the objective and the learning rate.
    :param batch_size: rows of a step where the settings leave them open, and ``samples`` for each of them.
    :param first: what is done to the model before it is fitted, called with the model, the training data and the settings, such as
        :func:`~pyro_dgp.zoo.starts.one_layer_first`.
    :param begin: what is done to the guide once it is initialised, called with the guide, the training data and the settings, such as
        a call of :func:`~pyro_dgp.start_at_means`.
    """

    processes: Families | Callable[[Settings], Families]
    propagation: Propagation | Callable[[Settings], Propagation]
    loss: type[Loss] | Callable[[Settings, int], Loss] = elbo
    _: KW_ONLY
    optimizer: OptimizerRecipe = adam
    batch_size: int = DEFAULT_ROWS
    samples: int = DEFAULT_SAMPLES
    first: Callable[[nn.Module, Tensor, Tensor, Settings], object] | None = None
    begin: Callable[[Variational, Tensor, Tensor, Settings], object] | None = None

    keeps_time: ClassVar[bool] = True
    has_draws: ClassVar[bool] = False

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        start, settings = time.perf_counter(), self.settled(settings)
        site = anatomy_of(model, x, y).response
        if self.first is not None:
            self.first(model, x, y, settings)
        guide = self.guide(model, x, settings)
        guide.initialize(x, y)
        if self.begin is not None:
            self.begin(guide, x, y, settings)
        steps = self._steps(guide, x, y, settings=settings, start=start)
        loss = self.made_loss(settings, len(x))
        result, is_second = fit_with_second_start(
            guide,
            loss(model, guide),
            x,
            y,
            steps=steps,
            second=settings.minutes is None,
            site=site,
            batch_size=settings.rows_of_step,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            callback=lambda step, value: progress(step + 1, steps, {"loss": value}),
            optimizer=self.optimizer,
        )
        figures = self.figures(guide, settings) | loss.figures()
        seconds = time.perf_counter() - start
        predictor, remarks = GuidePredictor(guide, site), [SECOND] if is_second else []
        remarks += remarks_on_time(settings.minutes, steps)
        remarks += result.trained.remarks(result.losses, site) if result.trained else []
        return Fitted(predictor, len(x), steps, seconds=seconds, diagnostics=figures, remarks=remarks)

    def _steps(self, guide: Variational, x: Tensor, y: Tensor, *, settings: Settings, start: float) -> int:
        """Return the number of steps: those of the settings, or as many as the time allows, by that of a few on a copy.

        :param start: when the fit began.
        """
        if settings.minutes is None:
            return settings.num_steps(len(x), settings.rows_of_step)

        def trial(steps: int, callback: Callback) -> None:
            copied = copy.deepcopy(guide)
            if not copied.is_initialized:
                copied.initialize(x, y)
            loss = self.made_loss(settings, len(x))(copied.model, copied)
            rows, optimizer = settings.rows_of_step, self.optimizer
            fit(loss, x, y, steps=steps, batch_size=rows, callback=callback, optimizer=optimizer)

        return steps_within(settings.minutes, trial, start=start, cost=self.cost(settings, len(x)))

    def restore(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, saved: Saved) -> GuidePredictor:
        """See :class:`Inference`."""
        site = anatomy_of(model, x, y).response
        guide = self._restored_guide(model, x, settings, saved)
        model.load_state_dict(saved.state("model"))
        guide.load_state_dict(saved.state("guide"))
        return GuidePredictor(guide, site, is_fallback=bool(saved.facts.get(IS_FALLBACK)))

    def _restored_guide(self, model: nn.Module, x: Tensor, settings: Settings, saved: Saved) -> Variational:
        """Return the guide whose state was saved, before it is loaded."""
        return self.guide(model, x, settings)

    def as_fallback(self, model: nn.Module, x: Tensor, settings: Settings) -> Fallback:
        """Return the loss and a guide of this inference, to be tried beside another one of the same model."""
        rows = self.settled(settings).rows_of_step
        loss = partial(self.made_loss, settings)
        return Fallback(loss, self.guide(model, x, settings), batch_size=rows, optimizer=self.optimizer)

    def figures(self, guide: Variational, settings: Settings) -> dict[str, Figure]:
        """M of the first layer, and mixture components of the propagation in training if there are hidden layers to carry."""
        first = next(iter(guide.processes.children()))
        size = first.basis.size if isinstance(first, WhitenedProcess) else self._first_family(settings).num_inducing
        figures: dict[str, Figure] = {"inducing": size}
        return figures | ({"components": guide.propagation.num_components} if guide.hidden else {})

    def _first_family(self, settings: Settings) -> ProcessFamily:
        families = self._made_families(settings)
        if isinstance(families, ByLayer):
            return families.first
        return families if isinstance(families, ProcessFamily) else next(iter(families.values()))

    def guide(self, model: nn.Module, x: Tensor, settings: Settings) -> Variational:
        """The guide before it is initialised.

        :param x: inputs that the model can be called with, of which only the shapes matter.
        """
        families = self._made_families(settings)
        if isinstance(families, ByLayer):
            families = families.of(list(anatomy_of(model, x, None).functions))
        return Variational(model, families, self.made_propagation(settings))

    def settled(self, settings: Settings) -> Settings:
        """See :class:`Inference`."""
        return settings.filled(batch_size=self.batch_size, samples=self.samples)

    def made_propagation(self, settings: Settings) -> Propagation:
        """The propagation of these settings."""
        if isinstance(self.propagation, Propagation):
            return self.propagation
        return self.propagation(self.settled(settings))

    def made_loss(self, settings: Settings, rows: int) -> Loss:
        """The loss of these settings for a number of training rows."""
        if isinstance(self.loss, type):
            return self.loss(rows)
        return self.loss(self.settled(settings), rows)

    def _made_families(self, settings: Settings) -> Families:
        given = self.processes
        return given if isinstance(given, ProcessFamily | Mapping | ByLayer) else given(self.settled(settings))

    def approximates_posterior(self, settings: Settings) -> bool:
        """Tell by the loss."""
        return self.made_loss(settings, 1).approximates_posterior

    def check(self, settings: Settings) -> None:
        """Whether processes and propagation can be built."""
        self._made_families(settings)
        self.made_propagation(settings)

    def remarks(self, settings: Settings) -> list[str]:
        """Return what the propagation has to say."""
        return self.propagation.remarks(self.settled(settings)) if isinstance(self.propagation, Remarking) else []


@dataclass(frozen=True)
class ByValidatedGuide(ByGuide):
    """Inference by a guide with validation rows, for losses that overfit: beta, early stopping and the checkpoint chosen by them.

    >>> from pyro_dgp import InducingPoints, PredictiveLogLikelihood, SigmaPoints, Validation
    >>> inference = ByValidatedGuide(
    ...     InducingPoints(20, "diagonal", hidden_scale=1.0),
    ...     SigmaPoints("qr3", 5),
    ...     lambda settings, rows: PredictiveLogLikelihood(rows, settings.beta or 0.05),
    ...     validation=Validation(betas=(0.1, 1.0)),
    ... )
    >>> inference.approximates_posterior(Settings())
    False

    :param loss: reads the beta of a run as ``settings.beta``.
    :param validation: the held-out rows and the betas that are tried.
    :param fallback: an inference of the same model that is tried beside the betas, such as ``ByGuide(InducingPoints(20))`` with the ELBO. One that
        overfits is itself a ``ByValidatedGuide``: its best check is kept, as that of a beta is.
    """

    _: KW_ONLY
    validation: Validation = Validation()
    fallback: ByGuide | None = None

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        start, asked, settings = time.perf_counter(), settings, self.settled(settings)
        site = anatomy_of(model, x, y).response
        if self.first is not None:
            self.first(model, x, y, settings)
        guide = self.guide(model, x, settings)
        steps = self._steps(guide, x, y, settings=settings, start=start)
        result = fit_validated(
            guide,
            lambda beta, rows: self.made_loss(replace(settings, beta=beta), rows),
            x,
            y,
            steps=steps,
            batch_size=settings.rows_of_step,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            validation=self.validation,
            split=settings.split,
            beta=settings.beta if self.searches else self.validation.betas[0],
            fallback=None if self.fallback is None else self.fallback.as_fallback(model, x, asked),
            report=progress,
            optimizer=self.optimizer,
            site=site,
        )
        chosen = self if self.fallback is None or result.guide is guide else self.fallback
        figures = chosen.figures(result.guide, asked) | _validation_figures(result)
        seconds = time.perf_counter() - start
        predictor = GuidePredictor(result.guide, site, is_fallback=chosen is not self)
        remarks = [*remarks_on_time(settings.minutes, steps), *result.remarks]
        return Fitted(predictor, result.rows, result.steps, seconds=seconds, diagnostics=figures, remarks=remarks)

    def as_fallback(self, model: nn.Module, x: Tensor, settings: Settings) -> Fallback:
        """See :class:`ByGuide`. Held-out rows say where it stops."""
        return replace(super().as_fallback(model, x, settings), stops=True)

    def for_pilot(self) -> ByValidatedGuide:
        """Return the inference with a single fold of held-out rows, runs of all steps, and no fallback; ``settings.beta`` spares its search."""
        return replace(self, validation=replace(self.validation, search=1.0, runs=(1.0,), folds=1), fallback=None)

    def _restored_guide(self, model: nn.Module, x: Tensor, settings: Settings, saved: Saved) -> Variational:
        """Return the guide whose state was saved: that of the fallback, if that was chosen."""
        if self.fallback is not None and saved.facts.get(IS_FALLBACK):
            return self.fallback.guide(model, x, settings)
        return self.guide(model, x, settings)

    def remarks(self, settings: Settings) -> list[str]:
        """The held-out rows, and the search."""
        tried = [f"{beta:g}" for beta in self.validation.betas] + (["none (the fallback)"] if self.fallback else [])
        beta = f"beta from {', '.join(tried)}, " if settings.beta is None else f"beta {settings.beta:g} as given, "
        return [
            *super().remarks(settings),
            f"holds out {self.validation.share:.0%} of the training rows for validation, several times in turn where they are few: "
            f"{beta if self.searches else ''}best checkpoint{self._lengths()}",
        ]

    def cost(self, settings: Settings, rows: int) -> float:
        """Return how many steps the search and all runs make for each step of a full run."""
        searched = self.searches and settings.beta is None
        with_fallback = searched and self.fallback is not None
        search = (len(self.validation.betas) + with_fallback) * self.validation.search if searched else 0.0
        runs = sum(share for share in self.validation.runs if not (searched and share == self.validation.search))
        each = search + runs + with_fallback
        folds = self.validation.num_folds(rows)
        return folds * each + 1 if folds > 1 else each

    def _lengths(self) -> str:
        shares = [f"{share:.0%}" for share in self.validation.runs]
        return f" of runs over {' and '.join(shares)} of the steps" if len(shares) > 1 else ""

    @property
    def searches(self) -> bool:
        """Whether there is a beta to choose."""
        return len(self.validation.betas) > 1


def _validation_figures(result: ValidatedFit) -> dict[str, Figure]:
    """The choices of a validated run, for the results table."""
    figures: dict[str, Figure] = {
        "beta": result.beta,
        "best_step": result.best_step,
        "run_steps": result.run_steps,
        "search_steps": result.search_steps,
        "final_steps": result.steps - result.search_steps,
        "n_validation": result.validation_rows,
        "validation_folds": result.folds,
        "validation_nll": result.validation_nll,
        "validation_error": result.validation_error,
        "validation_crps": result.validation_crps,
        "searched_validation_nll": {
            "fallback" if beta is None else f"{beta:g}": nll if math.isfinite(nll) else None
            for beta, nll in result.searched.items()
        },
        "validation_seconds": result.extra_seconds,
    }
    return figures if result.failure is None else figures | {"failure": result.failure}
