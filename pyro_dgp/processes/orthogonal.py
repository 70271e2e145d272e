"""Orthogonal decoupling: one basis, and a second one for what the first leaves of the prior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.processes.base import KnownCoefficients, KnownValues, Process
from pyro_dgp.processes.basis import Basis
from pyro_dgp.processes.basis_family import BasisFamily
from pyro_dgp.processes.coefficients import IndependentCoefficients
from pyro_dgp.processes.families import ProcessFamily
from pyro_dgp.processes.whitened import WhitenedProcess
from pyro_dgp.processes.whitened_gaussian import Gaussian

#: Share of the variance of a kernel below zero that is no rounding.
_NEGATIVE = 0.1


class OrthogonalBasis(Basis):
    """Basis ``(a(x), c(x))``: a first basis a, and a second one for the residual process ``r = f - m - a' v`` (Shi et al. 2020, Eq. 6).

    Let w be functionals of f that the second basis is made of, with covariance ``K_ww`` and cross-covariances ``k_w(x)``, and
    ``C = cov(w, v_a)``. Given v_a they have the covariance ``K_ww - C C' = L L'``, and ``c(x) = L^-1 (k_w(x) - C a(x))``. Both sets of
    coefficients are independent under the prior.

    :ivar first: the basis a.
    :ivar second: the basis of which c is made. For points w are function values, for others the coefficients of that basis alone.
    """

    def __init__(self, first: Basis, second: Basis) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.size, self.groups = first.size + second.size, first.groups or second.groups

    def columns(self, prior: FunctionPrior) -> Tensor:
        """See :class:`~pyro_dgp.processes.basis.Basis`."""
        points = self.second.points(prior)
        if points is None:
            a, features = self.first.columns(prior), self.second.columns(prior)
            cross = self._overlap(prior).mT
            factor = self._factor(linalg.identity(cross @ cross.mT), cross, prior)
        else:
            a, cross = self._first_columns(prior, points)
            features = prior.covariance.matrix(points, prior.x.unsqueeze(-3))
            factor = self._factor(prior.covariance.matrix(points), cross, prior)
        c = linalg.solve_broadcast(factor, features - cross @ a)
        return linalg.stacked(a, c)

    def root(self, prior: FunctionPrior) -> Tensor:
        """Return the root of the covariance of both sets of functionals, ``((R, 0), (C, L))`` where the second are points."""
        points, first = self.second.points(prior), self.first.root(prior)
        if points is None:
            second, cross = self.second.root(prior), self._overlap(prior).mT
            factor = second @ self._factor(linalg.identity(cross @ cross.mT), cross, prior)
            cross = second @ cross
        else:
            cross = _columns_at(self.first, prior, points).mT
            factor = self._factor(prior.covariance.matrix(points), cross, prior)
        below = linalg.stacked(cross.mT, factor.mT).mT
        return linalg.stacked(torch.nn.functional.pad(first, (0, self.second.size)), below)

    def points(self, prior: FunctionPrior) -> Tensor | None:
        """Return the points of both, where both are of points."""
        first, second = self.first.points(prior), self.second.points(prior)
        if first is None or second is None:
            return None
        return linalg.stacked(first, second)

    def remarks(self, prior: FunctionPrior) -> Iterator[str]:
        """Iterate over those of both bases."""
        yield from self.first.remarks(prior)
        yield from self.second.remarks(prior)

    def known_values(self, prior: FunctionPrior, q: Gaussian, num_draws: int) -> KnownValues | KnownCoefficients:
        """Draw the function values at all points, or the coefficients of other bases."""
        points = self.points(prior)
        if points is None:
            return super().known_values(prior, q, num_draws)
        return KnownValues(points, self.root(prior), q.draw(num_draws))

    def _first_columns(self, prior: FunctionPrior, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the columns of the first basis at ``prior.x``, and C; in one pass where all outputs share the points."""
        if points.shape[-3] > 1 or points.shape[:-3] != prior.x.shape[:-2]:
            return self.first.columns(prior), _columns_at(self.first, prior, points).mT
        both = self.first.columns(prior.at(torch.cat([points.squeeze(-3), prior.x], -2)))
        return both[..., self.second.size :], both[..., : self.second.size].mT

    def _overlap(self, prior: FunctionPrior) -> Tensor:
        """Return ``cov(v_a, v_b)``, ``(..., E, M_first, M_second)``, for a second basis that is not of points."""
        points = self.first.points(prior)
        if points is None:
            return self.first.overlap_with(self.second, prior)
        rows = _columns_at(self.second, prior, points).mT
        return linalg.solve_broadcast(self.first.root(prior), rows)

    @staticmethod
    def _factor(covariance: Tensor, cross: Tensor, prior: FunctionPrior) -> Tensor:
        """Return L. Next to nothing may be left of the covariance: the jitter is relative to the whole, and grows until it covers rounding.

        More jitter than needed makes c smaller: the residual variance stays that of a prior.
        """
        level, left = covariance.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True), covariance - cross @ cross.mT
        try:
            return linalg.cholesky(left, prior.jitter, prior.name, level=level, largest=1.0)
        except linalg.NotPositiveDefiniteError as error:
            least = float((left.diagonal(dim1=-2, dim2=-1) / level).min())
            if not least < -_NEGATIVE:
                raise
            raise linalg.NotPositiveDefiniteError(
                f"the first features of {prior.name!r} leave {least:.2g} of the variance of its kernel for the second, which is negative (input is not "
                "positive-definite): take features that bound it, such as ActivationFeatures in the place of PublishedActivationFeatures"
            ) from error


def _columns_at(basis: Basis, prior: FunctionPrior, points: Tensor) -> Tensor:
    """Return the columns of a basis at points of each output, ``(..., E, M, K)``."""
    outputs = points.shape[-3]
    parts = [basis.columns(prior.at(points[..., e, :, :])) for e in range(outputs)]
    if outputs == 1:
        return parts[0]
    return torch.cat([part[..., min(e, part.shape[-3] - 1), None, :, :] for e, part in enumerate(parts)], -3)


@dataclass(frozen=True)
class Orthogonal(ProcessFamily):
    """A family, and a second one for what the first leaves of the prior: one of the two is inducing points.

    | recipe | name | paper |
    |---|---|---|
    | ``Orthogonal(InducingPoints(M), InducingPoints(K))`` | SOLVE-GP | Shi, Titsias and Mnih 2020 |
    | ``Orthogonal(InducingPoints(M), InducingPoints(K, "prior"))`` | orthogonally decoupled: K points for the mean alone | Salimbeni et al. 2018 |

    :param first: a family with a basis, such as ``InducingPoints(64)``.
    :param second: another. Inducing points start where the first basis leaves most of the prior's variance.

    >>> import torch
    >>> from pyro_dgp import GaussianProcess, InducingPoints, Matern52, Orthogonal
    >>> prior = GaussianProcess(Matern52())(torch.randn(20, 3))
    >>> process = Orthogonal(InducingPoints(5), InducingPoints(3, "prior")).create(prior, hidden=False)
    >>> process.basis.size, [part.kind for part in process.q.parts]
    (8, ['full', 'prior'])
    """

    first: BasisFamily
    second: BasisFamily

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            if not isinstance(getattr(self, name), BasisFamily):
                raise TypeError(
                    f"{name} is a family with a basis, such as InducingPoints(64), not {getattr(self, name)!r}"
                )

    @property
    def num_inducing(self) -> int:  # type: ignore[override]
        """Sum of those of both families."""
        return self.first.num_inducing + self.second.num_inducing

    def create(self, prior: FunctionPrior, hidden: bool) -> WhitenedProcess:
        """Create a process, initialised at the prior's inputs."""
        first = self.first.basis(prior)
        second = self.second.basis(prior, beside=first)
        parts = [
            family.coefficients(prior, basis, hidden) for family, basis in ((self.first, first), (self.second, second))
        ]
        return WhitenedProcess(OrthogonalBasis(first, second), IndependentCoefficients(*parts))

    def restore(self, state: dict[str, Tensor]) -> WhitenedProcess:
        """Create a process in the shapes of a state dict."""
        parts = []
        for number, (family, name) in enumerate(((self.first, "first"), (self.second, "second"))):
            own = {
                f"basis.{key.removeprefix(f'basis.{name}.')}": v for key, v in state.items() if f"basis.{name}." in key
            }
            own |= {
                f"q.{key.removeprefix(f'q.parts.{number}.')}": v
                for key, v in state.items()
                if f"q.parts.{number}." in key
            }
            parts.append(family.restore(own))
        first, second = parts
        return WhitenedProcess(OrthogonalBasis(first.basis, second.basis), IndependentCoefficients(first.q, second.q))

    def coupled(self, process: Process, prior: FunctionPrior, *, hidden: bool, deviations: int) -> Process:
        """See :class:`~pyro_dgp.processes.families.ProcessFamily`: the means of both parts move."""
        assert isinstance(process, WhitenedProcess)
        process.q.couple(deviations)
        return process
