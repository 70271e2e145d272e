"""The kernel of a choice of input dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from pyro_dgp.kernels.base import Kernel, Wrapper
from pyro_dgp.kernels.covariance import Covariance


@dataclass(frozen=True)
class ActiveDimsCovariance(Covariance):
    """Covariance function ``k`` of some of the input dimensions."""

    part: Covariance
    dims: tuple[int, ...]

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return self.part.matrix(x[..., self.dims], None if z is None else z[..., self.dims])

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        return self.part.diagonal(x[..., self.dims])


class ActiveDims(Wrapper):
    """Kernel of the input dimensions ``dims`` alone; ``ard`` of the kernel inside counts these only.

    >>> import torch
    >>> from pyro_dgp import ActiveDims, Linear
    >>> kernel = ActiveDims(Linear(ard=1), dims=[2])  # the third of three columns
    >>> kernel().diagonal(torch.tensor([[[5.0, 7.0, 3.0]]])).round().tolist()
    [[9.0]]
    """

    def __init__(self, part: Kernel, dims: Sequence[int]) -> None:
        super().__init__(part)
        self.dims = tuple(dims)

    def forward(self) -> Covariance:
        """Read the part."""
        return ActiveDimsCovariance(self.part(), self.dims)
