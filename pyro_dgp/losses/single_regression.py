"""The one observed GP of a regression model, with its noise and its targets, and the process that a guide has for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro.poutine.util import site_is_subsample
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import WeightedTrace
from pyro_dgp.guides.scales_and_masks import require_as_written
from pyro_dgp.guides.sites import is_random
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal import linalg
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.gaussian import GaussianConditional
from pyro_dgp.processes import GaussianCoefficients, WhitenedProcess
from pyro_dgp.processes.reading import HiddenPosterior
from pyro_dgp.propagation import Propagation


@dataclass(frozen=True)
class Regression:
    """A model that observes one Gaussian process under Gaussian noise, as one pass of a guide shows it.

    :ivar key: name of its process in a guide.
    :ivar prior: the Gaussian process at the inputs of the pass, which lead with components where they are made from hidden functions.
    :ivar noise: variance of the noise, a number for each output, ``(D_out,)`` or ``(1,)``.
    :ivar values: the targets, ``(..., D_out, N)``.
    :ivar weights: of the components, ``(S,)``; ``None`` where the inputs have none.
    :ivar regularizer: KL of the hidden functions, nats in total.
    """

    key: str
    prior: FunctionPrior
    noise: Tensor
    values: Tensor
    weights: Tensor | None
    regularizer: Tensor

    @property
    def groups(self) -> Size:
        """Batch axes of the Gaussian process other than components."""
        return self.prior.batch_shape if self.weights is None else self.prior.batch_shape[1:]

    def average(self, terms: Tensor) -> Tensor:
        """Return the mean over components of terms that lead with them."""
        return terms if self.weights is None else torch.tensordot(self.weights.to(terms), terms, 1)


def regression_of(
    guide: Variational,
    x: Tensor,
    y: Tensor,
    arguments: Mapping[str, Any] | None = None,
    *,
    propagation: Propagation | None = None,
) -> Regression:
    """Make a pass of a guide, in which q(v) of hidden functions alone are read, and return the regression of its model.

    :param propagation: propagation in the place of that of the guide.
    :raises ValueError: for a model of several observed Gaussian processes, with other random sites, or with other noise.
    """
    if guide.hidden and not (propagation or guide.propagation).carries_values:
        raise ValueError(
            f"the best q(v) is known for values of hidden layers, and {type(guide.propagation).__name__} carries moments: give the guide MonteCarlo(1), or train by ELBO"
        )
    if y is None:
        raise ValueError(
            "nothing is observed: pass y, and hand it on in the model, as in pyro.sample('y', likelihood(gp(x)), obs=y)"
        )
    weighted = guide.components(x, y, propagation=propagation, reading=HiddenPosterior(), **(arguments or {}))
    sites = [site for site in weighted.trace.nodes.values() if is_random(site) and not site_is_subsample(site)]
    hidden = [site for site in sites if not site["is_observed"]]
    observed = [site for site in sites if site["is_observed"]]
    functions = [site["fn"].priors if isinstance(site["fn"], Observation) else {} for site in observed]
    if any(weighted.record(site).marginal is None for site in hidden) or [len(each) for each in functions] != [1]:
        found = ", ".join(repr(site["name"]) for site in (*hidden, *observed))
        raise ValueError(
            "the collapsed bound is that of one Gaussian process under one observation, with hidden Gaussian processes below it or none, and "
            f"this model has the sites {found}: train by ELBO"
        )
    for site in sites:
        require_as_written(site)
    site = observed[0]
    fn: Observation = site["fn"]
    ((key, prior),) = fn.priors.items()
    if type(fn.conditional) is not GaussianConditional:  # a subclass may have another density
        raise ValueError(
            f"the collapsed bound is that of a Gaussian likelihood of the targets as they are, and {site['name']!r} has another one: train by "
            "ELBO, or standardise the targets before they are passed where the model does it"
        )
    target = fn.target(site["value"], prior.x)
    values = target.unsqueeze(-2) if fn.outputs == 1 else target.mT
    is_carried, counted = weighted.record(site).carried, weighted.log_weights.exp()
    return Regression(
        process_key(site["name"], key),
        prior.at(weighted.counted(prior.x)) if is_carried else prior,
        fn.conditional.variance,
        values,
        counted if is_carried else None,
        sum((_regularizer(weighted, each) for each in hidden), start=prior.x.new_zeros(())),
    )


def _regularizer(weighted: WeightedTrace, hidden: dict[str, Any]) -> Tensor:
    """Return the KL of a hidden function, the mean over components."""
    terms = weighted.record(hidden).regularizer
    assert terms is not None
    return weighted.average(terms) if terms.dim() else terms


def process_of(guide: Variational, key: str) -> Any:
    """Return the process of a Gaussian process.

    :raises ValueError: for one whose best q(v) is none of those that it can hold.
    """
    process = getattr(guide.processes, key)
    if not isinstance(process, WhitenedProcess):
        raise ValueError(
            f"the best q(v) is known for a basis of functions, and {key!r} has {type(process).__name__}: take InducingPoints"
        )
    if not isinstance(process.q, GaussianCoefficients) or process.q.kind != "full":
        raise ValueError(
            f"the best q(v) of {key!r} has a full covariance: give its family covariance='full', and leave out Orthogonal"
        )
    return process


def minus_bound(rows: int, noise: Tensor, rest: Tensor, *, factor: Tensor, products: Tensor) -> Tensor:
    """Return minus the bound with the best q(v), nats in total (Titsias 2009, Eq. 9).

    :param rows: number of rows, N.
    :param noise: noise variances s of the outputs.
    :param rest: ``sum_n r_n^2 + k(x_n, x_n) - a_n' a_n`` of each output.
    :param factor: factor of ``B = I + A A' / s``, ``(..., D_out or E, M, M)``.
    :param products: ``A r / s``, ``(..., D_out, M)``.
    """
    fitted = linalg.solve_broadcast(factor, products.unsqueeze(-1)).square().sum((-2, -1))
    half_log_determinants = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    each = 0.5 * (rows * (math.log(2 * math.pi) + noise.log()) + rest / noise - fitted) + half_log_determinants
    bound: Tensor = each.sum()
    return bound


@torch.no_grad()
def set_best(process: Any, factor: Tensor, products: Tensor) -> None:
    """Set q(v) to ``N(B^-1 p, B^-1)``.

    :param process: that of the guide.
    :param factor: factor of B, ``(..., D_out, M, M)``.
    :param products: p, ``(..., D_out, M)``.
    """
    inverse = linalg.solve_triangular(factor, linalg.identity(factor).expand_as(factor), upper=False)
    mean = (inverse.mT @ (inverse @ products.unsqueeze(-1))).squeeze(-1)
    scale = linalg.cholesky(inverse.mT @ inverse, 0.0, "the best q(v)")
    q = process.q
    q.mean = mean.to(q.mean).expand_as(q.mean).clone()
    q.scale = scale.to(q.scale).expand_as(q.scale).clone()
