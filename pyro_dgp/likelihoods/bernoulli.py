"""Binary observations."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from pyro import distributions as dist
from torch import Tensor

from pyro_dgp.internal.normal_cdf import log_ndtr
from pyro_dgp.internal.recording import require_all
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation, one_output
from pyro_dgp.likelihoods.moments import Moments


class Binary(dist.Bernoulli):  # type: ignore[misc]
    """A Bernoulli with a cdf, as mixtures of it need."""

    def expand(self, batch_shape: Any, _instance: Any = None) -> Binary:
        """Return this distribution over more batches."""
        return Binary(logits=self.logits.expand(torch.Size(batch_shape)), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """``log p(y)`` of 0 and 1, in any dtype."""
        log_prob: Tensor = super().log_prob(value.to(self.logits.dtype))
        return log_prob

    def cdf(self, value: Tensor) -> Tensor:
        """``p(y <= value)``."""
        middle = torch.where(value < 1, 1 - self.probs, torch.ones_like(self.probs))
        return torch.where(value < 0, torch.zeros_like(self.probs), middle)


class _BernoulliConditional(Conditional):
    takes_integers = True
    width = 1.0  # both links rise over one unit of f, or over more

    @abstractmethod
    def logits(self, f: Tensor) -> Tensor:
        """Log odds of y = 1 given f."""

    def check(self, y: Tensor) -> None:
        """Raise for targets other than 0 and 1."""
        require_all(
            (y == 0) | (y == 1), "y of a Bernoulli likelihood holds values other than 0 and 1: encode the classes so"
        )

    def given(self, f: Tensor) -> RowObservation:
        """Bernoulli distributions with the link's log odds."""
        return RowObservation(Binary(logits=self.logits(one_output(f, "Bernoulli")), validate_args=False), 1)

    @abstractmethod
    def components(self, f: Moments) -> Binary:
        """Bernoulli distributions whose log odds have the functions integrated out."""

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """Log density of the Bernoulli distributions with the functions integrated out."""
        log_prob: Tensor = self.components(f).log_prob(y)
        return log_prob


class LogitConditional(_BernoulliConditional):
    """``p(y = 1 | f) = 1 / (1 + exp(-f))``: both integrals by quadrature."""

    def logits(self, f: Tensor) -> Tensor:
        """The function values are the log odds."""
        return f

    def components(self, f: Moments) -> Binary:
        """Bernoulli distributions whose success probability is integrated by quadrature."""
        ones = torch.ones_like(one_output(f.mean))
        log_success, log_failure = (self.log_expected_power(y, f, 1.0) for y in (ones, 1 - ones))
        return Binary(logits=log_success - log_failure, validate_args=False)


class ProbitConditional(_BernoulliConditional):
    """``p(y = 1 | f) = Phi(f)``: the predictive probability is ``Phi(mean / sqrt(1 + variance))``."""

    integration = "closed form for predictions, Gauss-Hermite (20 nodes) for the expected log density"

    def logits(self, f: Tensor) -> Tensor:
        """``log Phi(f) - log Phi(-f)``, accurate in the tails."""
        return log_ndtr(f) - log_ndtr(-f)

    def row_log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """``log Phi((2 y - 1) f)``."""
        return log_ndtr((2 * y - 1) * one_output(f))

    def components(self, f: Moments) -> Binary:
        """Bernoulli distributions with success probability ``Phi(mean / sqrt(1 + variance))``."""
        z = one_output(f.mean) / (1 + one_output(f.variance)).sqrt()
        return Binary(logits=self.logits(z), validate_args=False)


class Bernoulli(Likelihood):
    """Binary observations ``y`` in {0, 1} of one function, through the ``probit`` or ``logit`` link.

    >>> from pyro_dgp import Bernoulli
    >>> Bernoulli().given(torch.tensor([[-9.0], [0.0], [9.0]])).mean.round(decimals=3)
    tensor([0.0000, 0.5000, 1.0000])

    :param link: ``probit``, ``p(y = 1 | f) = Phi(f)``, or ``logit``, ``1 / (1 + exp(-f))``.
    """

    def __init__(self, link: str = "probit") -> None:
        super().__init__()
        self.link = link

    def admit(self, name: str, value: Any) -> Any:
        """Take a known link as ``link``."""
        if name == "link" and value not in ("probit", "logit"):
            raise ValueError(f"link is 'probit' or 'logit', not {value!r}: choose one of these")
        return value

    def conditional(self) -> Conditional:
        """The link, which has no parameters."""
        return ProbitConditional() if self.link == "probit" else LogitConditional()
