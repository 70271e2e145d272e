"""What likelihoods of classes have in common."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Integral
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.internal.recording import require_all
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.conditional import Conditional
from pyro_dgp.likelihoods.moments import Moments


class ClassConditional(Conditional):
    """Base of likelihoods whose targets are classes 0, ..., C - 1."""

    takes_integers = True

    @abstractmethod
    def count(self) -> int:
        """Number of classes C."""

    def check(self, y: Tensor) -> None:
        """Raise for targets other than 0, ..., C - 1."""
        require_all(
            (y >= 0) & (y < self.count()) & (y == y.round()),
            f"y of {type(self).__name__.removesuffix('Conditional')} holds values other than 0, ..., {self.count() - 1}: encode the classes so",
        )

    @abstractmethod
    def components(self, f: Moments) -> Distribution:
        """Categorical distributions with the functions integrated out."""

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """Log probability of the classes with the functions integrated out."""
        log_prob: Tensor = self.components(f).log_prob(y)
        return log_prob


def require_whole_classes(likelihood: str, classes: Any, remedy: str) -> None:
    """Raise unless the number of classes of a likelihood is a whole one, 2 or more.

    :param remedy: what to do, for the message.
    """
    if not isinstance(classes, Integral) or classes < 2:
        raise ValueError(f"{likelihood} has 2 or more classes, got {classes!r}: {remedy}")


def require_functions(likelihood: Likelihood, classes: int, outputs: int) -> None:
    """Raise unless a Gaussian process has a function for each class."""
    if outputs != classes:
        name = type(likelihood).__name__
        raise ValueError(
            f"{name}({classes}) stands over a Gaussian process of {outputs} outputs: give it one for each class, num_outputs={classes}"
        )
