"""log p(y | whitened values, hyperparameters) of a model, without traces: what samplers evaluate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.transforms import Transform

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.base import check_target, join
from pyro_dgp.linalg import NotPositiveDefiniteError
from pyro_dgp.mcmc.sparse import INDUCING, Inputs, sparse_moments, sparse_observation, sparse_values
from pyro_dgp.mcmc.whitening import SUFFIX, WhitenedModel, is_expanded
from pyro_dgp.sites import is_random

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


class _Evaluate(Messenger):
    """Runs a model at given whitened values and latent values, and sums what it observes."""

    def __init__(self, values: Mapping[str, Tensor], known: Evaluation, inducing: Inputs) -> None:
        super().__init__()
        self.values, self.known, self.inducing = values, known, inducing
        self.factors: Factors = {}
        self.observed: list[Tensor] = []
        self.log_priors: dict[str, Tensor | float] = {}
        self.priors: dict[str, Any] = {}

    def _function_values(self, name: str, key: str, prior: FunctionPrior) -> Tensor:
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
                values = {k: self._function_values(f"{name}_{k}", f"{name}/{k}", p) for k, p in fn.priors.items()}
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
            msg["value"] = self._function_values(name, name, fn) if sampled else self.values[name]

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


def _require_continuous(name: str, fn: Any) -> None:
    if fn.has_enumerate_support or fn.support.is_discrete:
        raise ValueError(f"the latent site {name!r} is discrete: sum it out in the model, or sample the rest of it")


class WhitenedDensity:
    """The parts of the posterior of a whitened model at fixed data.

    :ivar whitened: shapes of the whitened sites, ``(..., N, D_out)`` by name (``h_whitened``), in the order of the model.
    :ivar transforms: for each other latent site, the map from the real line to its support.
    """

    def __init__(self, model: WhitenedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        with torch.no_grad():
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        for name, site in trace.nodes.items():
            if site_is_subsample(site) and (site["fn"].subsample_size or site["fn"].size) < site["fn"].size:
                raise ValueError(f"the plate {name!r} subsamples: this sampler needs all data at every step")
        sampled = [name for name in trace.stochastic_nodes if not site_is_subsample(trace.nodes[name])]
        self.start = {name: trace.nodes[name]["value"].detach() for name in sampled}
        self.whitened: dict[str, torch.Size] = {}
        self.transforms: dict[str, Transform] = {}
        for name, value in self.start.items():
            site = trace.nodes[name]
            if name.endswith(SUFFIX):
                self.whitened[name] = value.shape
            else:
                _require_continuous(name, site["fn"])
                self.transforms[name] = biject_to(site["fn"].support)
        if self.transforms:
            self._require_fixed_supports()
        if not self.start:
            raise ValueError(
                "the model has nothing to sample: its only GP is integrated out and no hyperparameter has a prior (PyroSample)"
            )
        self._order = {name.removesuffix(SUFFIX): number for number, name in enumerate(self.start)}

    def _require_fixed_supports(self) -> None:
        """A second draw of the prior has the same supports."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            other = poutine.trace(self.model).get_trace(*self.args, **self.kwargs)
        for name, transform in self.transforms.items():
            point = transform.inv(self.start[name])
            if not torch.equal(transform(point), biject_to(other.nodes[name]["fn"].support)(point)):
                raise ValueError(
                    f"the support of the latent site {name!r} depends on other sites: sample it on a fixed one, such as "
                    "Uniform(0, 1), and scale it in the model"
                )

    def evaluate(
        self, values: Mapping[str, Tensor], known: Evaluation | None = None, changed: str | None = None
    ) -> Evaluation:
        """One run of the model; a matrix that cannot be factorised has log likelihood minus infinity.

        :param values: whitened values and latent values in their own space, by site.
        :param known: a run whose values differ in ``changed`` alone. Used again: log densities of other sites whose distribution is the same
            object (a ``PyroSample`` of fixed parameters), and factors of GPs that the model meets no later than ``changed``.
        :param changed: name of the site.
        """
        reused = Evaluation(0.0)
        if known is not None and changed is not None:
            last = self._order[changed.removesuffix(SUFFIX)]
            reused = Evaluation(
                0.0,
                known.log_priors,
                {name: factor for name, factor in known.factors.items() if self._order[name] <= last},
                {name: prior for name, prior in known.priors.items() if name != changed},
            )
        try:
            with torch.no_grad():
                run = self.run(values, reused)
        except NotPositiveDefiniteError:
            return Evaluation(-math.inf)
        log_priors = {name: float(value) for name, value in run.log_priors.items()}
        result = Evaluation(float(sum(run.observed)), log_priors, run.factors, run.priors)
        return result.or_impossible()

    def run(self, values: Mapping[str, Tensor], known: Evaluation) -> _Evaluate:
        """Run the model at these values: tensors, with gradients where they are wanted."""
        with _Evaluate(values, known, self.model.inducing) as run:
            self.model.model(*self.args, **self.kwargs)
        return run

    def unconstrained_start(self) -> dict[str, Tensor]:
        """The prior draw that it was built with, in unconstrained space."""
        return {k: self.transforms[k].inv(v) if k in self.transforms else v.clone() for k, v in self.start.items()}

    def potential(self, params: Mapping[str, Tensor]) -> Tensor:
        """Minus the log posterior density in unconstrained space, nats, up to a constant: what HMC differentiates.

        :param params: whitened values, and latent values through the inverses of ``transforms``.
        """
        values = {k: self.transforms[k](v) if k in self.transforms else v for k, v in params.items()}
        run = self.run(values, Evaluation(0.0))
        terms = [
            *run.observed,
            *run.log_priors.values(),
            *(-0.5 * params[name].square().sum() for name in self.whitened),
        ]
        for name, transform in self.transforms.items():
            terms.append(transform.log_abs_det_jacobian(params[name], values[name]).sum())
        return -torch.stack([torch.as_tensor(term) for term in terms]).sum()
