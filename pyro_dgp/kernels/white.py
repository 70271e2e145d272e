"""White noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.kernels.base import OneVariance
from pyro_dgp.kernels.covariance import ConstantDiagonal, Covariance
from pyro_dgp.kernels.hyperparameters import per_output


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


class White(OneVariance):
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
        return WhiteCovariance(per_output(self, "variance"))
