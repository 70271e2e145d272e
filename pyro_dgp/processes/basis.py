"""Bases: functions whose weighted sum, with a Gaussian over the weights, stands for a GP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes.base import KnownCoefficients, KnownValues
from pyro_dgp.processes.column_moments import column_moments
from pyro_dgp.processes.grouped import Grouped
from pyro_dgp.processes.whitened_gaussian import Gaussian

#: Floor of the variance of function values. The root of 0 has no derivative.
SMALLEST_VARIANCE = 1e-12


class Basis(Grouped):
    """Base of bases: M functions a of the inputs with ``f(x) = m(x) + a(x)' v + r(x)`` under the prior, ``v ~ N(0, I)``.

    r is what the basis leaves of the prior, with covariance ``k(x, z) - a(x)' a(z)``. The basis comes from M linear functionals u of
    ``f - m`` with covariance ``K_uu = R R'`` and cross-covariances ``k_u(x)``: it is ``a(x) = R^-1 k_u(x)``, and ``u = R v``.
    Hyperparameters are those of the prior that a method is called with.

    A subclass writes :meth:`columns`. It may override :meth:`moments` by a faster form, and add :meth:`root`, :meth:`remarks` and
    :meth:`known_values`.

    :ivar size: number of features, M.

    >>> import torch
    >>> from pyro_dgp import Basis, GaussianProcess, Linear
    >>> class Slopes(Basis):  # the whole of a linear kernel
    ...     size = 2
    ...     def columns(self, prior):
    ...         return (prior.x.unsqueeze(-3) * prior.covariance.scale).mT
    >>> prior = GaussianProcess(Linear())(torch.randn(5, 2))
    >>> columns = Slopes().columns(prior)
    >>> torch.allclose(columns.mT @ columns, prior.covariance_matrix, atol=1e-5)
    True
    """

    size: int
    #: Buffers that say which functions the features are: a state with other values is that of another basis.
    layout: ClassVar[tuple[str, ...]] = ()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in self.layout:
            own, saved = getattr(self, name), state_dict.get(prefix + name)
            if saved is not None and (saved.shape != own.shape or not torch.allclose(saved.to(own), own)):
                raise ValueError(
                    f"the state is that of other features: its {name} are {saved.tolist()}, and {type(self).__name__} of this guide has "
                    f"{own.tolist()}. Load it into a new guide of the family that was saved"
                )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @abstractmethod
    def columns(self, prior: FunctionPrior) -> Tensor:
        """Return the whitened columns A at ``prior.x``, ``(..., E, M, N)`` with ``A'A <= K(x, x)``; E is 1 where all outputs share them."""

    def points(self, prior: FunctionPrior) -> Tensor | None:
        """Return the inputs ``(*groups, E, M, D)`` whose function values the functionals u are; nothing for others."""
        return None

    def overlap_with(self, other: Basis, prior: FunctionPrior) -> Tensor:
        """Return the covariance of the coefficients of this basis and another one, ``(..., E, M, M_other)``, where neither is of points.

        :raises NotImplementedError: for a pair that has no formula.
        """
        raise NotImplementedError(
            f"{type(self).__name__} and {type(other).__name__}, two bases of {prior.name!r}, have no known overlap: make one of them inducing "
            "points"
        )

    def root(self, prior: FunctionPrior) -> Tensor:
        """Return R, ``(..., E, M, M)``.

        :raises NotImplementedError: for a basis that has none.
        """
        raise NotImplementedError(
            f"{type(self).__name__}, the basis of {prior.name!r}, has no root of K_uu: give it a method root, or take InducingPoints"
        )

    def moments(self, prior: FunctionPrior, q: Gaussian) -> tuple[Tensor, Tensor]:
        """Return mean, without that of the prior, and variance of q(f) at ``prior.x``, both ``(..., N, D_out)``."""
        loc, change = column_moments(self.columns(prior), q)
        loc, variance = torch.broadcast_tensors(loc, prior.covariance.diagonal(prior.x.unsqueeze(-3)) + change)
        return loc.mT, variance.clamp_min(SMALLEST_VARIANCE).mT

    def remarks(self, prior: FunctionPrior) -> Iterator[str]:
        """Iterate over sentences on the inputs of a trained layer that the basis does not serve well; see :func:`~pyro_dgp.remarks`."""
        return iter(())

    def known_values(self, prior: FunctionPrior, q: Gaussian, num_draws: int) -> KnownValues | KnownCoefficients:
        """Draw the coefficients that determine q(f) up to the prior; see :class:`~pyro_dgp.processes.base.Process`."""
        return KnownCoefficients(self.columns, q.draw(num_draws))
