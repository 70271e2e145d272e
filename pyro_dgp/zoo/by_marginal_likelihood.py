"""Inference by the marginal likelihood: exact GP regression."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from pyro_dgp.internal.progress import Progress
from pyro_dgp.losses import MarginalLikelihood
from pyro_dgp.training.lbfgs import fit_lbfgs
from pyro_dgp.training.loop import fit
from pyro_dgp.zoo.anatomy import Anatomy, anatomy_of
from pyro_dgp.zoo.approximations import Approximation, exactly
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.predictors import DrawsPredictor, Saved
from pyro_dgp.zoo.settings import Settings

#: Learning rates of Adam, by the terms of the likelihood that a step has.
ALL_TERMS, SOME_TERMS = 0.1, 0.03


@dataclass(frozen=True)
class ByMarginalLikelihood(Inference):
    """Type-II maximum likelihood of an exact GP, all data in each step, or of an approximation of it, whose steps may have some terms of the likelihood.

    With all terms the first half of the steps are Adam's, at a high learning rate, which leaves poor optima behind; the others are those of
    :func:`~pyro_dgp.fit_lbfgs`, and end where the likelihood stands still. With some terms all steps are Adam's.

    >>> ByMarginalLikelihood(largest=500).most_rows(Settings())
    500

    :param largest: training rows at most: each step factorises one matrix of all of them. ``None`` for no limit.
    :param default_steps: steps at most where the settings have neither ``steps`` nor ``epochs``.
    :param default_terms: terms of a step, of an approximation whose likelihood is a product of one for each row, where the settings have no
        ``batch_size``. ``None`` for all of them, whatever the settings have.
    :param approximation: from the model and the settings to the model that is trained in its place.
    """

    has_draws: ClassVar[bool] = False

    largest: int | None = 3000
    default_steps: int = 100
    approximation: Approximation = exactly
    _: KW_ONLY
    default_terms: int | None = None

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        settings = self.settled(settings)
        terms = None if self.default_terms is None else settings.rows_of_step
        steps = settings.num_steps(len(x), terms or len(x)) if settings.has_length else self.default_steps
        site = anatomy_of(model, x, y).response
        objective = MarginalLikelihood(self.approximation(model, settings), terms=terms)
        by_adam = steps if terms else -(-steps // 2)
        first = fit(
            objective,
            x,
            y,
            steps=by_adam,
            batch_size=len(x),
            learning_rate=max(settings.learning_rate, SOME_TERMS if terms else ALL_TERMS),
            seed=settings.seed,
            callback=lambda step, loss: progress(step + 1, steps, {"loss": loss}),
        )
        seconds, losses, trained = first.seconds, first.losses, first.trained
        if by_adam < steps:
            then = fit_lbfgs(
                objective,
                x,
                y,
                steps=steps - by_adam,
                callback=lambda step, loss: progress(by_adam + step + 1, steps, {"loss": loss}),
            )
            seconds, losses, trained = seconds + then.seconds, [*losses, *then.losses], then.trained
        predictor, remarks = self._predictor(model, x, y, site, settings), trained.remarks(losses) if trained else []
        return Fitted(predictor, len(x), len(losses), seconds=seconds, remarks=remarks)

    def settled(self, settings: Settings) -> Settings:
        """See :class:`Inference`."""
        if settings.batch_size is not None or self.default_terms is None:
            return settings
        return replace(settings, batch_size=self.default_terms)

    def _predictor(
        self, model: nn.Module, x: Tensor, y: Tensor, site: str | None, settings: Settings
    ) -> DrawsPredictor:
        return DrawsPredictor(model, x, y, site=site, approximation=partial(self.approximation, settings=settings))

    def restore(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, saved: Saved) -> DrawsPredictor:
        """See :class:`Inference`."""
        model.load_state_dict(saved.state("model"))
        return self._predictor(model, x, y, anatomy_of(model, x, y).response, settings)

    def check_model(self, anatomy: Anatomy) -> None:
        """The only site is an observation with a closed form."""
        super().check_model(anatomy)
        latent = [*anatomy.sampled, *anatomy.latents]
        if latent:
            raise ValueError(f"it needs a model whose only site is observed; yours has {', '.join(latent)}")

    def most_rows(self, settings: Settings) -> int | None:
        """One Cholesky factorisation of all rows a step."""
        return self.largest
