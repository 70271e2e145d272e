"""Base of functions that are drawn from the prior of a Gaussian process, and the request by which they are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class PathRequest:
    """Request for draws: K functions of several outputs, of zero mean.

    :ivar name: the Gaussian process, for messages.
    :ivar like: one row of inputs, ``(1, 1, D)``.
    :ivar num_draws: number of draws, K.
    :ivar num_outputs: D_out.
    :ivar num_kernels: E, 1 where the outputs share the kernel.
    :ivar num_frequencies: F, the number of random features of a draw where a kernel has them.
    """

    name: str
    like: Tensor
    num_draws: int
    num_outputs: int
    num_kernels: int
    num_frequencies: int


class Path(ABC):
    """K draws of a function of zero mean.

    Inputs have axes for draws and outputs, of size 1 where these share the inputs, as those of a covariance function.
    """

    @abstractmethod
    def __call__(self, x: Float[Tensor, "c e n d"]) -> Float[Tensor, "k o n"]:
        """Return the values at inputs ``(K or 1, D_out or 1, N, D)``: ``(K, D_out, N)``."""


def weighted(features: Float[Tensor, "c e n f"], weights: Float[Tensor, "k o f"]) -> Float[Tensor, "k o n"]:
    """Return the sums ``sum_f features_f weights_f`` for each output; the features are shared by the outputs where E is 1."""
    if features.shape[-3] == 1:
        return (features.squeeze(-3) @ weights.mT).mT
    return (features @ weights.unsqueeze(-1)).squeeze(-1)
