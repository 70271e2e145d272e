"""Inference by the marginal likelihood: exact GP regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from pyro_dgp.internal.progress import Progress
from pyro_dgp.losses import MarginalLikelihood
from pyro_dgp.training.loop import fit
from pyro_dgp.zoo.anatomy import Anatomy, anatomy_of
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.predictors import DrawsPredictor, Saved
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class ByMarginalLikelihood(Inference):
    """Type-II maximum likelihood of an exact GP, all data in each step.

    >>> ByMarginalLikelihood(largest=500).most_rows(Settings())
    500

    :param largest: training rows at most: each step factorises one matrix of all of them.
    :param default_steps: steps where the settings have no ``epochs``.
    """

    has_draws: ClassVar[bool] = False

    largest: int = 3000
    default_steps: int = 300

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        steps = settings.epochs if settings.epochs is not None else self.default_steps
        site = anatomy_of(model, x, y).response
        result = fit(
            MarginalLikelihood(model),
            x,
            y,
            steps=steps,
            batch_size=len(x),
            learning_rate=max(settings.learning_rate, 0.03),
            seed=settings.seed,
            callback=lambda step, loss: progress(step + 1, steps, {"loss": loss}),
        )
        return Fitted(DrawsPredictor(model, x, y, site=site), len(x), steps, seconds=result.seconds)

    def restore(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, saved: Saved) -> DrawsPredictor:
        """See :class:`Inference`."""
        model.load_state_dict(saved.state("model"))
        return DrawsPredictor(model, x, y, site=anatomy_of(model, x, y).response)

    def check_model(self, anatomy: Anatomy) -> None:
        """The only site is an observation with a closed form."""
        super().check_model(anatomy)
        latent = [*anatomy.sampled, *anatomy.latents]
        if latent:
            raise ValueError(f"it needs a model whose only site is observed; yours has {', '.join(latent)}")

    def most_rows(self, settings: Settings) -> int:
        """One Cholesky factorisation of all rows a step."""
        return self.largest
