"""Weighted mixtures over the rows of a batch, held in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from pyro import distributions as dist
from pyro.distributions import MultivariateStudentT
from torch import Tensor
from torch.distributions import Distribution, LowRankMultivariateNormal

from pyro_dgp.internal.views import View
from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.likelihoods.moments import Moments
from pyro_dgp.likelihoods.supports import innermost
from pyro_dgp.prediction.component_densities import enumerated, log_prob_of, row_log_prob_of, share_functions
from pyro_dgp.prediction.distribution_functions import DistributionFunction
from pyro_dgp.prediction.joining import concatenate
from pyro_dgp.prediction.picked_draws import picked_draws
from pyro_dgp.prediction.ranked_score import ranked_score, ranked_score_of_normals
from pyro_dgp.prediction.target_kinds import (
    is_discrete,
    moment,
    require_line,
    require_normal_outputs,
    require_numbers,
    require_targets,
)

#: Draws of a distribution without a cdf, whose score is the CRPS.
_DRAWS = 4000


class Mixture:
    """A weighted mixture for each row (and output), held in memory.

    :param components: distribution of the S components. It is elementwise, of batch shape ``(S, N)`` or
        ``(S, N, D_out)``, or correlated over the outputs of a row, of batch shape ``(S, N)`` and event shape
        ``(D_out,)``.
    :param log_weights: log weights ``(S,)``; the weights sum to one.
    :param observations: collapsed observations that the components come from, in order, where functions were integrated
        out; empty elsewhere, and where rows of several batches were joined.
    :param check: raises for targets that the likelihood cannot have produced; that of the first observation if not given.

    >>> import pyro.distributions as dist, torch
    >>> from pyro_dgp import Mixture
    >>> two = dist.Normal(torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1))  # S = 2, N = 1
    >>> mixture = Mixture(two, torch.tensor([0.5, 0.5]).log())
    >>> mixture.mean.tolist(), mixture.variance.tolist()
    ([0.0], [2.0])
    """

    def __init__(
        self,
        components: Distribution,
        log_weights: Tensor,
        observations: Sequence[CollapsedObservation] = (),
        *,
        check: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.components, self.log_weights, self.observations = components, log_weights, tuple(observations)
        self._check = self.observations[0].conditional.check if check is None and self.observations else check

    @property
    def _weights(self) -> Tensor:
        extra = len(self.components.batch_shape) + len(self.components.event_shape) - 1
        return self._shares.reshape(-1, *[1] * extra)

    @property
    def _shares(self) -> Tensor:
        """Weights ``(S,)`` that sum to one: their logarithms are rounded."""
        return self.log_weights.softmax(0)

    @property
    def _marginals(self) -> Distribution:
        """Components of each output by itself."""
        if not self.components.event_shape:
            return self.components
        return dist.Normal(self.components.mean, self.components.variance.sqrt(), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean, ``sum_s w_s mean_s``."""
        require_numbers(self.components, "mean")
        means = moment(self.components, "mean")
        near = (self._weights * means).sum(0).detach().nan_to_num(0.0, 0.0, 0.0)  # right but for rounding
        return near + (self._weights * (means - near)).sum(0)

    @property
    def variance(self) -> Tensor:
        """The total variance: mean of the variances plus variance of the means; infinite where the mean is."""
        require_numbers(self.components, "variance")
        between = (moment(self.components, "mean") - self.mean).square().where(~self.mean.isinf(), torch.inf)
        return (self._weights * (moment(self.components, "variance") + between)).sum(0)

    @property
    def covariance(self) -> Tensor:
        """The total covariance over the outputs of a row, ``(N, D, D)``.

        It is the mean of the covariances plus the covariance of the means.
        """
        require_numbers(self.components, "covariance")
        weights, components = self._shares, self.components
        deviation = (moment(components, "mean") - self.mean).reshape(len(weights), components.batch_shape[1], -1)
        between = torch.einsum("s,sni,snj->nij", weights, deviation, deviation)
        if isinstance(components, LowRankMultivariateNormal):  # its covariance matrix would take (S, N, D, D)
            root = components.cov_factor
            independent = (self._weights * components.cov_diag).sum(0)
            return between + torch.einsum("s,snik,snjk->nij", weights, root, root) + torch.diag_embed(independent)
        if components.event_shape or share_functions(components):
            return between + torch.einsum("s,snij->nij", weights, _covariance_of(components))
        variance = (self._weights * moment(components, "variance")).sum(0)
        return between + torch.diag_embed(variance.reshape(deviation.shape[1:]))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log of the mixture density for each row, joint over outputs: ``(N,)``."""
        return torch.logsumexp(self.log_weights.unsqueeze(-1) + self.component_log_prob(value), 0)

    def component_log_prob(self, value: Tensor) -> Tensor:
        """Return the log density under each component, ``(S, N)``: of the observed outputs, where a likelihood takes missing ones."""
        value = value if value.is_floating_point() else value.to(self.log_weights.dtype)
        self.require(value)
        has_missing = bool(value.isnan().any())
        if has_missing and not (self.observations and self.observations[0].takes_missing):
            raise ValueError(
                "the targets hold NaN: leave such rows out, or, where NaN is an output that was not observed, write MissingOutputs(likelihood)(gp(x)) "
                "in the model; a mixture of several batches of rows takes none, and the prediction itself does"
            )
        if has_missing:
            wants_gradients = value.requires_grad or self.observations[0].moments.mean.requires_grad
            # The likelihood holds its parameters, which a prediction does not train.
            with torch.set_grad_enabled(wants_gradients):
                return torch.cat([_observed_log_prob(each, value) for each in self.observations])
        return row_log_prob_of(self.components, value)

    def require(self, value: Tensor) -> None:
        """Raise for targets that the likelihood, or a distribution of classes or counts, cannot have produced."""
        if self._check is not None:
            self._check(value)
        require_targets(self.components, value)

    def functions(self) -> Mixture:
        """Return the mixture of the functions under the likelihood, without noise.

        The components are normal, ``(S, N, F)``, with the weights of this mixture.
        """
        if not self.observations:
            raise ValueError(
                "this prediction has no moments of functions: its likelihood is given sampled values, likelihood.given(f), or it joins several batches of rows. "
                "Write likelihood(gp(x)) in the model, or predict the site of the function values, predict(..., site=); for joined batches take "
                "prediction.functions()"
            )
        mean, variance = zip(*(with_components(each.moments) for each in self.observations), strict=True)
        return Mixture(dist.Normal(torch.cat(mean), torch.cat(variance).sqrt(), validate_args=False), self.log_weights)

    @property
    def probs(self) -> Tensor:
        """Probabilities of the values of y, for classes and other targets of few values: ``(N, ..., C)``."""
        components: Any = self.components
        values = enumerated(components)
        if values is None:
            raise ValueError(
                f"probs lists the probabilities of classes, and {type(innermost(components)).__name__} is no distribution of classes: take mean, "
                "log_prob or sample; for classes give the model a likelihood such as Bernoulli() or Softmax(3), or a comparison Settings(task='binary') or Settings(task='multiclass')"
            )
        log_probs = torch.stack([log_prob_of(components, value) for value in values], -1)
        return (self._shares.reshape(-1, *[1] * (log_probs.dim() - 1)) * log_probs.exp()).sum(0)

    def cdf(self, value: Tensor) -> Tensor:
        """Return ``p(y <= value)``, elementwise: 0 below the support of y, and 1 above it."""
        return self._distribution_function("cdf")(value)

    def cdf_around(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``p(y < value)`` and ``p(y <= value)``, elementwise."""
        if self.is_discrete:
            self.require(value)
            return self.cdf(value - 1), self.cdf(value)
        return self._distribution_function("cdf").around(value)

    def quantile(self, level: Tensor) -> Tensor:
        """Return the smallest value with cdf at least ``level``; levels ``(Q,)`` lead the result."""
        return self._distribution_function("quantile").quantile(level)

    @property
    def is_discrete(self) -> bool:
        """Whether the target is a class or a count."""
        return is_discrete(self.components)

    def _distribution_function(self, figure: str) -> DistributionFunction:
        require_numbers(self.components, figure)
        require_line(self.components, figure)
        require_normal_outputs(self.components, figure)
        return DistributionFunction(self._marginals, self.log_weights)

    def sample(self, count: int) -> Tensor:
        """Draw ``(count, N, ...)`` values, independent over rows; the outputs of a row share the component."""
        with torch.no_grad():
            return self._drawn(count, reparameterised=False)

    def rsample(self, count: int) -> Tensor:
        """Draw as :meth:`sample` does, differentiable in what the components are made of."""
        if not self.components.has_rsample:
            raise NotImplementedError(
                f"{_without_rsample(self.components)} has no reparameterised draws: use sample, which has no gradients"
            )
        return self._drawn(count, reparameterised=True)

    def _drawn(self, count: int, *, reparameterised: bool) -> Tensor:
        """Return one component's draw for each row."""
        index = dist.Categorical(logits=self.log_weights).sample((count, self.components.batch_shape[1]))
        return picked_draws(self.components, index, reparameterised=reparameterised)

    def crps(self, value: Tensor) -> Tensor:
        """Return the continuous ranked probability score, elementwise, in units of y: lower is better.

        Where the components have no ``cdf``, as PyTorch's Student t, it is that of 4,000 draws, the same in each call, a few percent off.
        """
        distribution_function = self._distribution_function("CRPS")
        value = value if value.is_floating_point() else value.to(self.log_weights)
        if isinstance(marginals := self._marginals, torch.distributions.Normal):
            return ranked_score_of_normals(marginals, self._shares, value)
        if is_discrete(marginals):
            self.require(value)
            return distribution_function.squared_distance(value)
        with torch.no_grad():
            try:
                return ranked_score(distribution_function, marginals, self._shares, value=value)
            except NotImplementedError:  # a distribution without a cdf: the score of draws
                with torch.random.fork_rng():
                    torch.manual_seed(0)
                    draws = self.sample(_DRAWS).movedim(0, -1)
            score = import_module("scoringrules").crps_ensemble(value.cpu().numpy(), draws.cpu().numpy())
            return torch.as_tensor(score, dtype=value.dtype, device=value.device)


def _covariance_of(components: Any) -> Tensor:
    """Return the covariance matrix of each component at each row, ``(S, N, D, D)``."""
    inner = innermost(components)
    if components.event_shape and not hasattr(inner, "covariance_matrix"):
        raise NotImplementedError(f"{type(inner).__name__} has no covariance matrix: take variance or sample")
    matrix: Tensor = components.covariance_matrix
    if isinstance(inner, MultivariateStudentT):  # Pyro names its scatter so
        ratio = torch.where(inner.df > 2, inner.df / (inner.df - 2), torch.inf)[..., None, None]
        matrix = torch.where(matrix == 0, matrix, matrix * ratio)
    return matrix


def _observed_log_prob(observation: CollapsedObservation, value: Tensor) -> Tensor:
    """Return ``(S, rows)`` for targets of the rows of all groups, one behind another; an observation has axes of groups in front of its own."""
    shape = observation.moments.mean.shape[:-1]
    axes = next(count for count in range(1, len(shape) + 1) if shape[-count:].numel() == len(value))
    return observation.predictive_log_prob(value.unflatten(0, shape[-axes:])).reshape(-1, len(value))


def _without_rsample(components: Any) -> str:
    """Name the distribution that has no reparameterised draws among those inside: a mean over nodes, where they have them."""
    while isinstance(components, View) and not components.inner.has_rsample:
        components = components.inner
    name = type(components).__name__
    if not isinstance(components, View):
        return name
    return f"{name}, a mean of {type(innermost(components)).__name__} over nodes,"


def join_rows(parts: Sequence[Mixture]) -> Mixture:
    """Join the rows of several mixtures that have the same weights and the same likelihood, without the moments of functions."""
    first, *others = parts
    if not others:
        return first
    components = concatenate([part.components for part in parts], 1)
    return Mixture(components, first.log_weights, check=first.require)


def stack_mixtures(parts: Sequence[Mixture]) -> Mixture:
    """Join the components of several mixtures, one for each draw of hyperparameters or of a chain, at equal weights."""
    if len(parts) == 1:
        return parts[0]
    log_weights = torch.cat([part.log_weights for part in parts]) - math.log(len(parts))
    observations = [observation for part in parts for observation in part.observations]
    return Mixture(concatenate([part.components for part in parts]), log_weights, observations)


def with_components(moments: Moments) -> Moments:
    """Return moments with the axis of components in front, of size 1 if they have none."""
    return moments if moments.mean.dim() == 3 else Moments(moments.mean.unsqueeze(0), moments.variance.unsqueeze(0))
