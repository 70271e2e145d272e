"""Monte Carlo propagation: the doubly stochastic scheme."""

from __future__ import annotations

import math

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_dgp.processes import FunctionMarginal
from pyro_dgp.propagation.base import Propagation


class MonteCarlo(Propagation):
    """Propagation by S equally weighted draws.

    Each layer is drawn from its marginal at the draws of the layer below ([DSVI] 3.9).

    :param num_samples: number of draws, S.

    >>> import torch
    >>> from pyro_dgp import MonteCarlo
    >>> MonteCarlo(4).log_weights(torch.zeros(())).exp().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    def __init__(self, num_samples: int = 10) -> None:
        super().__init__()
        if num_samples < 1:
            raise ValueError(f"MonteCarlo needs at least one sample, got {num_samples}: give num_samples=1 or more")
        self.num_components = num_samples

    def for_prediction(self, num_samples: int) -> MonteCarlo:
        """Return a propagation by ``num_samples`` draws. Few draws, as in training, would bias the NLL upwards."""
        return MonteCarlo(num_samples)

    def log_weights(self, like: Tensor) -> Tensor:
        """Return ``-log S`` for each component, ``(S,)``."""
        value = -math.log(self.num_components)
        return torch.full((self.num_components,), value, dtype=like.dtype, device=like.device)

    def propagate(self, site: str, marginal: FunctionMarginal, carried: bool) -> TorchDistribution:
        """Return the marginal with the axis of components in front, so that each component has a draw of its own."""
        if carried:
            return marginal
        return marginal.expand((self.num_components, *marginal.batch_shape))
