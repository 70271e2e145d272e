"""Kernels from a plain function k(x, z) or a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pyro_dgp.internal.recording import recording
from pyro_dgp.internal.user_functions import PresentFunction, adopted
from pyro_dgp.kernels.base import Kernel
from pyro_dgp.kernels.covariance import Covariance
from pyro_dgp.kernels.trial import block_differs, parts_of

#: Rows of the first inputs on which a function is tried.
TRIED_ROWS = 5


@dataclass
class _FirstUse:
    """Whether a function has been tried on enough rows: a mark that a kernel shares with its covariance functions."""

    done: bool = False


@dataclass(frozen=True)
class FunctionCovariance(Covariance):
    """Covariance function that calls a function ``k(x, z)`` of the user."""

    function: Callable[[Tensor, Tensor], Any]
    first_use: _FirstUse = field(default_factory=_FirstUse)

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        self._try(x)
        return self._call(x, x if z is None else z)

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """Variances: each row is a set of points of its own."""
        self._try(x)
        rows = x.unsqueeze(-2)
        return self._call(rows, rows)[..., 0, 0]

    def _call(self, x: Tensor, z: Tensor) -> Tensor:
        value = self.function(x, z)
        if not isinstance(value, Tensor):
            raise TypeError(f"the function of FromFunction returned {type(value).__name__}, not a tensor (..., N, M)")
        if value.dim() < 2 or value.shape[-2:] != (x.shape[-2], z.shape[-2]):
            raise ValueError(
                f"the function of FromFunction turned x {tuple(x.shape)} and z {tuple(z.shape)} into {tuple(value.shape)}, not into "
                f"(..., {x.shape[-2]}, {z.shape[-2]}): write k for (..., N, D) and (..., M, D), one value for each pair of rows"
            )
        return value

    def _try(self, x: Tensor) -> None:
        """Raise, at the first use alone, if the first rows show that the function is no covariance function."""
        if self.first_use.done or recording() or not x.shape[-2]:
            return
        with torch.no_grad():
            few = x[..., :TRIED_ROWS, :].reshape(-1, min(TRIED_ROWS, x.shape[-2]), x.shape[-1])[0]
            value = self._call(few, few)
            alone = self._call(few.unsqueeze(-2), few.unsqueeze(-2))
            self._require_covariance(value, alone)
            if len(few) > 2 and block_differs(value, self._call(*parts_of(few))):
                raise ValueError(
                    "the function of FromFunction gives two rows another covariance by themselves than among other rows: let k of two rows depend on "
                    "these alone, not on the mean or the number of all rows"
                )
        self.first_use.done = len(few) == TRIED_ROWS

    def _require_covariance(self, value: Tensor, alone: Tensor) -> None:
        """Raise unless the matrix of a few rows is symmetric, has no negative direction, and has the variances of single rows."""
        rows = value.shape[-1]
        tolerance = 1e3 * torch.finfo(value.dtype).eps * float(value.abs().max())
        if alone.shape[-3:] != (rows, 1, 1):
            found = f"ignores leading axes, {tuple(alone.shape)} for {rows} sets of one row each"
        elif float((alone[..., 0, 0] - value.diagonal(dim1=-2, dim2=-1)).abs().max()) > tolerance:
            found = "gives a row another variance by itself than among others"
        elif float((value - value.mT).abs().max()) > tolerance:
            found = f"is not symmetric on the first {rows} rows"
        elif float(torch.linalg.eigvalsh(value).min()) < -rows * tolerance:
            found = (
                f"has a negative eigenvalue on the first {rows} rows, {float(torch.linalg.eigvalsh(value).min()):.3g}"
            )
        else:
            return
        raise ValueError(
            f"the function of FromFunction {found}, so it is no covariance function: write a k(x, z) that is symmetric and positive "
            "semi-definite, and that treats leading axes as batches"
        )


class FromFunction(Kernel):
    """A plain function ``k(x, z)``, or a network that is called so, as a kernel of this library.

    ``k`` maps ``x (..., N, D)`` and ``z (..., M, D)`` to the covariances ``(..., N, M)``, in squared units of the function; leading axes
    are batches and broadcast. Variances ``k(x_n, x_n)`` come from the same function, with each row as a set of its own. At the
    first use on so many it is tried on five rows.

    A network is made a Pyro module in place, and its parameters train. A plain function has no parameters; ``2.0 * kernel``
    gives it a learned scale. For a lengthscale and other parameters with constraints write a :class:`Kernel`.

    :param function: the function or network.
    :raises ValueError: at the first use, for a function that is not symmetric, has a negative eigenvalue, depends on
        other rows than its two or does not broadcast; at once for a function that names a network or a tensor to be trained, which would stay as it is.
    :raises TypeError: for what cannot be called.

    >>> import torch
    >>> from pyro_dgp import FromFunction, GaussianProcess
    >>> brownian = FromFunction(lambda x, z: torch.minimum(x, z.mT))  # of one input above 0
    >>> GaussianProcess(brownian)(torch.tensor([[1.0], [2.0], [3.0]])).covariance_matrix.tolist()
    [[[1.0, 1.0, 1.0], [1.0, 2.0, 2.0], [1.0, 2.0, 3.0]]]
    """

    def __init__(self, function: nn.Module | Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def admit(self, name: str, value: Any) -> Any:
        """Take a function or a network as ``function``; it is tried at its next use."""
        if name != "function":
            return value
        if isinstance(value, type | Kernel) or not callable(value):
            got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise TypeError(
                f"FromFunction takes a function k(x, z) or a network, not {got}: give what is called with two tensors"
            )
        self._first_use = _FirstUse()
        return adopted(value, "covariance function")

    def forward(self) -> Covariance:
        """Read every parameter of the network."""
        return FunctionCovariance(PresentFunction.of(self.function), self._first_use)
