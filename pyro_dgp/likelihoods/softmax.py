"""Classes by the softmax of several functions."""

from __future__ import annotations

from dataclasses import dataclass

from pyro import distributions as dist
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.internal.gumbel_maximum import class_log_probs, expected_log_sum_exp
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.classes import ClassConditional, require_functions, require_whole_classes
from pyro_dgp.likelihoods.conditional import RowObservation
from pyro_dgp.likelihoods.moments import Moments


@dataclass(frozen=True)
class SoftmaxConditional(ClassConditional):
    """``p(y = c | f) = exp(f_c) / sum_j exp(f_j)``.

    With independent Gumbel noise ``g_j`` the class is ``argmax_j (f_j + g_j)``. Predictions and the expected log density are therefore integrals over
    one variable, the largest ``f_j + g_j``, for any number of classes.
    """

    classes: int
    integration = "quadrature in one dimension"

    def count(self) -> int:
        """Number of classes C."""
        return self.classes

    def given(self, f: Tensor) -> RowObservation:
        """Categorical distributions over the classes."""
        return RowObservation(dist.Categorical(logits=f, validate_args=False), 1)

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``E f_y - E log sum_j exp(f_j)``."""
        own = f.mean.gather(-1, y.long().expand(f.mean.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        return own - expected_log_sum_exp(f.mean, f.variance.sqrt())

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """Log probability for a power of one.

        :raises ValueError: for any other power.
        """
        if power != 1.0:
            raise ValueError(
                f"the softmax to the power {power:.6g}, which this loss takes, has no integral in one dimension: take RobustMax in its place, or another loss "
                "such as ELBO; ApproximateEP with alpha = 1 takes it as it is"
            )
        return self.predictive_log_prob(y, f)

    def log_expected_gamma_score(self, y: Tensor, f: Moments, gamma: float) -> Tensor:
        """Raise: the score is a power of the softmax."""
        return self.log_expected_power(y, f, gamma)

    def components(self, f: Moments) -> Distribution:
        """Categorical distributions with the functions integrated out."""
        return dist.Categorical(logits=class_log_probs(f.mean, f.variance.sqrt()), validate_args=False)


class Softmax(Likelihood):
    """Classes 0, ..., C - 1 of C functions: ``p(y = c | f) = exp(f_c) / sum_j exp(f_j)``.

    Put it over a Gaussian process of ``num_outputs=C``; y is ``(N,)``. For many rows and classes at a step, ``RobustMax`` is the faster one.

    >>> import torch
    >>> from pyro_dgp import Softmax
    >>> Softmax(3).given(torch.tensor([[0.0, 2.0, 1.0]])).base_dist.probs.round(decimals=2)
    tensor([[0.0900, 0.6700, 0.2400]])

    :param classes: C, 2 or more.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        require_whole_classes("softmax", classes, "for two, Bernoulli('logit') takes one function")
        self.classes = classes

    def require_outputs(self, outputs: int) -> None:
        """Raise unless there is a function for each class."""
        require_functions(self, self.classes, outputs)

    def target_outputs(self, outputs: int) -> int:
        """One: the class."""
        return 1

    def conditional(self) -> SoftmaxConditional:
        """The likelihood, which has no parameters."""
        return SoftmaxConditional(self.classes)
