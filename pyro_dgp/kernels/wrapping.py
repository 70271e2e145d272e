"""The kernel of a choice of input dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.kernels.base import Kernel, Wrapper
from pyro_dgp.kernels.covariance import Covariance


@dataclass(frozen=True)
class ActiveDimsCovariance(Covariance):
    """Covariance function ``k`` of some of the input dimensions.

    :ivar columns: number of columns that the inputs have, where it is known.
    """

    part: Covariance
    dims: tuple[int, ...]
    columns: int | None = None

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return self.part.matrix(self.columns_of(x), None if z is None else self.columns_of(z))

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        return self.part.diagonal(self.columns_of(x))

    def columns_of(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b k"]:
        """Return the columns of the inputs that the part sees; raise for those that are not there."""
        columns = x.shape[-1]
        if self.columns not in (None, columns) or not all(-columns <= dim < columns for dim in self.dims):
            of_mask = "" if self.columns is None else f", from a mask of {self.columns} values,"
            raise ValueError(
                f"ActiveDims has dims={list(self.dims)}{of_mask} and its inputs have {columns} columns: give numbers from 0 to {columns - 1}, or a mask "
                f"of {columns} values"
            )
        return x[..., self.dims]


class ActiveDims(Wrapper):
    """Kernel of the input dimensions ``dims`` alone; ``ard`` of the kernel inside counts these only.

    :param dims: numbers of the columns, one or more, of which negative ones count from the end; or a mask with a truth value for each column.
    :raises ValueError: for anything else, and in use for a column that the inputs do not have.

    >>> import torch
    >>> from pyro_dgp import ActiveDims, Linear
    >>> kernel = ActiveDims(Linear(ard=1), dims=[2])  # the third of three columns
    >>> kernel().diagonal(torch.tensor([[[5.0, 7.0, 3.0]]])).round().tolist()
    [[9.0]]
    """

    #: Number of columns of the inputs, where a mask gives it.
    _columns: int | None = None

    def __init__(self, part: Kernel, dims: Sequence[int] | Tensor) -> None:
        super().__init__(part)
        self.dims: Any = dims

    def admit(self, name: str, value: Any) -> Any:
        """Take columns as ``dims``, whose numbers are kept as a tuple, and a kernel as ``part``."""
        if name != "dims":
            return super().admit(name, value)
        given = _columns(value)
        is_mask = given.dtype == torch.bool
        self._columns = len(given) if is_mask else None
        return tuple((given.nonzero().squeeze(-1) if is_mask else given).tolist())

    def forward(self) -> Covariance:
        """Read the part."""
        return ActiveDimsCovariance(self.part(), self.dims, self._columns)


def _columns(dims: Any) -> Tensor:
    """Return the numbers of columns, or the mask, that ``dims`` gives; raise for what is neither."""
    try:
        given = torch.as_tensor(dims if isinstance(dims, Tensor) else list(dims))
    except (TypeError, ValueError, RuntimeError):
        given = torch.empty(0)
    is_whole = not given.is_floating_point() and not given.is_complex()
    if given.dim() != 1 or not is_whole or not (given.any() if given.dtype == torch.bool else len(given)):
        raise ValueError(
            f"ActiveDims takes dims, the numbers of one column or more, or a mask of them, and got {dims!r}: give a list such as [0, 2]"
        )
    return given
