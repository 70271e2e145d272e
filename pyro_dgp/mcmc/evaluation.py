"""One run of a model at given whitened values and hyperparameters, without traces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.scales_and_masks import require_scale_fits
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.sites import is_random
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.site_names import function_site, inducing_site, process_key, whitened_site
from pyro_dgp.internal.tensors import are_same
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.observation import join
from pyro_dgp.mcmc.sparse import Inputs, sparse_moments, sparse_observation, sparse_values
from pyro_dgp.mcmc.steady_sites import sometimes_message
from pyro_dgp.mcmc.whitening import is_expanded
from pyro_dgp.processes import Basis

Factors = dict[str, Tensor]


class RoundedAwayError(ArithmeticError):
    """A latent value has left its support, or the range of numbers, by rounding, so that the model cannot be run there."""


#: Errors of a run at a point that no sampler may go to: its density is zero.
IMPOSSIBLE = (NotPositiveDefiniteError, torch.linalg.LinAlgError, RoundedAwayError)


def rounded_away(
    supports: Mapping[str, Constraint], values: Mapping[str, Tensor], start: Mapping[str, Tensor], error: ValueError
) -> None:
    """Raise :class:`RoundedAwayError` for an error of a run in which rounding may have done away with a latent value, or with its exponential.

    :param supports: those of the latent sites besides Gaussian processes.
    :param start: a draw of their prior.
    """
    for name, support in supports.items():
        if _is_at_end(values[name].detach(), support, start[name]):
            raise RoundedAwayError(f"the latent site {name!r} is at the end of its support") from error


def _is_at_end(value: Tensor, support: Constraint, start: Tensor) -> bool:
    """Tell whether a latent value is outside its support, or so far out that squares of it, or of its exponential, are no numbers or zero."""
    numbers, size = torch.finfo(value.dtype), value.abs()
    base = support
    while isinstance(base, constraints.independent):
        base = base.base_constraint
    if not bool(support.check(value).all()) or bool((size > numbers.max**0.5).any()):
        return True
    if base is constraints.real:
        return bool(((value - start).abs() > 0.5 * math.log(numbers.max)).any())
    low = getattr(base, "lower_bound", None)
    excludes_zero = base is constraints.simplex or (low is not None and not bool(torch.as_tensor(low).any()))
    return excludes_zero and bool((size < numbers.tiny**0.5).any())


class Prior(NamedTuple):
    """Parts of the log density of a latent site: a distribution, and the scale and the mask of the handlers around it."""

    fn: Any
    scale: Any
    mask: Any

    def is_same_as(self, other: Prior) -> bool:
        """Tell whether a value has the same log density: the same object, whose parameters are then those of before, under equal weights."""
        return self.fn is other.fn and are_same(self.scale, other.scale) and are_same(self.mask, other.mask)


@dataclass(frozen=True)
class Evaluation:
    """One run of the model at given values.

    :ivar log_likelihood: log p of all that is observed, nats, given whitened values and hyperparameters.
    :ivar log_priors: log density of each latent site that is no GP, in its own (constrained) space.
    :ivar factors: factor that whitens each GP whose values are sampled, by name.
    :ivar priors: what each entry of ``log_priors`` was computed by.
    """

    log_likelihood: float
    log_priors: dict[str, float] = field(default_factory=dict)
    factors: Factors = field(default_factory=dict)
    priors: dict[str, Prior] = field(default_factory=dict)

    @classmethod
    def of_numbers(cls, log_likelihood: float, sites: Iterable[str], log_priors: Iterable[float]) -> Evaluation:
        """The evaluation that a compiled function gives as numbers, log densities of the priors in the order of their sites."""
        return cls(log_likelihood, dict(zip(sites, log_priors, strict=True))).or_impossible()

    @property
    def log_density(self) -> float:
        """Log likelihood plus log densities of the priors, nats."""
        return self.log_likelihood + sum(self.log_priors.values())

    def or_impossible(self) -> Evaluation:
        """Return this evaluation, or minus infinity where its density is not finite, so that no sampler goes there."""
        return self if math.isfinite(self.log_density) else Evaluation(-math.inf)


class Evaluate(SiteHandler, Messenger):
    """Runs a model at given whitened values and latent values, and sums what it observes.

    :ivar met: the latent sites that the model has met, in its order.
    """

    def __init__(self, values: Mapping[str, Tensor], known: Evaluation, inducing: Inputs) -> None:
        super().__init__()
        self.values, self.known, self.inducing = values, known, inducing
        self.met: dict[str, None] = {}
        self.factors: Factors = {}
        self.observed: list[Tensor] = []
        self.log_priors: dict[str, Tensor | float] = {}
        self.priors: dict[str, Prior] = {}

    def value_of(self, site: str) -> Tensor:
        """The value of a latent site, which the model has met."""
        self.met.setdefault(site)
        if site not in self.values:
            raise ValueError(sometimes_message(site))
        return self.values[site]

    def evaluation(self) -> Evaluation:
        """The evaluation that the run has made, as numbers."""
        log_priors = {name: float(value) for name, value in self.log_priors.items()}
        return Evaluation(float(sum(self.observed)), log_priors, self.factors, self.priors).or_impossible()

    def numbers(self, sites: Iterable[str], *others: Tensor) -> Tensor:
        """Log likelihood, others, and log densities of the priors of these sites, in one tensor."""
        priors = (torch.as_tensor(self.log_priors[name]) for name in sites)
        return torch.stack([torch.stack(self.observed).sum(), *others, *priors])

    def function_values(self, name: str, prior: FunctionPrior, inputs: Tensor | Basis | None) -> Tensor:
        """The values of one GP, whose Cholesky factor is kept.

        :param name: the function site, ``h`` or ``y_f``.
        :param inputs: the GP's inducing inputs, if it has any.
        """
        white = self.value_of(whitened_site(name))
        if inputs is not None:
            return sparse_values(prior, inputs, self.value_of(inducing_site(name)), white)
        prior.factor = self.known.factors.get(name)
        value = prior.unwhiten(white)
        self.factors[name] = prior.factor
        return value

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Give the function values to the likelihood where they are sampled, or the inducing variables where the GP has some."""
        site = msg["name"]
        if not msg["is_observed"]:  # targets that are sampled too
            msg["value"] = self.value_of(site)
        inputs = {gp: self.inducing.get(process_key(site, gp)) for gp in observation.priors}
        if is_expanded(observation):
            values = {
                gp: self.function_values(function_site(site, gp), prior, inputs[gp])
                for gp, prior in observation.priors.items()
            }
            msg["value"] = observation.target(msg["value"], join(values))
            msg["fn"] = observation.conditional.given(join(values))
            return
        ((gp, prior),) = observation.priors.items()
        if (points := inputs[gp]) is not None:
            white = self.value_of(inducing_site(function_site(site, gp)))
            msg["fn"] = sparse_observation(observation, sparse_moments(prior, points, white))

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set latent function values."""
        if not msg["is_observed"]:
            msg["value"] = self.function_values(msg["name"], prior, self.inducing.get(msg["name"]))

    def at_other(self, msg: Message) -> None:
        """Set a latent value."""
        if not msg["is_observed"]:
            msg["value"] = self.value_of(msg["name"])

    def _pyro_post_sample(self, msg: Message) -> None:
        if not is_random(msg) or (isinstance(msg["fn"], FunctionPrior) and not msg["is_observed"]):
            return
        name, prior = msg["name"], Prior(msg["fn"], msg["scale"], msg["mask"])
        if name in self.known.priors and prior.is_same_as(self.known.priors[name]):
            self.log_priors[name], self.priors[name] = self.known.log_priors[name], prior
            return
        terms = prior.fn.log_prob(msg["value"])
        require_scale_fits(msg, terms)
        log_prob = scale_and_mask(terms, prior.scale, prior.mask).sum()
        if msg["is_observed"]:
            self.observed.append(log_prob)
        else:
            self.log_priors[name], self.priors[name] = log_prob, prior
