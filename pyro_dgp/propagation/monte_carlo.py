"""Monte Carlo propagation, the doubly stochastic scheme."""

from __future__ import annotations

import math

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_dgp.processes import FunctionMarginal
from pyro_dgp.propagation.base import Propagation


class MonteCarlo(Propagation):
    """S equally weighted draws, each layer's from its marginal at the draws of the layer below ([DSVI] 3.9).

    :param num_samples: S.
    """

    def __init__(self, num_samples: int = 10) -> None:
        super().__init__()
        if num_samples < 1:
            raise ValueError(f"MonteCarlo needs at least one sample, got {num_samples}")
        self.num_components = num_samples

    def for_prediction(self, num_samples: int) -> MonteCarlo:
        """More draws than in training: the NLL of few is biased upwards."""
        return MonteCarlo(num_samples)

    def log_weights(self, like: Tensor) -> Tensor:
        """``-log S`` each."""
        value = -math.log(self.num_components)
        return torch.full((self.num_components,), value, dtype=like.dtype, device=like.device)

    def propagate(self, site: str, marginal: FunctionMarginal, carried: bool) -> TorchDistribution:
        """One draw in each component."""
        if carried:
            return marginal
        return marginal.expand((self.num_components, *marginal.batch_shape))
