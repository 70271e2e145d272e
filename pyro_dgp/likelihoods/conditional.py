"""p(y | f) with its parameter values, and its integrals over normal function values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pyro import distributions as dist
from torch import Size, Tensor
from torch.distributions import Distribution

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.plates import refuse_data_plate
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.targets import check_target
from pyro_dgp.likelihoods.units import NO_UNITS, Units


class RowObservation(dist.Independent):  # type: ignore[misc]
    """p(y | f) over the rows of a data set. The rows are an event dimension; ``base_dist`` has the log density of each.

    The event is scored as a whole. A data plate around it would count it once for each of its rows, so a plate raises.
    A likelihood of one's own returns one from ``given``: a distribution of batch shape ``(..., N)`` and 1, or of
    ``(..., N, D_out)`` and 2.

    >>> import torch
    >>> from pyro import distributions as dist
    >>> from pyro_dgp import RowObservation
    >>> RowObservation(dist.Poisson(torch.ones(5)), 1).event_shape
    torch.Size([5])
    """

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> RowObservation:
        """Return this observation over more batches, such as particles."""
        shape = Size(batch_shape)
        refuse_data_plate(self.event_shape[0], f"an observation of {self.event_shape[0]} rows")
        base = self.base_dist.expand(shape + self.event_shape)
        return RowObservation(base, self.reinterpreted_batch_ndims)

    def log_prob(self, value: Any) -> Tensor:
        """log p(y | f), nats in total over rows and outputs; shape of the batch."""
        check_target(value, self.event_shape, value)
        log_prob: Tensor = super().log_prob(value)
        return log_prob


class Conditional(ABC):
    """A likelihood with its parameter values: p(y | f), and its integrals over normal function values.

    ``y`` is ``(..., N)`` for one output and ``(..., N, D_out)`` for several; moments of f are ``(..., N, D_out)``.

    >>> from pyro_dgp import Bernoulli, Conditional, Gaussian
    >>> [isinstance(each.conditional(), Conditional) for each in (Bernoulli("logit"), Gaussian())]
    [True, True]
    >>> Bernoulli("logit").conditional().integration
    'Gauss-Hermite, 20 nodes'
    """

    #: How the last layer is integrated: for the expected and for the predictive log density.
    integration: str

    #: What targets are standardised by before p(y | f) sees them; functions, and the noise variance, are in the units of the result.
    units: Units = NO_UNITS

    @abstractmethod
    def given(self, f: Tensor) -> RowObservation:
        """p(y | f) for function values ``(..., N, D_out)``."""

    @abstractmethod
    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``E_N(f) log p(y_n | f_n)``, nats for each row: ``(..., N)``."""

    @abstractmethod
    def components(self, f: Moments) -> Distribution:
        """``int p(y_n | f_n) N(f_n) df_n``: elementwise, of the batch shape of ``y``, or over the correlated outputs of a row,
        of event shape ``(D_out,)``."""

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``log int p(y_n | f_n) N(f_n) df_n``, nats for each row: ``(..., N)``."""
        components = self.components(f)
        log_prob: Tensor = components.log_prob(y)
        return log_prob if f.mean.shape[-1] == 1 or components.event_shape else log_prob.sum(-1)

    @abstractmethod
    def log_expected_gamma_score(self, y: Tensor, f: Moments, gamma: float) -> Tensor:
        """``log E_N(f) [p(y_n | f_n)^c / I(f_n)^(c / gamma)]``, ``c = gamma - 1``, ``I = int p(y | f_n)^gamma dy``: ``(..., N)``."""

    def joint_log_prob(self, y: Tensor, prior: FunctionPrior) -> Tensor:
        """``log int p(y | f) p(f) df`` under the GP prior, nats in total. Raises where there is no closed form."""
        raise ValueError(
            f"{type(self).__name__} has no closed form for log p(y) under a Gaussian process: run MCMC on "
            "pyro_dgp.whitened(model), which makes the function values a site, or give a guide"
        )

    def check(self, y: Tensor) -> None:
        """Raise for targets that the likelihood cannot have produced."""

    def noise_variance(self) -> Tensor | None:
        """``(D_out,)`` if p(y | f) is normal around f with this variance, in the units of f, else nothing."""
        return None


def one_output(f: Tensor, site: str = "the likelihood") -> Tensor:
    """Values ``(..., N)`` of a single output ``(..., N, 1)``."""
    if f.shape[-1] != 1:
        raise ValueError(f"{site} takes one function, got {f.shape[-1]}: give the top layer num_outputs=1")
    return f.squeeze(-1)
