"""Models that are trained or sampled in the place of exact ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import nn

from pyro_dgp.approximations import VecchiaModel, vecchia
from pyro_dgp.zoo.settings import Settings


@runtime_checkable
class Approximation(Protocol):
    """A function from a model and the settings to the model that takes its place."""

    def __call__(self, model: nn.Module, settings: Settings) -> Callable[..., Any]:
        """Return the model that is trained or sampled."""


def exactly(model: nn.Module, settings: Settings) -> nn.Module:
    """Return the model itself."""
    return model


def by_neighbors(model: nn.Module, settings: Settings) -> VecchiaModel:
    """Return a Vecchia approximation, each row conditioned on ``settings.neighbors`` others."""
    return vecchia(model, num_neighbors=settings.neighbors)
