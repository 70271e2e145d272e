"""Inference by the collapsed bound: a GP or a deep GP under Gaussian noise, with the best q(v) of the observed function in each step."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.progress import Progress
from pyro_dgp.losses import HyperparameterPrior
from pyro_dgp.processes import BasisFamily
from pyro_dgp.propagation import MonteCarlo
from pyro_dgp.training.collapsed_fit import fit_collapsed, rows_of_step
from pyro_dgp.training.optimising import Callback, FitResult
from pyro_dgp.training.second_start import SECOND, train_with_second_start
from pyro_dgp.zoo.anatomy import anatomy_of
from pyro_dgp.zoo.given_minutes import remarks_on_time, steps_within
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.predictors import GuidePredictor, Saved
from pyro_dgp.zoo.settings import Settings

#: Steps of the predictive loss that a second start comes from, and the rows of each.
PREDICTIVE_STEPS, ROWS_OF_START = 500, 500
#: Steps of a fit whose failure tells anything.
FEWEST_STEPS = 50
#: Rows times draws of hidden functions in a step, at least, and draws at most: q(v) is the best one for these draws, and fits few of them too well.
ROWS_DRAWN, MOST_DRAWS = 3000, 10


@dataclass(frozen=True)
class ByCollapsedELBO(Inference):
    """The bound of a GP or a deep GP under Gaussian noise with the best q(v) of the observed function: :func:`~pyro_dgp.fit_collapsed`.

    Hidden functions have ``settings.samples`` draws for each row. Where these are ``None`` there are as many as make 3,000 rows times draws, but 10 at most.

    >>> from pyro_dgp import FourierFeatures
    >>> ByCollapsedELBO(FourierFeatures(30)).default_steps
    300

    :param processes: a family whose q(v) has a full covariance, or a function of the settings that makes it.
    :param default_steps: steps at most where the settings have neither ``steps``, ``epochs`` nor ``minutes``.
    :param spread: that of the :class:`~pyro_dgp.HyperparameterPrior` around the start; no prior if not given.
    :param first: what is done to the model before it is fitted, as in :class:`~pyro_dgp.ByGuide`.
    """

    keeps_time: ClassVar[bool] = True
    has_draws: ClassVar[bool] = False

    processes: BasisFamily | Callable[[Settings], BasisFamily]
    default_steps: int = 300
    _: KW_ONLY
    spread: float | None = None
    first: Callable[[nn.Module, Tensor, Tensor, Settings], object] | None = None

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        start = time.perf_counter()
        guide, site = self.guide(model, x, settings), anatomy_of(model, x, y).response
        if self.first is not None:
            self.first(model, x, y, settings)
        guide.initialize(x, y)
        options: dict[str, Any] = {"batch_size": settings.batch_size, "seed": settings.seed}

        def trial(steps: int, callback: Callback) -> None:
            copied = copy.deepcopy(guide)
            prior = self._prior(copied.model)
            fit_collapsed(copied, (x, y), steps=steps, prior=prior, callback=callback, **options)

        steps = self._steps(settings, len(x), trial, start=start)
        prior = self._prior(model)

        def train() -> FitResult:
            def callback(step: int, loss: float) -> None:
                progress(step + 1, steps, {"loss": loss})

            return fit_collapsed(guide, (x, y), steps=steps, prior=prior, callback=callback, **options)

        result, is_second = self._trained(train, guide, x, y, steps=steps, site=site, settings=settings)
        process = next(iter(guide.processes.children()))
        figures = {"inducing": process.basis.size}
        figures |= {"components": guide.propagation.num_components} if guide.hidden else {}
        remarks = ([SECOND] if is_second else []) + remarks_on_time(settings.minutes, steps)
        remarks += result.trained.remarks(result.losses, site) if result.trained else []
        seconds, predictor = time.perf_counter() - start, GuidePredictor(guide, site)
        return Fitted(predictor, len(x), len(result.losses), seconds=seconds, diagnostics=figures, remarks=remarks)

    def _prior(self, model: nn.Module) -> HyperparameterPrior | None:
        return None if self.spread is None else HyperparameterPrior(model, self.spread)

    def _steps(self, settings: Settings, rows: int, trial: Callable[[int, Callback], object], *, start: float) -> int:
        """Return the number of steps: those of the settings, as many as their minutes allow, or those of this inference."""
        if settings.minutes is not None:
            return steps_within(settings.minutes, trial, start=start)
        return settings.num_steps(rows, rows) if settings.has_length else self.default_steps

    def _trained(
        self,
        train: Callable[[], FitResult],
        guide: Variational,
        x: Tensor,
        y: Tensor,
        *,
        steps: int,
        site: str | None,
        settings: Settings,
    ) -> tuple[FitResult, bool]:
        """Train, and once more from a predictive loss where that explains nothing, unless the time is given."""
        if steps < FEWEST_STEPS or settings.minutes is not None:
            return train(), False
        options = {"batch_size": ROWS_OF_START, "learning_rate": settings.learning_rate, "seed": settings.seed}
        return train_with_second_start(guide, train, x, y, predictive_steps=PREDICTIVE_STEPS, site=site, **options)

    def cost(self, settings: Settings, rows: int) -> float:
        """Return the rows times draws of a step, for each step that the settings ask for: the number of steps does not depend on that of rows."""
        of_step = rows_of_step(rows, settings.batch_size)
        return of_step * self.draws(settings, rows) / settings.num_steps(rows, settings.rows_of_step)

    def restore(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, saved: Saved) -> GuidePredictor:
        """See :class:`Inference`."""
        guide = self.guide(model, x, settings)
        model.load_state_dict(saved.state("model"))
        guide.load_state_dict(saved.state("guide"))
        return GuidePredictor(guide, anatomy_of(model, x, y).response)

    def guide(self, model: nn.Module, x: Tensor, settings: Settings) -> Variational:
        """The guide before it is initialised."""
        family = self.processes if isinstance(self.processes, BasisFamily) else self.processes(settings)
        return Variational(model, family, MonteCarlo(self.draws(settings, len(x))))

    @staticmethod
    def draws(settings: Settings, rows: int) -> int:
        """Draws of hidden functions for each row of a step in a fit to so many rows."""
        if settings.samples is not None:
            return settings.samples
        return max(1, min(MOST_DRAWS, -(-ROWS_DRAWN // rows_of_step(rows, settings.batch_size))))
