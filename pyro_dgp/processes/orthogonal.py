"""Orthogonal decoupling: one basis, and a second one for what the first leaves of the prior."""

from __future__ import annotations

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


class OrthogonalBasis(Basis):
    """Basis ``(a(x), c(x))``: a first basis a, and a second one for the residual process ``r = f - m - a' v`` (Shi et al. 2020, Eq. 6).

    Let b be the whitened columns of the second basis on its own, and ``X = cov(v_a, v_b)`` the overlap of both. Given v_a, v_b has the
    covariance ``I - X'X = L L'``, and ``c(x) = L^-1 (b(x) - X' a(x))``. Both sets of coefficients are independent under the prior.

    :ivar first: the basis a.
    :ivar second: the basis of which c is made.
    """

    def __init__(self, first: Basis, second: Basis) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.size, self.groups = first.size + second.size, first.groups or second.groups

    def overlap(self, prior: FunctionPrior) -> Tensor:
        """Return X, ``(..., E, M_first, M_second)``."""
        points = self.second.points(prior)
        if points is not None:
            return _whitened_rows(self.first, self.second, prior, points)
        points = self.first.points(prior)
        if points is not None:
            return _whitened_rows(self.second, self.first, prior, points).mT
        return self.first.overlap_with(self.second, prior)

    def _factor(self, overlap: Tensor, prior: FunctionPrior) -> Tensor:
        """Return L."""
        rest = -overlap.mT @ overlap
        return linalg.cholesky(rest + linalg.identity(rest), prior.jitter, prior.name)

    def root(self, prior: FunctionPrior) -> Tensor:
        """Return the root of the covariance of both sets of functionals, ``((R_first, 0), (R_second X', R_second L))``."""
        first, second, overlap = self.first.root(prior), self.second.root(prior), self.overlap(prior)
        below = torch.cat([second @ overlap.mT, second @ self._factor(overlap, prior)], -1)
        above = torch.nn.functional.pad(first, (0, self.second.size))
        batch = torch.broadcast_shapes(above.shape[:-2], below.shape[:-2])
        return torch.cat([each.expand(*batch, *each.shape[-2:]) for each in (above, below)], -2)

    def points(self, prior: FunctionPrior) -> Tensor | None:
        """Return the points of both, where both are of points."""
        first, second = self.first.points(prior), self.second.points(prior)
        if first is None or second is None:
            return None
        batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
        return torch.cat([each.expand(*batch, *each.shape[-2:]) for each in (first, second)], -2)

    def known_values(self, prior: FunctionPrior, q: Gaussian, num_draws: int) -> KnownValues | KnownCoefficients:
        """Draw the function values at all points, or the coefficients of other bases."""
        points = self.points(prior)
        if points is None:
            return super().known_values(prior, q, num_draws)
        return KnownValues(points, self.root(prior), q.draw(num_draws))

    def columns(self, prior: FunctionPrior) -> Tensor:
        """See :class:`~pyro_dgp.processes.basis.Basis`."""
        a, b, overlap = self.first.columns(prior), self.second.columns(prior), self.overlap(prior)
        c = linalg.solve_broadcast(self._factor(overlap, prior), b - overlap.mT @ a)
        batch = torch.broadcast_shapes(a.shape[:-2], c.shape[:-2])
        return torch.cat([a.expand(*batch, *a.shape[-2:]), c.expand(*batch, *c.shape[-2:])], -2)


def _whitened_rows(other: Basis, of_points: Basis, prior: FunctionPrior, points: Tensor) -> Tensor:
    """Return ``cov(v, w)`` of the coefficients v of a basis and those w of function values at points, ``u = R w``."""
    outputs = points.shape[-3]
    parts = [other.columns(prior.at(points[..., e, :, :])) for e in range(outputs)]
    if outputs == 1:
        columns = parts[0]
    else:
        columns = torch.cat([part[..., min(e, part.shape[-3] - 1), None, :, :] for e, part in enumerate(parts)], -3)
    return linalg.solve_broadcast(of_points.root(prior), columns.mT).mT


@dataclass(frozen=True)
class Orthogonal(ProcessFamily):
    """A family, and a second one for what the first leaves of the prior: any basis with any other.

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
