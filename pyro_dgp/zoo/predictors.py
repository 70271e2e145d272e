"""Predictors of fitted methods: functions from inputs to predictions, which can be saved as arrays and plain values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyro_dgp.guides.variational import Variational
from pyro_dgp.mcmc import Chains, PosteriorDraws, WhitenedModel
from pyro_dgp.mcmc.conditioning import KeptConditions
from pyro_dgp.mcmc.sghmc import InducingDraws
from pyro_dgp.prediction.predict import predict
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.target_kinds import means_of


@dataclass(frozen=True)
class Saved:
    """Everything that a predictor depends on besides the model's class, the inference, its settings and its training rows.

    :ivar tensors: arrays by name.
    :ivar facts: plain values by name: numbers, text, lists, tuples, sets and dictionaries of these.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict)

    def state(self, part: str) -> dict[str, Any]:
        """The state dict of one module, ``model`` or ``guide``."""
        values = {**self.tensors, **self.facts}
        return {name.removeprefix(part + "."): value for name, value in values.items() if name.startswith(part + ".")}

    def group(self, part: str) -> dict[str, Tensor]:
        """The arrays of one group, such as ``draws``, by name."""
        start = part + "."
        return {name.removeprefix(start): value for name, value in self.tensors.items() if name.startswith(start)}


def _states(**modules: nn.Module) -> Saved:
    """The state dicts of several modules, arrays apart from plain values."""
    values = {
        f"{part}.{name}": value for part, module in modules.items() for name, value in module.state_dict().items()
    }
    tensors = {name: value.detach().clone() for name, value in values.items() if isinstance(value, Tensor)}
    return Saved(tensors, {name: value for name, value in values.items() if name not in tensors})


class Predictor(ABC):
    """A fitted model that predicts: ``predictor(x)`` is the :class:`Prediction` at inputs ``(N, D)``.

    :ivar model: the fitted model.
    """

    model: nn.Module

    @abstractmethod
    def __call__(self, x: Tensor) -> Prediction:
        """The predictive distribution of y at inputs ``(N, D)``."""

    @abstractmethod
    def fit(self, sample_stats: Mapping[str, np.ndarray]) -> Any:
        """Return the fit itself, as :func:`~pyro_dgp.diagnose` takes it.

        :param sample_stats: figures of each draw by name ``(chains, draws)``, of samplers.
        """

    @abstractmethod
    def saved(self) -> Saved:
        """Return the state of which the inference's ``restore`` makes the same predictor."""


#: Name of the fact that the guide of the fallback of an inference was kept.
IS_FALLBACK = "is_fallback"


@dataclass(frozen=True)
class GuidePredictor(Predictor):
    """Prediction from a trained guide.

    :ivar site: the observation that is predicted.
    :ivar is_fallback: whether the guide is that of the inference's fallback.
    """

    guide: Variational
    site: str | None = None
    _: KW_ONLY
    is_fallback: bool = False

    @property
    def model(self) -> nn.Module:  # type: ignore[override]
        """The model of the guide."""
        model: nn.Module = self.guide.model
        return model

    def __call__(self, x: Tensor) -> Prediction:
        """See :class:`Predictor`."""
        return predict(self.guide, x, site=self.site)

    def fit(self, sample_stats: Mapping[str, np.ndarray]) -> Variational:
        """See :class:`Predictor`."""
        return self.guide

    def saved(self) -> Saved:
        """State dicts of model and guide."""
        states = _states(model=self.model, guide=self.guide)
        return Saved(states.tensors, states.facts | ({IS_FALLBACK: True} if self.is_fallback else {}))


def as_it_is(model: nn.Module) -> nn.Module:
    """Return the model without an approximation."""
    return model


@dataclass(frozen=True)
class DrawsPredictor(Predictor):
    """Prediction from posterior draws at the training rows; none for a model without latent sites, exact regression.

    :ivar x: training inputs ``(N, D)``.
    :ivar y: training targets.
    :ivar draws: by site ``(chains, draws, ...)``.
    :ivar inducing: inputs of inducing variables by Gaussian process, for sparse MCMC.
    :ivar approximation: from the model to the one that was sampled or trained, such as a Vecchia approximation.
    :ivar num_draws: draws that a prediction is made from, at most.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    inducing: Mapping[str, Tensor] = field(default_factory=dict)
    num_draws: int = 100
    site: str | None = None
    _: KW_ONLY
    approximation: Callable[[nn.Module], Callable[..., Any]] = as_it_is

    @cached_property
    def posterior(self) -> PosteriorDraws:
        """The draws of all chains, which keep what they are conditioned on from one prediction to the next."""
        model = self.approximation(self.model)
        model = WhitenedModel(model, self.inducing) if self.inducing else model
        flat = {name: values.flatten(0, 1) for name, values in self.draws.items()}
        return PosteriorDraws(model, flat, (self.x, self.y), conditions=KeptConditions())

    def __call__(self, x: Tensor) -> Prediction:
        """See :class:`Predictor`."""
        return predict(self.posterior, x, self.num_draws, site=self.site)

    def fit(self, sample_stats: Mapping[str, np.ndarray]) -> Chains:
        """See :class:`Predictor`."""
        args = (self.x, self.y)
        return Chains(dict(self.draws), stats=dict(sample_stats), model=self.posterior.model, args=args)

    def saved(self) -> Saved:
        """The model's state dict, draws and inducing inputs."""
        states = _states(model=self.model)
        groups = {"draws": self.draws, "inducing": self.inducing}
        named = {f"{part}.{name}": value for part, values in groups.items() for name, value in values.items()}
        return Saved(states.tensors | named, states.facts)


@dataclass(frozen=True)
class InducingDrawsPredictor(Predictor):
    """Prediction from draws of a guide's inducing variables.

    :ivar draws: by the name of the guide's parameter, ``(draws, D_out, M)``.
    """

    guide: Variational
    draws: Mapping[str, Tensor]
    site: str | None = None

    @property
    def model(self) -> nn.Module:  # type: ignore[override]
        """The model of the guide."""
        model: nn.Module = self.guide.model
        return model

    def __call__(self, x: Tensor) -> Prediction:
        """See :class:`Predictor`."""
        count = len(next(iter(self.draws.values())))
        return predict(InducingDraws(self.guide, self.draws), x, num_samples=count, site=self.site)

    def fit(self, sample_stats: Mapping[str, np.ndarray]) -> InducingDraws:
        """See :class:`Predictor`."""
        return InducingDraws(self.guide, self.draws)

    def saved(self) -> Saved:
        """State dicts of model and guide, and draws."""
        states = _states(model=self.model, guide=self.guide)
        return Saved(states.tensors | {f"draws.{name}": value for name, value in self.draws.items()}, states.facts)


def predictive_means(predictor: Predictor, x: Tensor, chains: int) -> Tensor:
    """E[y_n | draw] at the inputs for each draw that predictions are made from, ``(chains, draws, N)``.

    Classes have no mean: there it is p(y_n = c | draw) of each class, ``(chains, draws, N, C)``.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        components: Any = predictor(x).mixture().components
    return means_of(components).unflatten(0, (chains, -1))
