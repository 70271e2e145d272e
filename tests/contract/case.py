"""A model of the contract: what a user would write, and its exact answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_dgp import Gaussian
from tests.contract.known import NEW, NOISE, Answers, X, Y, answers

#: Draws of the prior by site, and the log likelihood of each.
Weighted = tuple[Mapping[str, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One model, its data, and where its answers are known.

    :ivar name: name in the table.
    :ivar what: what a user would call it.
    :ivar model: makes the model, with hyperparameters at fixed values unless it samples them.
    :ivar reference: returns draws of the prior at the test rows by site, and their log likelihoods, without any code of the library.
        The site ``"f"`` is the function under the likelihood, of which functions are drawn.
    :ivar args, kwargs: arguments of the model in training.
    :ivar new, new_kwargs: arguments in predictions.
    :ivar site: the site to predict.
    :ivar function: the GP whose functions are drawn, where the likelihood takes several.
    :ivar has_classes: whether the predicted site has probabilities in the place of moments.
    :ivar has_outputs: whether the predicted site has several outputs, ``(N, D_out)``.
    :ivar points: number of inducing points.
    :ivar within: largest distance from the exact answer in nats, by inference, where it is not that of the inference.
    """

    name: str
    what: str
    model: Callable[[], Any]
    reference: Callable[[], Weighted | Answers]
    args: tuple[Any, ...] = (X, Y)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    new: tuple[Any, ...] = (NEW,)
    new_kwargs: Mapping[str, Any] = field(default_factory=dict)
    site: str = "y"
    function: str | None = None
    has_classes: bool = False
    has_outputs: bool = False
    points: int = 5
    within: Mapping[str, float] = field(default_factory=dict)

    @functools.cached_property
    def answers(self) -> Answers:
        """The exact answers."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            known = self.reference()
            return known if isinstance(known, Answers) else answers(*known)


def fixed(model: Any) -> Any:
    """Hold the hyperparameters of a model at their values."""
    return model.requires_grad_(False)


def gaussian() -> Gaussian:
    """Gaussian noise of known variance."""
    return Gaussian(variance=NOISE)


class Model(PyroModule):
    """Base of the models: attributes by name, as a user would set them in ``__init__``."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.requires_grad_(False)
