"""Predictive distributions: mixtures, evaluated in batches of test rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import scoringrules
import torch
from pyro import distributions as dist
from pyro.distributions import TorchDistribution, constraints
from torch import Size, Tensor
from torch.distributions import Distribution, LowRankMultivariateNormal

from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.moments import Moments


class LikelihoodDraws(NamedTuple):
    """Draws of equal weight: functions ``(R, N, F)``, nothing where none were integrated out; log p(y_n | f_n) at them ``(R, N)``, nats;
    and replicates of y given them, ``(R, N, ...)``.
    """

    functions: Tensor | None
    log_prob: Tensor
    replicates: Tensor


class Mixture:
    """A weighted mixture for each row (and output), held in memory.

    :param components: elementwise, of batch shape ``(S, N)`` or ``(S, N, D_out)``; or correlated over the outputs of a row, of
        batch shape ``(S, N)`` and event shape ``(D_out,)``.
    :param log_weights: ``(S,)``, summing to one.
    :param observations: what the components come from where functions were integrated out: each makes the next of them.
    """

    def __init__(
        self, components: Distribution, log_weights: Tensor, observations: Sequence[CollapsedObservation] = ()
    ) -> None:
        self.components, self.log_weights, self.observations = components, log_weights, tuple(observations)

    @property
    def _weights(self) -> Tensor:
        extra = len(self.components.batch_shape) + len(self.components.event_shape) - 1
        return self.log_weights.exp().reshape(-1, *[1] * extra)

    @property
    def _marginals(self) -> Distribution:
        """The components one output at a time."""
        if not self.components.event_shape:
            return self.components
        return dist.Normal(self.components.mean, self.components.variance.sqrt(), validate_args=False)

    def mean(self) -> Tensor:
        """``sum_s w_s mean_s``."""
        return (self._weights * self.components.mean).sum(0)

    def variance(self) -> Tensor:
        """Total variance: mean of the variances plus variance of the means."""
        deviation = self.components.mean - self.mean()
        return (self._weights * (self.components.variance + deviation.square())).sum(0)

    def covariance(self) -> Tensor:
        """Total covariance over the outputs of a row, mean of the covariances plus covariance of the means: ``(N, D, D)``."""
        weights, components = self.log_weights.exp(), self.components
        deviation = (components.mean - self.mean()).reshape(len(weights), components.batch_shape[1], -1)
        between = torch.einsum("s,sni,snj->nij", weights, deviation, deviation)
        if isinstance(components, LowRankMultivariateNormal):  # without its (S, N, D, D)
            root = components.cov_factor
            independent = (self._weights * components.cov_diag).sum(0)
            return between + torch.einsum("s,snik,snjk->nij", weights, root, root) + torch.diag_embed(independent)
        if components.event_shape:
            within: Any = components
            return between + torch.einsum("s,snij->nij", weights, within.covariance_matrix)
        return between + torch.diag_embed((self._weights * components.variance).sum(0).reshape(deviation.shape[1:]))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log of the mixture density for each row, joint over outputs: ``(N,)``."""
        log_prob = self.components.log_prob(value)
        if log_prob.dim() == 3:
            log_prob = log_prob.sum(-1)
        return torch.logsumexp(self.log_weights.unsqueeze(-1) + log_prob, 0)

    def component_log_prob(self, value: Tensor) -> Tensor:
        """Log density under each component, ``(S, N)``."""
        log_prob: Tensor = self.components.log_prob(value)
        return log_prob.sum(-1) if log_prob.dim() == 3 else log_prob

    def functions(self) -> Mixture:
        """The functions under the likelihood, noise not included: normal components ``(S, N, F)`` of the same weights."""
        if not self.observations:
            raise ValueError(
                "this prediction has no moments of functions: its likelihood stands on sampled values, likelihood.given(f), "
                "not on a Gaussian process, likelihood(gp(x))"
            )
        mean, variance = zip(*(_with_components(each.moments) for each in self.observations), strict=True)
        return Mixture(dist.Normal(torch.cat(mean), torch.cat(variance).sqrt(), validate_args=False), self.log_weights)

    def likelihood_draws(self, value: Tensor, least: int) -> LikelihoodDraws:
        """One for each component if their weights are equal, else ``R >= least`` by systematic resampling; as many too where there are
        functions to draw and fewer components.
        """
        index, weights = torch.arange(len(self.log_weights)), self.log_weights.exp()
        few = bool(self.observations) and len(weights) < least
        if few or not bool(torch.isclose(weights, weights[0]).all()):
            count = max(least, len(weights))
            levels = (torch.arange(count).to(weights) + 0.5) / count
            index = torch.searchsorted(weights.cumsum(0), levels).clamp_max(len(weights) - 1)
        if not self.observations:
            return LikelihoodDraws(None, self.component_log_prob(value)[index], self.components.sample()[index])
        parts, start = [], 0
        for each in self.observations:
            mean, variance = _with_components(each.moments)
            chosen = index[(index >= start) & (index < start + len(mean))] - start
            f = mean[chosen] + variance[chosen].sqrt() * torch.randn_like(mean[chosen])
            given = each.conditional.given(f).base_dist
            log_prob = given.log_prob(value)
            parts.append(LikelihoodDraws(f, log_prob.sum(-1) if log_prob.dim() == 3 else log_prob, given.sample()))
            start += len(mean)
        return _join_draws(parts, 0)

    def cdf(self, value: Tensor) -> Tensor:
        """``p(y <= value)`` elementwise."""
        try:
            probability = self._marginals.cdf(value)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{type(self._marginals).__name__} has no cdf, which quantiles, intervals and the PIT (and the CRPS of counts) "
                "need: give the likelihood a distribution with one, or stay with log_prob, mean and sample"
            ) from error
        return (self._weights * probability).sum(0)

    def quantile(self, level: Tensor) -> Tensor:
        """The smallest value with cdf at least ``level``, by bisection; levels ``(Q,)`` lead the result."""
        mean, scale = self.components.mean, self.components.variance.sqrt()
        low = (mean - 10 * scale).amin(0).expand(*level.shape, *mean.shape[1:]).clone() - 1e-3
        high = (mean + 10 * scale).amax(0).expand(low.shape).clone() + 1e-3
        target = level.reshape(-1, *[1] * (mean.dim() - 1))
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = torch.stack([self.cdf(m) for m in middle]) < target
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high.ceil() - (high.ceil() - high > 1 - 1e-6).to(high) if self._discrete else high

    @property
    def _discrete(self) -> bool:
        support: Any = self.components.support
        return bool(support.is_discrete)

    def sample(self, count: int) -> Tensor:
        """``(count, N, ...)`` draws, independent over rows; outputs of a row share the component."""
        rows = self.components.batch_shape[1]
        index = dist.Categorical(logits=self.log_weights).sample((count, rows))
        draws = self.components.sample((count,))
        pick = index.reshape(count, 1, rows, *[1] * (draws.dim() - 3)).expand(count, 1, *draws.shape[2:])
        return draws.gather(1, pick).squeeze(1)

    def crps(self, value: Tensor) -> Tensor:
        """Continuous ranked probability score, elementwise, units of y: lower is better."""
        if isinstance(marginals := self._marginals, dist.Normal):
            return _normal_crps(marginals, self._weights, value)
        if self._discrete:
            top = int(max(float(self.quantile(self.log_weights.new_tensor([1 - 1e-9])).max()), float(value.max())))
            steps = torch.arange(0, top + 1, dtype=value.dtype, device=value.device)
            return torch.stack([(self.cdf(k.expand_as(value)) - (value <= k).to(value)).square() for k in steps]).sum(0)
        draws = self.sample(1000)
        score = scoringrules.crps_ensemble(value.cpu().numpy(), draws.movedim(0, -1).cpu().numpy())
        return torch.as_tensor(score, dtype=value.dtype, device=value.device)


def _normal_crps(components: dist.Normal, weights: Tensor, value: Tensor) -> Tensor:
    mean, scale = components.loc.movedim(0, -1), components.scale.movedim(0, -1)
    weight = weights.expand(components.loc.shape).movedim(0, -1)
    score: Tensor = scoringrules.crps_mixnorm(value, mean, scale, weight, backend="torch")
    return score


class Prediction(TorchDistribution):
    """The predictive distribution at N test rows: for each row the full mixture over components and posterior draws.

    A distribution with batch shape ``(N,)`` and event shape ``()`` or ``(D_out,)``. Moments and scores are computed in
    batches of rows, so that memory does not grow with N; the same seed makes every method see the same mixture. Units are
    those of the targets that the model was trained on. Rows are evaluated when they are asked for, by the parameters of that
    time: take what you need before you train on.

    :param evaluate: gives the mixture for rows ``start:stop``.
    :param rows: N.
    :param event_shape: ``()`` or ``(D_out,)``.
    :param batch_size: rows evaluated at a time.
    :param keep: mixtures are kept after their first use up to this many numbers.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real
    has_rsample = False

    def __init__(
        self,
        evaluate: Callable[[slice], Mixture],
        rows: int,
        event_shape: Size = Size(),
        batch_size: int = 1000,
        keep: int = 20_000_000,
    ) -> None:
        self._evaluate, self._batch_size, self._keep = evaluate, batch_size, keep
        self._seed = int(torch.randint(2**31 - 1, ()))
        self._kept: dict[int, Mixture] = {}
        super().__init__(Size((rows,)), event_shape, validate_args=False)

    def __repr__(self) -> str:
        event = f", event_shape={tuple(self.event_shape)}" if self.event_shape else ""
        return f"Prediction(rows={self.batch_shape[0]}{event})"

    def _mixture(self, start: int) -> Mixture:
        if start in self._kept:
            return self._kept[start]
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(self._seed + start)
            mixture = self._evaluate(slice(start, min(start + self._batch_size, self.batch_shape[0])))
        size = (mixture.components.batch_shape + mixture.components.event_shape).numel()
        if size * self.batch_shape[0] // min(self._batch_size, self.batch_shape[0]) <= self._keep:
            self._kept[start] = mixture
        return mixture

    def mixture(self) -> Mixture:
        """The mixture of all rows at once, held in memory."""
        return _join_rows([self._mixture(start) for start in self._starts()])

    def _starts(self) -> range:
        return range(0, self.batch_shape[0], self._batch_size)

    def _rows(self, method: Callable[[Mixture, Any], Tensor], value: Tensor | None = None, axis: int = 0) -> Tensor:
        if value is not None:
            self._check(value)
        parts = []
        for start in self._starts():
            part = None if value is None else value[start : start + self._batch_size]
            parts.append(method(self._mixture(start), part))
        return torch.cat(parts, axis)

    def _check(self, value: Tensor) -> None:
        shape = self.batch_shape + self.event_shape
        if value.shape != shape:
            raise ValueError(f"targets have shape {tuple(value.shape)}, the prediction {tuple(shape)}")

    @property
    def mean(self) -> Tensor:
        """Predictive mean, ``(N,)`` or ``(N, D_out)``."""
        return self._rows(lambda mixture, _: mixture.mean())

    @property
    def variance(self) -> Tensor:
        """Total predictive variance, noise included (not a standard deviation)."""
        return self._rows(lambda mixture, _: mixture.variance())

    @property
    def covariance(self) -> Tensor:
        """Total predictive covariance over the outputs of each row, ``(N, D_out, D_out)``, noise included.

        By the law of total covariance over the components of the mixture; its diagonal is the variance. One output makes it
        ``(N, 1, 1)``.
        """
        return self._rows(lambda mixture, _: mixture.covariance())

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of the mixture for each row, nats: ``(N,)``; joint over the outputs of a row."""
        return self._rows(lambda mixture, part: mixture.log_prob(part), value)

    def component_log_prob(self, value: Tensor) -> Tensor:
        """Log density under each component, ``(S, N)``."""
        return self._rows(lambda mixture, part: mixture.component_log_prob(part), value, 1)

    def functions(self) -> Mixture:
        """The functions that the likelihood stands on, noise not included: normal components ``(S, N, F)``."""
        with torch.no_grad():
            return _join_rows([self._mixture(start).functions() for start in self._starts()])

    def likelihood_draws(self, value: Tensor, least: int = 1) -> LikelihoodDraws:
        """What PSIS-LOO, WAIC and posterior predictive checks take: draws of the functions, independent over rows, log p(y_n | f_n) at
        them, and replicates of y, all of the same weight.

        There is one for each component, or ``least`` or more by systematic resampling where components differ in weight or are fewer. No
        functions (``None``) where the likelihood stands on sampled values: the rest is then that of the components.
        """
        self._check(value)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(self._seed)
            parts = [
                self._mixture(start).likelihood_draws(value[start : start + self._batch_size], least)
                for start in self._starts()
            ]
        return _join_draws(parts, 1)

    def cdf(self, value: Tensor) -> Tensor:
        """``p(y <= value)``, elementwise."""
        return self._rows(lambda mixture, part: mixture.cdf(part), value)

    def quantile(self, level: float | Sequence[float] | Tensor) -> Tensor:
        """Quantiles, elementwise: ``(N, ...)`` for one level, ``(Q, N, ...)`` for several."""
        levels = torch.as_tensor(level, dtype=torch.get_default_dtype())
        if bool(((levels <= 0) | (levels >= 1)).any()):
            raise ValueError("quantile levels lie strictly between 0 and 1")
        result = self._rows(lambda mixture, _: mixture.quantile(levels.reshape(-1).to(mixture.log_weights)), axis=1)
        return result[0] if levels.dim() == 0 else result

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws ``(*sample_shape, N, ...)`` from each row's mixture, independent over rows."""
        shape = Size(sample_shape)
        draws = self._rows(lambda mixture, _: mixture.sample(shape.numel()), axis=1)
        return draws.reshape(shape + draws.shape[1:])

    def crps(self, value: Tensor) -> Tensor:
        """Continuous ranked probability score of the mixture, elementwise, units of y."""
        return self._rows(lambda mixture, part: mixture.crps(part), value)


def _join_draws(parts: Sequence[LikelihoodDraws], axis: int) -> LikelihoodDraws:
    functions = [part.functions for part in parts if part.functions is not None]
    return LikelihoodDraws(
        torch.cat(functions, axis) if functions else None,
        torch.cat([part.log_prob for part in parts], axis),
        torch.cat([part.replicates for part in parts], axis),
    )


def _join_rows(parts: Sequence[Mixture]) -> Mixture:
    """One mixture of the rows of several that have the same weights."""
    return Mixture(_concatenate([part.components for part in parts], 1), parts[0].log_weights)


def equally_spaced(total: int, most: int) -> list[int]:
    """At most so many numbers below ``total``; as many in each of several equal parts of it if they divide ``most``."""
    count = min(total, most)
    return [number * total // count for number in range(count)]


def stack_mixtures(parts: Sequence[Mixture]) -> Mixture:
    """One mixture of several, equally weighted (one for each draw of hyperparameters or of a chain)."""
    if len(parts) == 1:
        return parts[0]
    log_weights = torch.cat([part.log_weights for part in parts]) - torch.log(torch.tensor(float(len(parts))))
    observations = [observation for part in parts for observation in part.observations]
    return Mixture(_concatenate([part.components for part in parts]), log_weights, observations)


def _with_components(moments: Moments) -> Moments:
    """With the axis of components in front, of size 1 if there was none."""
    return moments if moments.mean.dim() == 3 else Moments(moments.mean.unsqueeze(0), moments.variance.unsqueeze(0))


def chosen(components: Distribution, mask: Tensor) -> Distribution | None:
    """Some of the components of an elementwise distribution, a mask of its first axis; nothing for a kind that cannot be made anew."""
    if bool(mask.all()):
        return components
    axes = len(components.batch_shape)
    arguments = {
        name: value[mask] if value.dim() >= axes and len(value) == len(mask) else value
        for name, value in _arguments(components).items()
    }
    try:
        made = _made_of(components, arguments)
    except ValueError:
        return None
    same = (
        made.batch_shape == (int(mask.sum()), *components.batch_shape[1:])
        and made.event_shape == components.event_shape
    )
    return made if same else None


def _concatenate(parts: Sequence[Distribution], axis: int = 0) -> Distribution:
    of_each = [_arguments(part) for part in parts]
    return _made_of(parts[0], {name: torch.cat([values[name] for values in of_each], axis) for name in of_each[0]})


def _arguments(components: Distribution) -> dict[str, Tensor]:
    """What a distribution was made of."""
    names = [name for name in components.arg_constraints if name in components.__dict__]
    # Some parameters are kept once they were asked for, beside those that the distribution was made of.
    for made_of, kept in (("scale_tril", ("covariance_matrix", "precision_matrix")), ("logits", ("probs",))):
        names = [name for name in names if made_of not in names or name not in kept]
    return {name: getattr(components, name) for name in names}


def _made_of(components: Distribution, arguments: dict[str, Tensor]) -> Distribution:
    """Another distribution of the same kind."""
    kind: Any = type(components)
    try:
        made: Distribution = kind(**arguments, validate_args=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"mixtures of {kind.__name__} components cannot be joined: its constructor does not take "
            f"{list(arguments)}; let the likelihood's components() be a plain distribution"
        ) from error
    return made
