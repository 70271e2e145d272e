"""Adapters for the kernels of GPyTorch and of ``pyro.contrib.gp``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from pyro.contrib.gp.kernels import Kernel as PyroContribKernel
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_dgp.internal.user_functions import with_values
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.kernels.base import Kernel, packages_of
from pyro_dgp.kernels.covariance import Covariance


@dataclass(frozen=True)
class GPyTorchCovariance(Covariance):
    """Covariance function that calls a GPyTorch kernel. One without batch shape sees the output axis as a batch of 1."""

    kernel: Any

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        result: Tensor = (self.kernel(x) if z is None else self.kernel(x, z)).to_dense()
        return result

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        result: Tensor = self.kernel(x, diag=True)
        return result


class FromGPyTorch(Kernel):
    """A ``gpytorch.kernels.Kernel`` as a kernel of this library.

    The raw parameters of the GPyTorch kernel are trained directly. For parameters per output give the GPyTorch kernel
    ``batch_shape=torch.Size([outputs])``, as in ``FromGPyTorch(gpytorch.kernels.MaternKernel(nu=2.5))``. Priors that the GPyTorch kernel has are not read,
    which is warned of; a kernel of this library has them by ``PyroSample``.

    :warns UserWarning: for a GPyTorch kernel with priors.
    """

    def __init__(self, kernel: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel

    def admit(self, name: str, value: Any) -> Any:
        """Take a kernel of GPyTorch as ``kernel``."""
        if name == "kernel" and "gpytorch" not in packages_of(value):
            raise TypeError(
                f"FromGPyTorch takes a gpytorch.kernels.Kernel, not {type(value).__name__}: give such a kernel"
            )
        priors = [found for found, *_ in value.named_priors()] if name == "kernel" else []
        if priors:
            warn_user(
                f"FromGPyTorch does not read the priors of its kernel ({', '.join(priors)}), so that no objective counts them: make the GPyTorch kernel without them, and for "
                "a prior take a kernel of this library, with PyroSample(distribution) as the attribute"
            )
        return value

    def forward(self) -> Covariance:
        """Return a covariance function that calls the GPyTorch kernel, which reads its own parameters."""
        return GPyTorchCovariance(self.kernel)


@dataclass(frozen=True)
class PyroContribCovariance(Covariance):
    """Covariance function that calls a ``pyro.contrib.gp`` kernel.

    Such a kernel takes 2-D inputs only. A batch is looped over, or laid out as rows where the variance is wanted.
    """

    kernel: Any

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        if z is None:
            blocks = [self.kernel(part) for part in x.flatten(0, -3)]
            return torch.stack(blocks).reshape(*x.shape[:-1], x.shape[-2])
        batch = torch.broadcast_shapes(x.shape[:-2], z.shape[:-2])
        x_parts, z_parts = (each.expand(*batch, *each.shape[-2:]).flatten(0, -3) for each in (x, z))
        blocks = [self.kernel(a, b) for a, b in zip(x_parts, z_parts, strict=True)]
        return torch.stack(blocks).reshape(*batch, x.shape[-2], z.shape[-2])

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        result: Tensor = self.kernel(x.reshape(-1, x.shape[-1]), diag=True)
        return result.reshape(x.shape[:-1])


class FromPyroContrib(Kernel):
    """A ``pyro.contrib.gp.kernels.Kernel`` as a kernel of this library, shared by the outputs of a layer.

    The parameters are those of a Pyro module: ``PyroSample`` priors on them work as elsewhere.

    >>> import torch
    >>> from pyro.contrib.gp.kernels import Cosine
    >>> from pyro_dgp import FromPyroContrib
    >>> FromPyroContrib(Cosine(2))().matrix(torch.zeros(1, 4, 2)).shape
    torch.Size([1, 4, 4])
    """

    def __init__(self, kernel: PyroContribKernel) -> None:
        super().__init__()
        self.kernel: PyroModule = kernel

    def admit(self, name: str, value: Any) -> Any:
        """Take a kernel of ``pyro.contrib.gp`` as ``kernel``."""
        if name == "kernel" and not isinstance(value, PyroContribKernel):
            raise TypeError(
                f"FromPyroContrib takes a pyro.contrib.gp.kernels.Kernel, not {type(value).__name__}: give such a kernel"
            )
        return value

    def forward(self) -> Covariance:
        """Read every parameter now; one read later would be drawn again."""
        return PyroContribCovariance(with_values(self.kernel))
