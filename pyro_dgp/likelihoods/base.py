"""Observation models p(y | f), and the two distributions of y that a model and a guide hold."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pyro import distributions as dist
from pyro.distributions import TorchDistribution, constraints
from pyro.nn import PyroModule, pyro_method
from pyro.poutine.runtime import get_plates
from torch import Size, Tensor
from torch.distributions import Distribution

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.moments import Marginal, Moments
from pyro_dgp.quadrature import gauss_hermite


class RowObservation(dist.Independent):  # type: ignore[misc]
    """p(y | f) over the rows of a data set: the rows are an event dimension, and their log densities can be had.

    It is scored whole. Inside a data plate it would be scored once for each row of the plate, so that raises.
    """

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> RowObservation:
        """More batches (particles)."""
        shape = Size(batch_shape)
        refuse_data_plate(self.event_shape[0])
        base = self.base_dist.expand(shape + self.event_shape)
        return RowObservation(base, self.reinterpreted_batch_ndims)

    def log_prob(self, value: Any) -> Tensor:
        """log p(y | f), nats in total over rows and outputs; shape of the batch."""
        check_target(value, self.event_shape, value)
        log_prob: Tensor = super().log_prob(value)
        return log_prob


def refuse_data_plate(rows: int) -> None:
    """Raise inside a plate of as many elements as the data have rows."""
    for frame in get_plates():
        if frame.size == rows > 1 and frame.vectorized and "particles" not in frame.name:
            raise ValueError(
                f"an observation of {rows} rows stands inside the plate {frame.name!r} of {rows}: its rows are an event "
                "dimension and each would be counted once more; move the sample statement out of the data plate"
            )


class Conditional(ABC):
    """A likelihood with its parameter values: p(y | f), and its integrals over normal function values.

    ``y`` is ``(..., N)`` for one output and ``(..., N, D_out)`` for several; moments of f are ``(..., N, D_out)``.
    """

    #: How the last layer is integrated: for the expected and for the predictive log density.
    integration: str

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
        """``(D_out,)`` if p(y | f) is normal with this variance, else nothing."""
        return None


def one_output(f: Tensor, site: str = "the likelihood") -> Tensor:
    """Values ``(..., N)`` of a single output ``(..., N, 1)``."""
    if f.shape[-1] != 1:
        raise ValueError(f"{site} takes one function, got {f.shape[-1]}: give the top layer num_outputs=1")
    return f.squeeze(-1)


def check_target(y: Any, shape: Size, like: Tensor) -> None:
    """Raise with one sentence unless ``y`` ends in the shape of the observation's event, ``(N,)`` or ``(N, D_out)``,
    and has the dtype and device of the function values.
    """
    if not isinstance(y, Tensor):
        raise TypeError(f"y is {type(y).__name__}, not a tensor: use torch.as_tensor(y)")
    if y.dtype != like.dtype or y.device != like.device:
        ours, theirs = (f"{str(t.dtype).removeprefix('torch.')} on {t.device}" for t in (y, like))
        raise TypeError(f"y is {ours} and the inputs are {theirs}: convert one")
    if len(shape) == 1 and y.dim() >= 2 and y.shape[-1] == 1 and y.shape[-2] == shape[0]:
        raise ValueError(f"y has shape {tuple(y.shape)}; for one output it is (N,): pass y.squeeze(-1)")
    if y.shape[-len(shape) :] != shape:
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"y has shape {tuple(y.shape)}, but the inputs and the likelihood make it (..., {wanted})")


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
        """That of y given f."""
        f = {name: prior.mean for name, prior in self.priors.items()}
        return self.conditional.given(join(f)).support

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Observation:
        """More batches."""
        shape = Size(batch_shape)
        refuse_data_plate(self.event_shape[0])
        return Observation(self.conditional, {k: p.expand(shape) for k, p in self.priors.items()}, self.outputs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Function values from the prior, then y given them."""
        with torch.no_grad():
            f = {name: prior.rsample(Size(sample_shape)) for name, prior in self.priors.items()}
            draw: Tensor = self.conditional.given(join(f)).sample()
        return draw

    def log_prob(self, value: Any) -> Tensor:
        """``log p(y)`` under the exact prior, nats in total; shape of the batch. Raises without a closed form."""
        check_target(value, self.event_shape, next(iter(self.priors.values())).x)
        if len(self.priors) > 1:
            raise ValueError(
                "log p(y) has no closed form for a likelihood of several GPs: use pyro_dgp.whitened(model)"
            )
        return self.conditional.joint_log_prob(value, next(iter(self.priors.values())))

    def collapse(self, marginals: Mapping[str, Marginal]) -> CollapsedObservation:
        """y under marginals q(f) in the place of the priors."""
        return CollapsedObservation(self.conditional, marginals, self.event_shape)


def join(values: Mapping[str, Tensor]) -> Tensor:
    """Values of the GPs of one observation side by side: ``(..., N, sum of outputs)``."""
    parts = list(values.values())
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


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

    def of_components(self, chosen: Tensor) -> CollapsedObservation:
        """Some of the components, which lead the moments: a mask ``(S,)``."""
        marginals = {name: Moments(q.mean[chosen], q.variance[chosen]) for name, q in self.marginals.items()}
        return CollapsedObservation(self.conditional, marginals, self.event_shape)

    def expected_log_prob(self, y: Any) -> Tensor:
        """``E_q log p(y_n | f_n)``, ``(..., N)``."""
        check_target(y, self.event_shape, self.moments.mean)
        self.conditional.check(y)
        return self.conditional.expected_log_prob(y, self.moments)

    def predictive_log_prob(self, y: Any) -> Tensor:
        """``log E_q p(y_n | f_n)``, ``(..., N)``."""
        check_target(y, self.event_shape, self.moments.mean)
        self.conditional.check(y)
        return self.conditional.predictive_log_prob(y, self.moments)

    def log_expected_gamma_score(self, y: Any, gamma: float) -> Tensor:
        """See :class:`Conditional`, ``(..., N)``."""
        check_target(y, self.event_shape, self.moments.mean)
        self.conditional.check(y)
        return self.conditional.log_expected_gamma_score(y, self.moments, gamma)

    def components(self) -> Distribution:
        """The predictive distribution of each row, see :class:`Conditional`."""
        return self.conditional.components(self.moments)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws of y, independent over rows."""
        draw: Tensor = self.components().sample(Size(sample_shape))
        return draw

    def log_prob(self, value: Tensor) -> Tensor:
        """Raises: this site belongs to the losses of this library."""
        raise ValueError(
            "a stock loss asked for the log_prob of an observation whose Gaussian process the guide has integrated out; "
            "its KL would be lost: use pyro_dgp.ELBO or another loss of this library, or write the two sites "
            "f = pyro.sample('f', gp(x)) and pyro.sample('y', likelihood.given(f), obs=y)"
        )


class Likelihood(PyroModule):
    """Base of all observation models. ``likelihood(gp(x))`` is the distribution of y to put into ``pyro.sample``."""

    def conditional(self) -> Conditional:
        """Read the parameters."""
        raise NotImplementedError

    def forward(self, prior: Any) -> Observation:
        """The distribution of y over the top GP's prior ``gp(x)``, with every parameter read now."""
        if not isinstance(prior, FunctionPrior):
            raise TypeError(
                "a likelihood is called on gp(x), the distribution over function values; "
                "for function values themselves use likelihood.given(f)"
            )
        refuse_data_plate(prior.event_shape[0])
        self.require_outputs(prior.num_outputs)
        return Observation(self.conditional(), {"f": prior}, self.target_outputs(prior.num_outputs))

    def require_outputs(self, outputs: int) -> None:
        """Raise if the likelihood is not one of so many functions."""

    def target_outputs(self, outputs: int) -> int:
        """Number of outputs of y over so many functions; 1 makes y ``(N,)``."""
        return outputs

    @pyro_method
    def given(self, f: Tensor) -> RowObservation:
        """p(y | f) for a model that writes ``f`` and ``y`` as two sites; no data plate around it."""
        refuse_data_plate(f.shape[-2])
        self.require_outputs(f.shape[-1])
        return self.conditional().given(f)


class GaussHermite(Conditional):
    """Base of likelihoods of one function, integrated by Gauss-Hermite quadrature with ``NODES`` nodes."""

    NODES = 20
    integration = "Gauss-Hermite, 20 nodes"

    def _nodes(self, f: Moments) -> tuple[Tensor, Tensor]:
        """Function values at the nodes ``(..., N, K)`` and log weights ``(K,)``."""
        mean, scale = one_output(f.mean), one_output(f.variance).sqrt()
        nodes, log_weights = (values.to(mean) for values in gauss_hermite(self.NODES))
        return mean[..., None] + scale[..., None] * nodes, log_weights

    def _quadrature(self, y: Tensor, f: Moments) -> tuple[Tensor, Tensor]:
        """``log p(y | f_k)`` at the nodes ``(..., N, K)`` and log weights ``(K,)``."""
        at, log_weights = self._nodes(f)
        log_prob: Tensor = self.given(at.unsqueeze(-1)).base_dist.log_prob(y[..., None].expand(at.shape))
        return log_prob, log_weights

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """See :class:`Conditional`."""
        log_prob, log_weights = self._quadrature(y, f)
        return (log_weights.exp() * log_prob).sum(-1)

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """See :class:`Conditional`."""
        log_prob, log_weights = self._quadrature(y, f)
        return torch.logsumexp(log_weights + log_prob, -1)

    def log_expected_gamma_score(self, y: Tensor, f: Moments, gamma: float) -> Tensor:
        """See :class:`Conditional`."""
        at, log_weights = self._nodes(f)
        score = log_gamma_score(self.given(at.unsqueeze(-1)).base_dist, y[..., None].expand(at.shape), gamma)
        return torch.logsumexp(log_weights + score, -1)


def log_gamma_score(distribution: Any, y: Tensor, gamma: float) -> Tensor:
    """``log [p(y)^c / (int p^gamma)^(c / gamma)]``, ``c = gamma - 1``, for normal and finite discrete p, or independent ones."""
    if isinstance(distribution, torch.distributions.Independent):
        terms = log_gamma_score(distribution.base_dist, y, gamma)
        return terms.sum(tuple(range(-distribution.reinterpreted_batch_ndims, 0)))
    if isinstance(distribution, torch.distributions.Normal):
        log_integral = 0.5 * ((1 - gamma) * (2 * math.pi * distribution.variance).log() - math.log(gamma))
    elif distribution.has_enumerate_support:
        values = distribution.enumerate_support()
        log_integral = torch.logsumexp(gamma * distribution.log_prob(values), 0)
    else:
        raise ValueError(
            f"the gamma divergence needs the integral of {type(distribution).__name__}'s density to the power gamma, known here "
            "for normal and finite discrete distributions: use another loss"
        )
    log_prob: Tensor = distribution.log_prob(y)
    return (gamma - 1) * (log_prob - log_integral / gamma)
