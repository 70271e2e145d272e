"""Kernels without lengthscales: a constant, and white noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.kernels.base import ConstantDiagonal, Covariance, Kernel, per_output, positive


@dataclass(frozen=True)
class ConstantCovariance(ConstantDiagonal, Covariance):
    """Covariance function whose value is ``variance`` between any two points."""

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        columns = (x if z is None else z).shape[-2]
        diagonal = self.diagonal(x)
        return diagonal.unsqueeze(-1).expand(*diagonal.shape, columns)


@dataclass(frozen=True)
class WhiteCovariance(ConstantDiagonal, Covariance):
    """Covariance function whose value is ``variance`` on the diagonal of one set of points and 0 between two sets."""

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        diagonal = self.diagonal(x)
        if z is None:
            return torch.diag_embed(diagonal)
        return diagonal.new_zeros(*diagonal.shape, z.shape[-2])


class _Variance(Kernel):
    def __init__(self, outputs: int | None = None, variance: float = 1.0) -> None:
        super().__init__()
        self.outputs = outputs
        self.variance = positive(variance, outputs)


class Constant(_Variance):
    """Constant kernel, ``k = variance``: a random offset. ``outputs`` and ``variance`` are those of ``Stationary``.

    >>> import torch
    >>> from pyro_dgp import Constant
    >>> Constant()().matrix(torch.zeros(1, 2, 3), torch.ones(1, 3, 3)).round().tolist()
    [[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]
    """

    def forward(self) -> Covariance:
        """Read ``variance``."""
        return ConstantCovariance(per_output(self.variance, self.outputs))


class White(_Variance):
    """White noise, ``k = variance`` for a point with itself and 0 between distinct points ([DSVI] 3.4).

    Two sets of points passed as ``matrix(x, z)`` count as distinct even where values coincide.

    >>> import torch
    >>> from pyro_dgp import White
    >>> x = torch.zeros(1, 2, 3)
    >>> White()().matrix(x).round().tolist(), White()().matrix(x, x).tolist()
    ([[[1.0, 0.0], [0.0, 1.0]]], [[[0.0, 0.0], [0.0, 0.0]]])
    """

    def forward(self) -> Covariance:
        """Read ``variance``."""
        return WhiteCovariance(per_output(self.variance, self.outputs))
