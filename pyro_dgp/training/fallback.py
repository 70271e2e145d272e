"""Losses that a validation tries: one for each beta, and a fallback that has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch

from pyro_dgp.guides.variational import Variational
from pyro_dgp.training.optimising import OptimizerRecipe, losses_in

#: Function from model and guide to an objective: a :class:`~pyro_dgp.losses.Loss` is one.
Objective = Callable[[Any, Any], torch.nn.Module]
#: Function ``loss(beta, rows)``.
LossRecipe = Callable[[float, int], Objective]


@dataclass(frozen=True)
class Fallback:
    """Loss that is fitted where no beta of a predictive loss is clearly better at held-out rows, with a guide of its own if need be.

    Where it is chosen, it is trained on all rows for all steps. A loss that overfits, as the ELBO with a neural network in front of
    the GP, needs early stopping: with ``stops`` its best check is kept, as that of a beta is.

    :ivar loss: function from the number of training rows to a loss: a class of losses, such as ``ELBO``.
    :ivar guide: guide of the same model that this loss trains; the guide of the betas if not given.
    :ivar batch_size: number of rows in a step; that of the betas if not given.
    :ivar optimizer: builds its optimiser from the objective and the learning rate; that of the betas if not given.
    :ivar stops: whether its best check is kept in the place of its end.

    >>> from pyro_dgp import ELBO, Fallback
    >>> Fallback(ELBO).loss(100).num_data
    100
    """

    loss: Callable[[int], Objective]
    guide: Variational | None = None
    batch_size: int | None = None
    _: KW_ONLY
    optimizer: OptimizerRecipe | None = None
    stops: bool = False


@dataclass(frozen=True)
class Recipes:
    """The guides and losses that are tried: one loss for each beta, and a fallback that has none."""

    guide: Variational
    loss: LossRecipe
    fallback: Fallback | None

    def guide_of(self, beta: float | None) -> Variational:
        """Return the guide of a beta, or that of the fallback where it is ``None``."""
        other = None if beta is not None or self.fallback is None else self.fallback.guide
        return self.guide if other is None else other

    def stops(self, beta: float | None) -> bool:
        """Whether the best check of a run is kept in the place of its end."""
        return beta is not None or (self.fallback is not None and self.fallback.stops)

    def options(self, beta: float | None) -> dict[str, Any]:
        """Return the rows of a step and the optimiser of the fallback, if that is asked for and has its own."""
        if beta is not None or self.fallback is None:
            return {}
        own = {"batch_size": self.fallback.batch_size, "optimizer": self.fallback.optimizer}
        return {name: value for name, value in own.items() if value is not None}

    def objective(self, beta: float | None, rows: int) -> torch.nn.Module:
        """Return the loss of a beta, or that of the fallback, of its guide."""
        guide = self.guide_of(beta)
        if beta is None:
            assert self.fallback is not None
            made = self.fallback.loss(rows)(guide.model, guide)
        else:
            made = self.loss(beta, rows)(guide.model, guide)
        settling = next((loss for loss in losses_in(made) if hasattr(loss, "settle")), None)
        if settling is not None:
            raise ValueError(
                f"{type(settling).__name__} sets q(v) at the end, and held-out rows are scored on the way: take fit_collapsed, or a loss such as ELBO"
            )
        return made
