"""How far apart two rows may be in each input before a kernel tells them apart."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dgp.kernels import Covariance

#: Rows at which correlations are looked at, and distances that are tried, as powers of the square root of two times the standard deviation.
_ROWS, _POWERS = 8, range(-20, 25)
#: Correlation at the length.
_HALF = 0.5


@torch.no_grad()
def correlation_lengths(covariance: Covariance, x: Tensor) -> Tensor:
    """Return for each input the shortest distance at which the correlation is at most one half, ``(D,)``.

    It is one of the distances ``sd 2^(p/2)``, so that it stays the same while parameters move a little; the longest of these, 4,096 standard
    deviations, where no distance is long enough. Constant inputs have infinity. Correlations are means over some rows and over the kernels of outputs.

    :param x: inputs ``(N, D)``.

    >>> from pyro_dgp import RBF
    >>> x = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None] * torch.ones(2, dtype=torch.float64)
    >>> kernel = RBF(ard=2).double()
    >>> kernel.lengthscale = torch.tensor([0.5, 5.0], dtype=torch.float64)
    >>> [round(each, 2) for each in correlation_lengths(kernel(), x).tolist()]
    [0.65, 7.3]
    """
    x = x.detach()
    rows = x[torch.linspace(0, len(x) - 1, min(_ROWS, len(x))).round().long()]
    width, inputs = x.std(0, correction=0), x.shape[-1]
    factors = torch.tensor([2 ** (power / 2) for power in _POWERS], dtype=x.dtype, device=x.device)
    steps = torch.diag(width) * factors[:, None, None]  # (P, D, D)
    first = rows[:, None, None, :].expand(-1, len(factors), inputs, -1)
    second = first + steps
    correlation = (_covariance(covariance, first, second) / _scale(covariance, first, second)).mean((0, -1))  # (P, D)
    is_far = (correlation <= _HALF).to(torch.int8)
    index = torch.where(is_far.any(0), is_far.argmax(0), len(factors) - 1)
    return torch.where(width > 0, width * factors[index], torch.inf)


def _covariance(covariance: Covariance, first: Tensor, second: Tensor) -> Tensor:
    """Covariances of pairs of rows ``(..., D)``: ``(..., E)``."""
    return covariance.matrix(first[..., None, None, :], second[..., None, None, :])[..., 0, 0]


def _scale(covariance: Covariance, first: Tensor, second: Tensor) -> Tensor:
    squared = _covariance(covariance, first, first.clone()) * _covariance(covariance, second, second.clone())
    return squared.sqrt().clamp_min(torch.finfo(squared.dtype).tiny)
