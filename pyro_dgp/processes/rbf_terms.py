"""The radial basis function kernel inside a covariance function, which moment matching integrates in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch

from torch import Tensor

from pyro_dgp.kernels.covariance import Covariance, ScaledCovariance, SumCovariance
from pyro_dgp.kernels.rbf import RBF
from pyro_dgp.kernels.stationary import Scaling, StationaryCovariance
from pyro_dgp.kernels.white import WhiteCovariance

_REMEDY = "take RBF(ard=D), to which White() may be added, or carry hidden layers by MonteCarlo(10)"


@dataclass(frozen=True)
class RBFTerm:
    """The kernel ``variance * exp(-|(x - z) * reciprocal|^2 / 2)``, beside white noise.

    :ivar reciprocal: of the lengthscales, ``(E, 1, D or 1)``.
    :ivar variance: ``(E,)``.
    :ivar white: variance of the white noise, ``(E,)`` or 0.
    """

    reciprocal: Tensor
    variance: Tensor
    white: Tensor | float = 0.0


@singledispatch
def rbf_term(covariance: Covariance, name: str) -> RBFTerm:
    """Return the one radial basis function kernel that a covariance function is made of.

    :param name: the Gaussian process, for messages.
    :raises ValueError: for any other covariance function.
    """
    kind = type(covariance).__name__.removesuffix("Covariance")
    raise ValueError(
        f"moment matching integrates radial basis function kernels, and the kernel of {name!r} is {kind}: {_REMEDY}"
    )


@rbf_term.register
def _stationary(covariance: StationaryCovariance, name: str) -> RBFTerm:
    if covariance.correlation is not RBF.correlation or not isinstance(covariance.warp, Scaling):
        raise ValueError(
            f"moment matching integrates radial basis function kernels, and the kernel of {name!r} is another one: {_REMEDY}"
        )
    return RBFTerm(covariance.warp.reciprocal, covariance.variance)


@rbf_term.register
def _scaled(covariance: ScaledCovariance, name: str) -> RBFTerm:
    part = rbf_term(covariance.part, name)
    return replace(part, variance=part.variance * covariance.variance, white=part.white * covariance.variance)


@rbf_term.register
def _sum(covariance: SumCovariance, name: str) -> RBFTerm:
    white: Tensor | float = 0.0
    terms = []
    for part in covariance.parts:
        if isinstance(part, WhiteCovariance):
            white = white + part.variance
        else:
            terms.append(rbf_term(part, name))
    if len(terms) != 1:
        raise ValueError(
            f"moment matching integrates one radial basis function kernel, and that of {name!r} is a sum of {len(terms)}: {_REMEDY}"
        )
    return replace(terms[0], white=white + terms[0].white)


def require_no_batches(term: RBFTerm, name: str) -> None:
    """Raise for hyperparameters with batch axes, of which closed forms take one at a time."""
    if term.variance.dim() > 1 or term.reciprocal.dim() > 3:
        raise ValueError(
            f"the hyperparameters of {name!r} have batch axes, of which moment matching takes none: draw one particle at a time, "
            "vectorize_particles=False"
        )
