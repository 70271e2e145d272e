"""Bases whose features do not depend on hyperparameters, so that sums over the data are made once."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes.basis import Basis


class FixedFeatures(Basis):
    """Base of bases with cross-covariances ``k_u(x)`` that hyperparameters do not change: they enter through ``K_uu = R R'`` alone.

    With Gaussian noise all that a bound on the evidence needs of the data are then ``sum_n k_u(x_n) k_u(x_n)'`` and
    ``sum_n k_u(x_n) y_n`` (Hensman, Durrande and Solin 2018, 3.2); see :class:`~pyro_dgp.SufficientStatistics`.
    """

    @abstractmethod
    def features(self, x: Tensor, name: str) -> Tensor:
        """Return ``k_u(x)`` at inputs ``(N, D)``, ``(M, N)``.

        :param name: the Gaussian process, for messages.
        :raises ValueError: for inputs at which it depends on hyperparameters.
        """

    @abstractmethod
    def whiten(self, prior: FunctionPrior, columns: Tensor) -> Tensor:
        """Return ``R^-1`` times columns ``(..., M, K)``, ``(..., E, M, K)``. The inputs of the prior do not matter."""
