"""Readings of q(v) in one pass: the posterior itself, or the cavity that approximate expectation propagation takes from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pyro_dgp.processes.whitened_gaussian import Gaussian


class Reading(ABC):
    """Choice of what a pass takes from q(v): a Gaussian whose moments are carried, and the term that a loss subtracts.

    :cvar reads_observed: whether functions that are observed are read too; otherwise the pass leaves them as the model has them.
    """

    reads_observed: ClassVar[bool] = True

    @abstractmethod
    def of(self, q: Gaussian) -> tuple[Gaussian, Tensor]:
        """Return the Gaussian, and the regulariser in nats: one number for each group."""


@dataclass(frozen=True)
class Posterior(Reading):
    """q(v) itself, with its KL from the prior."""

    def of(self, q: Gaussian) -> tuple[Gaussian, Tensor]:
        """See :class:`Reading`."""
        return q, q.regularizer()


@dataclass(frozen=True)
class HiddenPosterior(Posterior):
    """q(v) of hidden functions alone, for a loss that knows the best q(v) of those that are observed."""

    reads_observed: ClassVar[bool] = False


@dataclass(frozen=True)
class Cavity(Reading):
    """The cavity: q(v) without a share of what the data have added to the prior, ``q^(1 - share) p^share``.

    :ivar share: beta = alpha / N for the power alpha and N tied factors, above 0 and at most 1.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"the share of a cavity is above 0 and at most 1, got {self.share}")

    def of(self, q: Gaussian) -> tuple[Gaussian, Tensor]:
        """See :class:`Reading`."""
        return q.cavity(self.share)


POSTERIOR = Posterior()
