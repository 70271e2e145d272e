"""One run of a model at given whitened values and hyperparameters, without traces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.sites import is_random
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.observation import join
from pyro_dgp.likelihoods.targets import check_target
from pyro_dgp.mcmc.sparse import INDUCING, Inputs, sparse_moments, sparse_observation, sparse_values
from pyro_dgp.mcmc.whitening import SUFFIX, is_expanded

Message = dict[str, Any]
Factors = dict[str, Tensor]


@dataclass(frozen=True)
class Evaluation:
    """One run of the model at given values.

    :ivar log_likelihood: log p of all that is observed, nats, given whitened values and hyperparameters.
    :ivar log_priors: log density of each latent site that is no GP, in its own (constrained) space.
    :ivar factors: Cholesky factor of each GP whose values are sampled, by name.
    :ivar priors: the distribution object of each entry of ``log_priors``.
    """

    log_likelihood: float
    log_priors: dict[str, float] = field(default_factory=dict)
    factors: Factors = field(default_factory=dict)
    priors: dict[str, Any] = field(default_factory=dict)

    @property
    def log_density(self) -> float:
        """Both together."""
        return self.log_likelihood + sum(self.log_priors.values())

    def or_impossible(self) -> Evaluation:
        """Itself, or minus infinity where its density is not finite, so that no sampler goes there."""
        return self if math.isfinite(self.log_density) else Evaluation(-math.inf)


class Evaluate(Messenger):
    """Runs a model at given whitened values and latent values, and sums what it observes."""

    def __init__(self, values: Mapping[str, Tensor], known: Evaluation, inducing: Inputs) -> None:
        super().__init__()
        self.values, self.known, self.inducing = values, known, inducing
        self.factors: Factors = {}
        self.observed: list[Tensor] = []
        self.log_priors: dict[str, Tensor | float] = {}
        self.priors: dict[str, Any] = {}

    def function_values(self, name: str, key: str, prior: FunctionPrior) -> Tensor:
        """Of one GP, whose factor is kept; ``key`` is what its inducing inputs are called."""
        if key in self.inducing:
            white = self.values[name + INDUCING + SUFFIX]
            return sparse_values(prior, self.inducing[key], white, self.values[name + SUFFIX])
        prior._factor = self.known.factors.get(name)
        value = prior.unwhiten(self.values[name + SUFFIX])
        self.factors[name] = prior.scale_tril
        return value

    def _pyro_sample(self, msg: Message) -> None:
        fn, name = msg["fn"], msg["name"]
        if isinstance(fn, Observation):
            if is_expanded(fn):
                values = {k: self.function_values(f"{name}_{k}", f"{name}/{k}", p) for k, p in fn.priors.items()}
                check_target(msg["value"], fn.event_shape, join(values))
                msg["fn"] = fn.conditional.given(join(values))
                return
            ((k, prior),) = fn.priors.items()
            inputs = self.inducing.get(f"{name}/{k}")
            if inputs is not None:
                white = self.values[f"{name}_{k}{INDUCING}{SUFFIX}"]
                msg["fn"] = sparse_observation(fn, sparse_moments(prior, inputs, white))
        elif not msg["is_observed"] and not site_is_subsample(msg):
            sampled = isinstance(fn, FunctionPrior)
            msg["value"] = self.function_values(name, name, fn) if sampled else self.values[name]

    def _pyro_post_sample(self, msg: Message) -> None:
        if not is_random(msg) or (isinstance(msg["fn"], FunctionPrior) and not msg["is_observed"]):
            return
        name, fn = msg["name"], msg["fn"]
        if self.known.priors.get(name) is fn:
            self.log_priors[name], self.priors[name] = self.known.log_priors[name], fn
            return
        log_prob = scale_and_mask(fn.log_prob(msg["value"]), msg["scale"], msg["mask"]).sum()
        if msg["is_observed"]:
            self.observed.append(log_prob)
        else:
            self.log_priors[name], self.priors[name] = log_prob, fn
