"""Spherical harmonics as features of zonal kernels."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.internal.gegenbauer import coefficients, fundamental_set, gegenbauer, multiplicity, nodes
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.kernels.zonal import ZonalCovariance
from pyro_dgp.processes.basis import Basis
from pyro_dgp.processes.basis_family import BasisFamily
from pyro_dgp.processes.families import saved

#: Share of the largest eigenvalue below which a level is absent from the spectrum of a kernel, beyond what rounding leaves of zero.
_ABSENT = {torch.float64: 1e-10, torch.float32: 1e-6}
#: Share of a later eigenvalue below which a level is absent from the spectrum of a kernel.
_MISSING = 1e-3


def zonal(prior: FunctionPrior) -> ZonalCovariance:
    """Return the covariance function of a prior if it is zonal.

    :raises ValueError: for any other.
    """
    if not isinstance(prior.covariance, ZonalCovariance):
        kind = type(prior.covariance).__name__.removesuffix("Covariance")
        raise ValueError(
            f"features on the sphere of {prior.name!r} are those of a zonal kernel by itself, and its kernel is {kind}: take ArcCosine() or "
            "Spherical(Matern52()), whose variances train, and leave noise to the likelihood"
        )
    return prior.covariance


def spectrum(covariance: ZonalCovariance, levels: int, dimension: int, *, floor: bool = True) -> Tensor:
    """Return the eigenvalues of a zonal kernel on the sphere, ``(..., E, levels)``, under the uniform distribution (Funk-Hecke).

    Those that are zero but for rounding, or vanish as a lengthscale grows, stay at a small share of the first.
    """
    values = coefficients(covariance.shape(nodes(dimension, covariance.scale)), levels, dimension)
    if not floor:
        return values
    return torch.maximum(values, 1e-2 * _ABSENT[values.dtype] * values.detach().amax(-1, keepdim=True))


def present(values: Tensor) -> Tensor:
    """Tell which of the coefficients ``(..., levels)`` of an even function, or of a kernel, are not zero."""
    return values.abs() > _ABSENT[values.dtype] * values.abs().amax(-1, keepdim=True)


class HarmonicBasis(Basis):
    """Basis of the spherical harmonics Y of some levels: ``a(x) = sqrt(lambda_l) |x|^n Y_lj(x / |x|)`` of lifted inputs.

    The functionals are ``u_lj = <|x|^n Y_lj, f>``, whose covariance is diagonal, ``1 / lambda_l`` (Dutordoir et al. 2020, Eq. 13).
    ``sum_j Y_lj(x) Y_lj(z) = N(d, l) P_l(x z)``, so that ``A'A`` is the kernel with its spectrum cut to these levels.

    :ivar levels: the levels, in rising order.
    :ivar dimension: d, the number of inputs and one for the bias.
    """

    levels: Tensor
    layout: ClassVar[tuple[str, ...]] = ("levels", "dimension_number")

    def __init__(self, levels: Tensor, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension
        self.register_buffer("levels", levels)
        self.register_buffer("dimension_number", torch.tensor(dimension))
        self._levels: list[int] = levels.tolist()
        self.size = sum(multiplicity(dimension, level) for level in self._levels)
        for level in self._levels:
            points, gain = fundamental_set(dimension, level)
            self.register_buffer(f"points_{level}", points, persistent=False)
            self.register_buffer(f"gain_{level}", gain, persistent=False)

    def columns(self, prior: FunctionPrior) -> Tensor:
        """See :class:`~pyro_dgp.processes.basis.Basis`."""
        covariance = zonal(prior)
        lifted = covariance.lift(prior.x.unsqueeze(-3))
        if lifted.shape[-1] != self.dimension:
            raise ValueError(
                f"the features of {prior.name!r} are those of {self.dimension - 1} inputs and it has {lifted.shape[-1] - 1}: pass inputs of "
                "as many columns as guide.initialize got"
            )
        norms = lifted.norm(dim=-1, keepdim=True)
        directions, powers = lifted / norms, norms.mT**covariance.degree
        roots = self._eigenvalues(covariance).sqrt()
        parts = []
        for number, level in enumerate(self._levels):
            points, gain = (getattr(self, f"{name}_{level}").to(directions) for name in ("points", "gain"))
            polynomial = gegenbauer(points @ directions.mT, max(level + 1, 2), self.dimension)[level]
            parts.append(roots[..., number, None, None] * (gain @ polynomial))
        return powers * linalg.stacked(*parts)

    def root(self, prior: FunctionPrior) -> Tensor:
        """See :class:`~pyro_dgp.processes.basis.Basis`."""
        roots = self._eigenvalues(zonal(prior)).rsqrt()
        sizes = torch.tensor([multiplicity(self.dimension, level) for level in self._levels], device=roots.device)
        return torch.diag_embed(roots.repeat_interleave(sizes, -1))

    def _eigenvalues(self, covariance: ZonalCovariance) -> Tensor:
        """Return the eigenvalues of the levels."""
        return spectrum(covariance, max(self._levels[-1] + 1, 2), self.dimension)[..., self._levels]


@dataclass(frozen=True)
class SphericalHarmonics(BasisFamily):
    """Spherical harmonics for every GP of a model with zonal kernels (Dutordoir et al. 2020): :class:`ArcCosine` or :class:`Spherical`.

    Harmonics come in whole levels, whose sizes grow as the power d - 2 of the level in d dimensions, one for each input and one for the
    bias. Levels that the kernel has not, such as odd ones above 1 of the arc-cosine kernel of order 1, are left out.

    :param num_features: M at most: levels are added, from the smoothest, until the next one would exceed it.
    :param covariance: form of the covariance of q(v): ``full``, ``diagonal``, ``delta`` or ``prior``.
    :param hidden_scale: initial standard deviation of v in layers below the top, and ``scale`` that in the top layer.

    >>> import torch
    >>> from pyro_dgp import ArcCosine, GaussianProcess, SphericalHarmonics
    >>> prior = GaussianProcess(ArcCosine(1))(torch.randn(5, 8))
    >>> basis = SphericalHarmonics(100).create(prior, hidden=False).basis
    >>> basis.levels.tolist(), basis.size
    ([0, 1, 2], 54)
    """

    num_features: int = 128
    covariance: str = "full"
    _: KW_ONLY
    hidden_scale: float = 1e-2
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.num_features < 1:
            raise ValueError(f"num_features must be at least 1, got {self.num_features}")
        self.require_sound()

    @property
    def num_inducing(self) -> int:  # type: ignore[override]
        """M at most."""
        return self.num_features

    def basis(self, prior: FunctionPrior, beside: Basis | None = None) -> HarmonicBasis:
        """Return a basis of as many whole levels as fit."""
        covariance, dimension = zonal(prior), prior.x.shape[-1] + 1
        found: list[int] = []
        level, size = 0, 0
        while level < 60:
            if self._is_present(covariance, level, dimension):
                size += multiplicity(dimension, level)
                if size > self.num_features and found:
                    self._warn_of_few(prior, size, size - multiplicity(dimension, level))
                    break
                found.append(level)
            level += 1
        return HarmonicBasis(torch.tensor(found), dimension).to(prior.x)

    def _warn_of_few(self, prior: FunctionPrior, more: int, size: int) -> None:
        if 2 * size < self.num_features:
            warn_user(
                f"{size} of at most {self.num_features} harmonics of {prior.name!r} are taken, since they come in whole levels and the next one makes them "
                f"{more}: take SphericalHarmonics({more}), or Orthogonal(SphericalHarmonics({size}), InducingPoints({self.num_features - size}))"
            )

    @staticmethod
    def _is_present(covariance: ZonalCovariance, level: int, dimension: int) -> bool:
        """Tell whether a kernel has a level. One that it has not is next to nothing beside a later one; a level that is small since the
        spectrum falls fast counts, because a shorter lengthscale raises it."""
        values = spectrum(covariance, level + 3, dimension, floor=False).detach().abs()
        return bool((values[..., level] > _MISSING * values[..., level + 1 :].amax(-1)).all())

    def restored_basis(self, state: dict[str, Tensor]) -> HarmonicBasis:
        """See :class:`~pyro_dgp.processes.basis_family.BasisFamily`."""
        levels, dimension = saved(state, "levels", "dimension_number")
        return HarmonicBasis(levels.clone(), int(dimension))
