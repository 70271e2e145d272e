"""Activations of a neural network as features of zonal kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from pyro.nn import PyroParam
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.internal.differentiation import clamped
from pyro_dgp.internal.gegenbauer import coefficients, gegenbauer, multiplicity, nodes
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.kernels.zonal import ZonalCovariance
from pyro_dgp.processes.basis import Basis
from pyro_dgp.processes.basis_family import BasisFamily
from pyro_dgp.processes.families import saved
from pyro_dgp.processes.initial_points import initial_points_of_groups
from pyro_dgp.processes.spherical_harmonics import present, spectrum, zonal

#: Functions of the cosine between a unit's weights and the inputs.
Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.relu,
    "softplus": torch.nn.functional.softplus,
    "erf": torch.erf,
}
#: Negative residual variance, as a share of the prior's, that is warned of.
_NEGATIVE = 1e-6


class ActivationBasis(Basis):
    """Basis of M units ``phi_m(x) = |x|^n s(cos(w_m, x))`` of lifted inputs, cut to the levels of the kernel (Dutordoir et al. 2021, 4).

    With ``s = sum_l s_l N(d, l) P_l`` and the eigenvalues lambda of the kernel, ``u_m = <phi_m, f>`` has
    ``cov(u_m, u_k) = sum_l s_l^2 / lambda_l N(d, l) P_l(w_m w_k)`` and ``cov(u_m, f(x)) = |x|^n sum_l s_l N(d, l) P_l(cos)``, over the
    levels that both have. The residual variance is never negative. The mean of q(f) is a network of one layer whose activation is a
    polynomial.

    :ivar directions: weights w of the units, ``(*groups, M, d)``; their lengths do not matter.
    :ivar levels: the levels, in rising order.
    :ivar profile: the activation at five cosines, and whether it is cut: what tells a saved state from that of another activation.
    """

    levels: Tensor
    profile: Tensor
    layout: ClassVar[tuple[str, ...]] = ("levels", "profile")
    is_cut: ClassVar[bool] = True

    def __init__(self, directions: Tensor, levels: Tensor, activation: Activation, groups: int = 0) -> None:
        super().__init__()
        self.activation = activation
        self.groups, self.size = Size(directions.shape[:groups]), directions.shape[-2]
        self.directions = PyroParam(directions.clone(), event_dim=directions.dim())
        self.register_buffer("levels", levels)
        self._levels: list[int] = levels.tolist()
        cosines = torch.linspace(-1.0, 1.0, 5).to(directions)
        self.register_buffer("profile", torch.cat([activation(cosines), cosines.new_tensor([self.is_cut])]).detach())

    def _parts(self, prior: FunctionPrior) -> tuple[ZonalCovariance, Tensor, Tensor, Tensor]:
        """Return the covariance function, the units' directions, and ``s_l`` and ``lambda_l`` of the levels."""
        covariance, w = zonal(prior), self.of_groups("directions").unsqueeze(-3)
        dimension = w.shape[-1]
        if prior.x.shape[-1] + 1 != dimension:
            raise ValueError(
                f"the units of {prior.name!r} have {dimension - 1} inputs and it has {prior.x.shape[-1]}: pass inputs of as many columns as "
                "guide.initialize got"
            )
        count = self._levels[-1] + 1
        s = coefficients(self.activation(nodes(dimension, w)), max(count, 2), dimension)[self._levels]
        eigenvalues = spectrum(covariance, max(count, 2), dimension)[..., self._levels]
        return covariance, w / w.norm(dim=-1, keepdim=True), s, eigenvalues

    def _sum(self, cosine: Tensor, weights: Tensor, dimension: int) -> Tensor:
        """Return ``sum_l weights_l N(d, l) P_l(t)``."""
        polynomials = gegenbauer(cosine, max(self._levels[-1] + 1, 2), dimension)
        numbers = [multiplicity(dimension, level) for level in self._levels]
        terms = [
            weights[..., i, None, None] * number * polynomials[level]
            for i, (level, number) in enumerate(zip(self._levels, numbers, strict=True))
        ]
        return torch.stack(torch.broadcast_tensors(*terms)).sum(0)

    def unit_values(self, cosine: Tensor, s: Tensor, dimension: int) -> Tensor:
        """Return the activation at cosines, cut to the levels."""
        return self._sum(cosine, s, dimension)

    def root(self, prior: FunctionPrior) -> Tensor:
        """Return the Cholesky factor of ``K_uu``."""
        return self._root(prior, *self._parts(prior))

    def cross(self, prior: FunctionPrior) -> Tensor:
        """Return ``cov(u, f(x))``, ``(..., E, M, N)``: the hidden layer of the network."""
        return self._cross(prior, *self._parts(prior))

    def columns(self, prior: FunctionPrior) -> Tensor:
        """See :class:`~pyro_dgp.processes.basis.Basis`."""
        parts = self._parts(prior)
        return linalg.solve_broadcast(self._root(prior, *parts), self._cross(prior, *parts))

    def _root(
        self, prior: FunctionPrior, covariance: ZonalCovariance, w: Tensor, s: Tensor, eigenvalues: Tensor
    ) -> Tensor:
        k_uu = self._sum(clamped(w @ w.mT, -1.0, 1.0), s.square() / eigenvalues, w.shape[-1])
        return linalg.cholesky(k_uu, prior.jitter, prior.name)

    def _cross(
        self, prior: FunctionPrior, covariance: ZonalCovariance, w: Tensor, s: Tensor, eigenvalues: Tensor
    ) -> Tensor:
        lifted = covariance.lift(prior.x.unsqueeze(-3))
        norms = lifted.norm(dim=-1, keepdim=True)
        cosine = clamped(w @ (lifted / norms).mT, -1.0, 1.0)
        return norms.mT**covariance.degree * self.unit_values(cosine, s, w.shape[-1])


class PublishedActivationBasis(ActivationBasis):
    """The basis of Dutordoir et al. 2021 as published: ``cov(u, f(x))`` has the whole activation, ``K_uu`` the levels of the kernel alone.

    The mean of q(f) is a network with this activation. The residual variance can be negative, since the levels of the activation beyond
    those of ``K_uu`` have no norm there.
    """

    is_cut: ClassVar[bool] = False

    def unit_values(self, cosine: Tensor, s: Tensor, dimension: int) -> Tensor:
        """Return the activation at cosines."""
        return self.activation(cosine)

    def remarks(self, prior: FunctionPrior) -> Iterator[str]:
        """Iterate over one sentence if what is left of the variance is negative, as training makes it."""
        return _too_much_variance(self, prior)


def _too_much_variance(basis: ActivationBasis, prior: FunctionPrior) -> Iterator[str]:
    """Iterate over one sentence if the units have more variance than the kernel at some of the prior's inputs."""
    with torch.no_grad():
        left = (prior.variance.mT - linalg.column_squares(basis.columns(prior))) / prior.variance.mT
    least = float(left.min())
    if least < -_NEGATIVE:
        yield (
            f"the units of {prior.name!r} have more variance than its kernel, by {-least:.2g} of it, at {float((left < -_NEGATIVE).double().mean()):.0%} "
            "of its inputs, and what is left is taken as 0: the published features do not bound it, so that the loss is no bound and variances are "
            "wrong; take ActivationFeatures, whose activation is cut to the kernel's levels"
        )


@dataclass(frozen=True)
class ActivationFeatures(BasisFamily):
    """Units of a neural network as features for every GP of a model with zonal kernels, cut to the levels of the kernel.

    All units are sums of the spherical harmonics on these levels. There are at most twice as many units: 18 for one input and 8 levels of the
    arc-cosine kernel, which has 9 harmonics there.

    :param num_units: M at most.
    :param activation: ``relu``, ``softplus``, ``erf``, or a function of the cosine.
    :param covariance: form of the covariance of q(v): ``full``, ``diagonal``, ``delta`` or ``prior``.
    :param num_levels: number of levels of spherical harmonics, those included that kernel or activation have not.
    :param hidden_scale: initial standard deviation of v in layers below the top, and ``scale`` that in the top layer.

    >>> import torch
    >>> from pyro_dgp import ActivationFeatures, ArcCosine, GaussianProcess
    >>> prior = GaussianProcess(ArcCosine(1))(torch.randn(50, 3))
    >>> basis = ActivationFeatures(10, "softplus").create(prior, hidden=False).basis
    >>> basis.levels.tolist(), basis.directions.shape
    ([0, 1, 2, 4, 6], torch.Size([10, 4]))
    """

    num_units: int = 128
    activation: str | Activation = "relu"
    covariance: str = "full"
    _: KW_ONLY
    num_levels: int = 8
    hidden_scale: float = 1e-2
    scale: float = 1.0
    kind: ClassVar[type[ActivationBasis]] = ActivationBasis

    def __post_init__(self) -> None:
        if min(self.num_units, self.num_levels) < 1:
            raise ValueError(f"num_units and num_levels must be at least 1, got {self.num_units} and {self.num_levels}")
        if isinstance(self.activation, str) and self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation is one of {', '.join(ACTIVATIONS)}, or a function of the cosine, not {self.activation!r}"
            )
        self.require_sound()

    @property
    def num_inducing(self) -> int:  # type: ignore[override]
        """M at most."""
        return self.num_units

    @property
    def function(self) -> Activation:
        """The activation as a function."""
        return ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation

    def basis(self, prior: FunctionPrior, beside: Basis | None = None) -> ActivationBasis:
        """Return a basis whose units look at k-means centres of the prior's inputs."""
        covariance, x = zonal(prior), prior.x.detach()
        lifted = covariance.lift(x.unsqueeze(-3)).detach()[..., 0, :, :]
        levels = self._levels(covariance, lifted)
        if not len(levels):
            raise ValueError(
                f"the activation and the kernel of {prior.name!r} have none of the first {self.num_levels} levels of spherical harmonics in common: take "
                "more levels, num_levels=, or another activation"
            )
        harmonics = sum(multiplicity(lifted.shape[-1], level) for level in levels.tolist())
        units = min(self.num_units, 2 * harmonics)
        directions = initial_points_of_groups(lifted / lifted.norm(dim=-1, keepdim=True), units, prior.name)
        basis = self.kind(directions, levels, self.function, len(prior.batch_shape))
        for sentence in _too_much_variance(basis, prior):
            warn_user(sentence)
        return basis

    def _levels(self, covariance: ZonalCovariance, lifted: Tensor) -> Tensor:
        """Return the levels that both the kernel and the activation have."""
        dimension, count = lifted.shape[-1], max(self.num_levels, 2)
        eigenvalues = spectrum(covariance, count, dimension).detach()
        s = coefficients(self.function(nodes(dimension, lifted)), count, dimension)
        both = present(eigenvalues).flatten(0, -2).all(0) & present(s)
        return torch.nonzero(both[: self.num_levels]).squeeze(-1)

    def restored_basis(self, state: dict[str, Tensor]) -> ActivationBasis:
        """See :class:`~pyro_dgp.processes.basis_family.BasisFamily`."""
        directions, levels = saved(state, "directions", "levels")
        return self.kind(torch.ones_like(directions), levels.clone(), self.function, directions.dim() - 2)


@dataclass(frozen=True)
class PublishedActivationFeatures(ActivationFeatures):
    """Units of a neural network as published (Dutordoir et al. 2021): the mean is a network with this activation.

    The residual variance can be negative, of which a guide warns when it is initialised. Training seeks such variances, since the loss falls with
    them: look at :func:`~pyro_dgp.remarks` after it. Parameters are those of :class:`ActivationFeatures`.
    """

    kind: ClassVar[type[ActivationBasis]] = PublishedActivationBasis
