"""Ways to fit one model object, with one interface: the base class, and what a fit leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pyro_dgp.internal.progress import Progress
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.zoo.anatomy import Anatomy
from pyro_dgp.zoo.predictors import Predictor, Saved
from pyro_dgp.zoo.settings import Settings

#: Figure of the results table; nothing where it cannot be had, several by name.
Figure = float | int | str | dict[str, float | None] | None


@dataclass
class Fitted:
    """A fitted method.

    :ivar predict: from inputs ``(N, D)`` to a :class:`Prediction`; a :class:`Predictor` if the fit can be kept.
    :ivar rows: training rows used.
    :ivar steps: optimiser steps, or MCMC iterations of all chains, warm-up included.
    :ivar draws: posterior draws by site ``(chains, draws, ...)``, for MCMC.
    :ivar sample_stats: by name ``(chains, draws)``, for MCMC.
    :ivar diagnostics: figures for the results table.
    :ivar remarks: sentences on how the fit went.
    """

    predict: Callable[[Tensor], Prediction]
    rows: int
    steps: int
    _: KW_ONLY
    seconds: float
    draws: dict[str, Tensor] = field(default_factory=dict)
    sample_stats: dict[str, np.ndarray] = field(default_factory=dict)
    diagnostics: Mapping[str, Figure] = field(default_factory=dict)
    remarks: Sequence[str] = ()


class Inference(ABC):
    """A way to fit a model that is called as ``model(x, y)``, and as ``model(x)`` for prediction.

    :cvar keeps_time: whether it trains for ``settings.minutes`` where these are given.
    :cvar has_draws: whether its fit depends on ``settings.mcmc_samples``. A comparison that goes on with more of them runs it again, and what it
        has saved in its folder is what it goes on from.
    """

    keeps_time: ClassVar[bool] = False
    has_draws: ClassVar[bool] = True

    @abstractmethod
    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """Fit ``model`` to all of ``x`` ``(N, D)`` and ``y``, in place."""

    def restore(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, saved: Saved) -> Predictor:
        """The predictor that was saved.

        :param model: built as the fitted one was, on the same inputs.
        :param x: the training inputs of the fit ``(N, D)``, and ``y`` its targets.
        :param settings: those of the fit.
        """
        raise ValueError(f"{type(self).__name__} does not say how a fit is restored: override its restore method")

    def for_pilot(self) -> Inference:
        """Return the inference that a short trial takes in its place: itself, or a form without what multiplies the cost of a fit."""
        return self

    def cost(self, settings: Settings, rows: int) -> float:
        """Return how many steps a fit to so many rows makes for each step that the settings ask for."""
        return 1.0

    def most_rows(self, settings: Settings) -> int | None:
        """The largest training set that it is meant for; nothing if there is no such limit."""
        return None

    def given_rows(self, settings: Settings, rows: int) -> Tensor:
        """Return the numbers of the training rows that it is given: all, or a random subset of as many as it is meant for."""
        most = self.most_rows(settings)
        if most is None or rows <= most:
            return torch.arange(rows)
        return torch.randperm(rows, generator=torch.Generator().manual_seed(settings.seed))[:most]

    def settled(self, settings: Settings) -> Settings:
        """Return the settings with values of its own where they leave the choice to it."""
        return settings

    def check(self, settings: Settings) -> None:
        """Raise ``ValueError`` with one sentence for settings that it cannot run with."""

    def check_model(self, anatomy: Anatomy) -> None:
        """Raise ``ValueError`` with one sentence for a model that it cannot fit."""
        if anatomy.discrete:
            raise ValueError(f"the latent site {anatomy.discrete[0]!r} is discrete: sum it out in the model")

    def remarks(self, settings: Settings) -> list[str]:
        """Sentences to be said before it starts."""
        return []

    def remarks_on(self, anatomy: Anatomy) -> list[str]:
        """Sentences on what it does with a model of this anatomy."""
        return []

    def approximates_posterior(self, settings: Settings) -> bool:
        """Whether what it makes is meant to be close to the posterior; predictive losses do not aim at it."""
        return True

    def saving_to(self, folder: Path) -> Inference:
        """Return the same inference, with its state kept in a folder where it can go on from there."""
        return self
