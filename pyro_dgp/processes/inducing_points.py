"""Inducing points: function values at learned inputs."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral

import torch
from pyro.nn import PyroParam
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.internal.blocks import column_blocks
from pyro_dgp.kernels.factor_faults import explained
from pyro_dgp.processes.base import KnownValues
from pyro_dgp.processes.basis import SMALLEST_VARIANCE, Basis
from pyro_dgp.processes.basis_family import BasisFamily
from pyro_dgp.processes.conditional_moments import conditional_moments
from pyro_dgp.processes.families import saved
from pyro_dgp.processes.initial_points import initial_points_of_groups, points_beside
from pyro_dgp.processes.whitened_gaussian import Gaussian, IndependentGaussians


class InducingPointBasis(Basis):
    """Basis ``a(x) = L_z^-1 k(Z, x)`` of the function values ``u = f(Z) - m(Z)`` at M learned inputs, ``K_zz = L_z L_z'``.

    | attribute | shape |
    |---|---|
    | ``inducing_points`` | ``(*groups, M, D)``, or ``(*groups, D_out, M, D)`` for a set per output |
    """

    def __init__(self, inducing_points: Tensor, groups: int = 0) -> None:
        """Create the basis.

        :param groups: number of axes of groups with which the points lead.
        """
        super().__init__()
        self.groups, self.size = Size(inducing_points.shape[:groups]), inducing_points.shape[-2]
        self.inducing_points = PyroParam(inducing_points.clone(), event_dim=inducing_points.dim())

    def points(self, prior: FunctionPrior) -> Tensor:
        """Return the inducing points with an axis for the outputs, ``(*groups, E, M, D)``."""
        z = self.of_groups("inducing_points")
        if z.shape[-1] != prior.x.shape[-1]:
            raise ValueError(
                f"the inducing points of {prior.name!r} have {z.shape[-1]} dimensions and its inputs {prior.x.shape[-1]}: "
                "pass inputs of as many columns as guide.initialize got"
            )
        return z if z.dim() == len(self.groups) + 3 else z.unsqueeze(-3)

    def root(self, prior: FunctionPrior) -> Tensor:
        """Return the Cholesky factor of ``K_zz``."""
        z = self.points(prior)
        try:
            return linalg.cholesky(prior.covariance.matrix(z), prior.jitter, prior.name)
        except linalg.NotPositiveDefiniteError as error:
            raise explained(error, prior.covariance, z, "inducing points") from error

    def columns(self, prior: FunctionPrior) -> Tensor:
        """See :class:`~pyro_dgp.processes.basis.Basis`."""
        return linalg.solve_columns(
            self.root(prior), prior.covariance.matrix(self.points(prior), prior.x.unsqueeze(-3))
        )

    def known_values(self, prior: FunctionPrior, q: Gaussian, num_draws: int) -> KnownValues:
        """Draw v from q(v)."""
        return KnownValues(self.points(prior), self.root(prior), q.draw(num_draws))

    def moments(self, prior: FunctionPrior, q: Gaussian) -> tuple[Tensor, Tensor]:
        """Return both moments; batch and particle axes are folded into the columns of one product.

        Where hyperparameters are batched, or groups have points of their own, nothing is folded.
        """
        if isinstance(q, IndependentGaussians):
            return super().moments(prior, q)
        z = self.points(prior)
        from_points = prior.covariance.from_points(z)
        k_zz = from_points.within()
        folded = k_zz.dim() == 3 and q.mean.dim() == 2
        x = prior.x.reshape(1, -1, prior.x.shape[-1]) if folded else prior.x.unsqueeze(-3)
        blocks = column_blocks(x, *q.mean.shape) if folded else (x,)
        k_zx = [from_points.to(block) for block in blocks]
        try:
            loc, change = conditional_moments(k_zz, k_zx, q, prior.jitter, prior.name)
        except linalg.NotPositiveDefiniteError as error:
            raise explained(error, prior.covariance, z, "inducing points") from error
        variance = prior.covariance.diagonal(x) + change
        loc, variance = torch.broadcast_tensors(loc, variance.clamp_min(SMALLEST_VARIANCE))
        if not folded:
            return loc.mT, variance.mT
        shape = (prior.num_outputs, *prior.x.shape[:-1])
        return loc.reshape(shape).movedim(0, -1), variance.reshape(shape).movedim(0, -1)


@dataclass(frozen=True)
class InducingPoints(BasisFamily):
    """Whitened inducing points for every GP of a model ([DSVI] 3.7; Hensman et al. 2013).

    :param num_inducing: number of points, M. If it exceeds the number of distinct training inputs, it is reduced to that number, with a
        warning.
    :param covariance: form of the covariance of q(v) for each output: ``full``, ``diagonal``, ``delta`` (a point
        estimate), or ``prior`` (a learned mean beside the covariance of the prior).
    :param per_output: whether each output of a layer has an inducing set of its own or all share one.
    :param hidden_scale: initial standard deviation of v in layers below the top. It is small so that training by samples
        starts from the mean functions. Sigma points would start almost merged, and stay so where data are few: give them
        1.0.
    :param scale: initial standard deviation of v in the top layer.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, MonteCarlo, Variational
    >>> x, y = torch.randn(20, 3), torch.randn(20)
    >>> guide = Variational(DeepGP(x, layers=1), InducingPoints(20, covariance="diagonal"), MonteCarlo(1))
    >>> guide.initialize(x, y)
    >>> process = getattr(guide.processes, "y/f")
    >>> process.basis.inducing_points.shape, process.q.scale.shape
    (torch.Size([20, 3]), torch.Size([1, 20]))
    """

    num_inducing: int = 128
    covariance: str = "full"
    per_output: bool = False
    _: KW_ONLY
    hidden_scale: float = 1e-2
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.num_inducing, Integral) or self.num_inducing < 1:
            raise ValueError(f"num_inducing must be a whole number, at least 1, got {self.num_inducing!r}")
        self.require_sound()

    def basis(self, prior: FunctionPrior, beside: Basis | None = None) -> InducingPointBasis:
        """Return a basis at k-means centres of the prior's inputs, or where another basis leaves most variance. Groups have points of their own."""
        if beside is None:
            points = initial_points_of_groups(prior.x.detach(), self.num_inducing, prior.name)
        else:
            points = points_beside(beside, prior, self.num_inducing)
        if self.per_output:
            points = points.unsqueeze(-3).repeat_interleave(prior.num_outputs, -3)
        return InducingPointBasis(points, len(prior.batch_shape))

    def restored_basis(self, state: dict[str, Tensor]) -> InducingPointBasis:
        """See :class:`~pyro_dgp.processes.basis_family.BasisFamily`."""
        (points,) = saved(state, "inducing_points")
        return InducingPointBasis(torch.zeros_like(points), points.dim() - 2 - self.per_output)
