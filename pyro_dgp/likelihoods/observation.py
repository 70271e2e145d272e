"""Distributions of y with the function values integrated out: under the prior, in a model, and under q(f), in a guide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Size, Tensor
from torch.distributions import Distribution

from pyro_dgp.gp import FunctionPrior, too_many_values_message
from pyro_dgp.internal.plates import refuse_data_plate
from pyro_dgp.likelihoods.conditional import Conditional
from pyro_dgp.likelihoods.moments import Marginal, Moments
from pyro_dgp.likelihoods.targets import check_target


class Observation(TorchDistribution):
    """The prior of y, ``int p(y | f) p(f) df`` with p(f) a Gaussian process: a likelihood wrapped around GPs.

    :ivar conditional: the likelihood with its parameter values.
    :ivar priors: the GPs it wraps, by name; a guide keys its processes by (site, name).
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = False

    def __init__(self, conditional: Conditional, priors: Mapping[str, FunctionPrior], outputs: int) -> None:
        self.conditional, self.priors, self.outputs = conditional, dict(priors), outputs
        first = next(iter(self.priors.values()))
        event = first.event_shape[:1] if outputs == 1 else Size((first.event_shape[0], outputs))
        super().__init__(first.batch_shape, event, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The support of y given f."""
        f = {name: prior.mean for name, prior in self.priors.items()}
        return self.conditional.given(join(f)).support

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Observation:
        """Return this observation over more batches."""
        shape = Size(batch_shape)
        refuse_data_plate(self.event_shape[0], f"an observation of {self.event_shape[0]} rows")
        return Observation(self.conditional, {k: p.expand(shape) for k, p in self.priors.items()}, self.outputs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw function values from the prior, then y given them."""
        with torch.no_grad():
            f = {name: prior.rsample(Size(sample_shape)) for name, prior in self.priors.items()}
            draw: Tensor = self.conditional.given(join(f)).sample()
        return draw

    def log_prob(self, value: Any) -> Tensor:
        """``log p(y)`` under the exact prior, nats in total; shape of the batch. Raises without a closed form."""
        value = self.target(value, next(iter(self.priors.values())).x)
        if len(self.priors) > 1:
            raise ValueError(
                "log p(y) has no closed form for a likelihood of several GPs: use pyro_dgp.whitened(model)"
            )
        prior = next(iter(self.priors.values()))
        total = self.conditional.joint_log_prob(value, prior)
        wanted = torch.broadcast_shapes(self.batch_shape, value.shape[: value.dim() - self.event_dim])
        if total.shape != wanted:
            raise ValueError(too_many_values_message(prior.name, tuple(total.shape), tuple(wanted)))
        return total

    def target(self, y: Any, like: Tensor) -> Tensor:
        """Return targets in the dtype of the function values; raise for those of another shape, dtype or device."""
        return check_target(y, self.event_shape, like, integers=self.conditional.takes_integers)

    def collapse(self, marginals: Mapping[str, Marginal]) -> CollapsedObservation:
        """The distribution of y under marginals q(f) in the place of the priors."""
        return CollapsedObservation(self.conditional, marginals, self.event_shape)


def join(values: Mapping[str, Tensor]) -> Tensor:
    """Join the values of the GPs of one observation side by side: ``(..., N, sum of outputs)``.

    One GP may lie above a hidden layer, whose components its values lead with, and another one above the inputs: the values of the latter
    are those of every component.
    """
    parts = list(values.values())
    if len(parts) == 1:
        return parts[0]
    batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], -1)


class CollapsedObservation(TorchDistribution):
    """The guide's y, ``int p(y | f) q(f) df``, with f integrated out row by row. This library's losses read it.

    ``log_prob`` raises: stock losses would add it to a KL that their trace has dropped.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = False

    def __init__(self, conditional: Conditional, marginals: Mapping[str, Marginal], event: Size) -> None:
        self.conditional, self.marginals = conditional, dict(marginals)
        self.moments = Moments(
            join({k: q.mean for k, q in self.marginals.items()}),
            join({k: q.variance for k, q in self.marginals.items()}),
        )
        super().__init__(self.moments.mean.shape[:-2], event, validate_args=False)

    support = constraints.real

    @property
    def takes_missing(self) -> bool:
        """Whether NaN among the targets is an output that was not observed."""
        return self.conditional.takes_missing

    def first_components(self, count: int) -> CollapsedObservation:
        """The first ``count`` of the components that lead the moments."""
        if self.batch_shape[0] == count:
            return self
        marginals = {name: Moments(q.mean[:count], q.variance[:count]) for name, q in self.marginals.items()}
        return CollapsedObservation(self.conditional, marginals, self.event_shape)

    def expected_log_prob(self, y: Any) -> Tensor:
        """``E_q log p(y_n | f_n)``, ``(..., N)``."""
        return self.conditional.expected_log_prob(self._target(y), self.moments)

    def predictive_log_prob(self, y: Any) -> Tensor:
        """``log E_q p(y_n | f_n)``, ``(..., N)``."""
        return self.conditional.predictive_log_prob(self._target(y), self.moments)

    def log_expected_power(self, y: Any, power: float) -> Tensor:
        """``log E_q p(y_n | f_n)^power``, ``(..., N)``."""
        return self.conditional.log_expected_power(self._target(y), self.moments, power)

    def log_expected_gamma_score(self, y: Any, gamma: float) -> Tensor:
        """See :class:`Conditional`, ``(..., N)``."""
        return self.conditional.log_expected_gamma_score(self._target(y), self.moments, gamma)

    def _target(self, y: Any) -> Tensor:
        """Return targets that the likelihood can have produced, in the dtype of the function values."""
        target = check_target(y, self.event_shape, self.moments.mean, integers=self.conditional.takes_integers)
        self.conditional.check(target)
        return target

    def components(self) -> Distribution:
        """The predictive distribution of each row, see :class:`Conditional`."""
        return self._components

    @cached_property
    def _components(self) -> Distribution:
        # A pass draws y from it, and a prediction asks for it again.
        return self.conditional.components(self.moments)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw y, independently over rows."""
        draw: Tensor = self.components().sample(Size(sample_shape))
        return draw

    def log_prob(self, value: Tensor) -> Tensor:
        """Raise: only the losses of this library can score this site."""
        raise ValueError(
            "a stock loss asked for the log_prob of an observation whose Gaussian process the guide has integrated out; "
            "its KL would be lost: use pyro_dgp.ELBO or another loss of this library, or write the two sites "
            "f = pyro.sample('f', gp(x)) and pyro.sample('y', likelihood.given(f), obs=y)"
        )
