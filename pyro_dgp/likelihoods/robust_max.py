"""Classes by the largest of several functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from pyro import distributions as dist
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.internal.win_probability import win_probabilities, win_probability
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.classes import ClassConditional, require_functions, require_whole_classes
from pyro_dgp.likelihoods.conditional import RowObservation
from pyro_dgp.likelihoods.moments import Moments


@dataclass(frozen=True)
class RobustMaxConditional(ClassConditional):
    """``p(y = c | f) = 1 - epsilon`` for the class of the largest function, and ``epsilon / (C - 1)`` for others.

    All integrals follow from the probability that the function of a class is the largest, an integral in one dimension.
    """

    classes: int
    epsilon: float
    integration = "adaptive quadrature in one dimension"
    is_flat = True

    def count(self) -> int:
        """Number of classes C."""
        return self.classes

    def _values(self, power: float = 1.0) -> tuple[float, float]:
        """Probability of the class of the largest function, and of each other class, to a power."""
        return (1 - self.epsilon) ** power, (self.epsilon / (self.classes - 1)) ** power

    def given(self, f: Tensor) -> RowObservation:
        """Categorical distributions over the classes."""
        largest, other = self._values()
        won = torch.nn.functional.one_hot(f.argmax(-1), self.classes)
        probs = torch.where(won.bool(), torch.full_like(f, largest), torch.full_like(f, other))
        return RowObservation(dist.Categorical(probs=probs, validate_args=False), 1)

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``P log(1 - epsilon) + (1 - P) log(epsilon / (C - 1))``, P the probability that the function of y is the largest."""
        won = win_probability(f.mean, f.variance.sqrt(), y.long())
        log_largest, log_other = (math.log(value) for value in self._values())
        return won * log_largest + (1 - won) * log_other

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """``log [P (1 - epsilon)^power + (1 - P) (epsilon / (C - 1))^power]``."""
        won = win_probability(f.mean, f.variance.sqrt(), y.long())
        largest, other = self._values(power)
        return torch.log(won * largest + (1 - won) * other)

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log [P (1 - epsilon) + (1 - P) epsilon / (C - 1)]``."""
        return self.log_expected_power(y, f, 1.0)

    def log_power_integral(self, f: Moments, power: float) -> Tensor:
        """``log [(1 - epsilon)^power + (C - 1) (epsilon / (C - 1))^power]``."""
        largest, other = self._values(power)
        return f.mean.new_tensor([math.log(largest + (self.classes - 1) * other)])

    def components(self, f: Moments) -> Distribution:
        """Categorical distributions with the functions integrated out."""
        won = win_probabilities(f.mean, f.variance.sqrt())
        largest, other = self._values()
        return dist.Categorical(probs=won * largest + (1 - won) * other, validate_args=False)


class RobustMax(Likelihood):
    """Classes 0, ..., C - 1 of C functions: ``y = argmax_c f_c`` but for a share epsilon of the rows, which are any other class.

    Put it over a Gaussian process of ``num_outputs=C``; y is ``(N,)`` (Hernandez-Lobato, Hernandez-Lobato and Dupont 2011; [DSVI] 3.13). A row on the
    wrong side costs no more than ``log((C - 1) / epsilon)`` nats. Samplers that need gradients in f, such as NUTS, cannot use it: the density is
    flat between its steps. Take ``Softmax`` there.

    >>> import torch
    >>> from pyro_dgp import RobustMax
    >>> RobustMax(3).given(torch.tensor([[0.0, 2.0, 1.0]])).base_dist.probs
    tensor([[5.0000e-04, 9.9900e-01, 5.0000e-04]])

    :param classes: C, 2 or more.
    :param epsilon: share of rows of another class.
    """

    def __init__(self, classes: int, epsilon: float = 1e-3) -> None:
        super().__init__()
        require_whole_classes("robust-max", classes, "for two, Bernoulli takes one function")
        if not 0 < epsilon < 1:
            raise ValueError(f"epsilon lies between 0 and 1, got {epsilon}: 1e-3 is usual")
        self.classes, self.epsilon = classes, epsilon

    def require_outputs(self, outputs: int) -> None:
        """Raise unless there is a function for each class."""
        require_functions(self, self.classes, outputs)

    def target_outputs(self, outputs: int) -> int:
        """One: the class."""
        return 1

    def conditional(self) -> RobustMaxConditional:
        """The likelihood, which has no parameters."""
        return RobustMaxConditional(self.classes, self.epsilon)
