"""The one GP of a regression model, with its noise and its targets, and the process that a guide has for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.scales_and_masks import require_as_written
from pyro_dgp.guides.sites import is_random
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal import linalg
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.gaussian import GaussianConditional
from pyro_dgp.processes import GaussianCoefficients, WhitenedProcess


@dataclass(frozen=True)
class SingleRegression:
    """A model that observes one Gaussian process under Gaussian noise, as one run of it shows it.

    :ivar key: name of its process in a guide.
    :ivar prior: the Gaussian process at the inputs of the run.
    :ivar noise: variance of the noise, a number for each output, ``(D_out,)`` or ``(1,)``.
    :ivar values: the targets, ``(..., D_out, N)``.
    """

    key: str
    prior: FunctionPrior
    noise: Tensor
    values: Tensor


def regression_of(
    guide: Variational, x: Tensor, y: Tensor, arguments: Mapping[str, Any] | None = None
) -> SingleRegression:
    """Run the model of a guide and return its regression.

    :raises ValueError: for a model of several Gaussian processes, with other random sites, or with other noise.
    """
    trace = poutine.trace(guide.model).get_trace(x, y, **(arguments or {}))
    latent = [name for name in trace.stochastic_nodes if not site_is_subsample(trace.nodes[name])]
    observed = [trace.nodes[name] for name in trace.observation_nodes if is_random(trace.nodes[name])]
    functions = [site["fn"].priors if isinstance(site["fn"], Observation) else {} for site in observed]
    if latent or [len(priors) for priors in functions] != [1]:
        found = ", ".join(map(repr, (*latent, *(site["name"] for site in observed))))
        raise ValueError(
            f"the collapsed bound is that of one Gaussian process under one observation, and this model has the sites {found}: train by ELBO"
        )
    site = observed[0]
    require_as_written(site)
    fn: Observation = site["fn"]
    ((key, prior),) = fn.priors.items()
    if type(fn.conditional) is not GaussianConditional:  # a subclass may have another density
        raise ValueError(
            f"the collapsed bound is that of a Gaussian likelihood of the targets as they are, and {site['name']!r} has another one: train by "
            "ELBO, or standardise the targets before they are passed where the model does it"
        )
    target = fn.target(site["value"], prior.x)
    values = target.unsqueeze(-2) if fn.outputs == 1 else target.mT
    return SingleRegression(process_key(site["name"], key), prior, fn.conditional.variance, values)


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
