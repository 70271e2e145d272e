"""What model a method fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from pyro_dgp.models.priors import describe
from pyro_dgp.zoo.settings import Settings


@runtime_checkable
class Checking(Protocol):
    """A recipe for models that not all settings suit."""

    def check(self, settings: Settings) -> None:
        """Raise ``ValueError`` with one sentence for settings that it cannot be built with."""


@runtime_checkable
class StartsAtTargets(Protocol):
    """A part of a model that has a place to start at, which the training targets say."""

    def start_at(self, y: Tensor) -> None:
        """Set its parameters to where training begins with targets ``y`` ``(N,)``."""


@dataclass(frozen=True)
class Architecture:
    """A recipe for models, and what there is to know of them before one is built.

    :ivar build: the untrained model, from training inputs ``(N, D)`` and settings.
    :ivar is_deep: whether the model has ``settings.layers`` layers, or one.
    :ivar has_priors: whether its hyperparameters have the priors of :func:`~pyro_dgp.models.priors.with_priors`.
    :ivar has_network: whether a neural network of its own stands in front of it.
    """

    build: Callable[[Tensor, Settings], nn.Module]
    is_deep: bool
    has_priors: bool = False
    has_network: bool = False

    def untrained(self, x: Tensor, y: Tensor, settings: Settings) -> nn.Module:
        """The untrained model of training inputs ``(N, D)`` and targets: what ``build`` makes, and every :class:`StartsAtTargets` in it started."""
        model = self.build(x, settings)
        for part in model.modules():
            if isinstance(part, StartsAtTargets):
                part.start_at(y)
        return model

    def layers(self, settings: Settings) -> int:
        """Number of layers of the model."""
        return settings.layers if self.is_deep else 1

    def check(self, settings: Settings) -> None:
        """Raise ``ValueError`` with one sentence for settings that no model can be built with."""
        if isinstance(self.build, Checking):
            self.build.check(settings)

    def remarks(self) -> list[str]:
        """Sentences to be said before it is fitted."""
        return [f"priors of the sampled hyperparameters: {describe()}"] if self.has_priors else []
