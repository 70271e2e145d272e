"""How far rounding changes the density of a whitened model."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.evaluation import IMPOSSIBLE

#: Nats by which rounding may change a log density: a tenth of what decides between two states of a chain.
ROUGH = 0.1
#: Points that are compared, and their distance in units of the last place of a coordinate.
_POINTS, _DISTANCE = 4, 64


def rounding(density: WhitenedDensity, vector: Tensor) -> float:
    """Return the nats by which rounding changes the log posterior density near a point: the largest difference of a few points next to it from what
    the gradient foretells. It is 0 where the density cannot be evaluated there.

    :param vector: the point in unconstrained space, see :meth:`~pyro_dgp.mcmc.density.WhitenedDensity.vector`.
    """
    generator = torch.Generator().manual_seed(0)  # the chain's own random numbers stay as they are
    step = _DISTANCE * torch.finfo(vector.dtype).eps * vector.abs().clamp_min(1.0)
    try:
        energy, gradient = density.energy_and_gradient(vector)
        found = 0.0
        for _ in range(_POINTS):
            signs = torch.randint(0, 2, vector.shape, generator=generator).to(vector) * 2 - 1
            near = vector + step * signs
            change = density.energy_and_gradient(near)[0].double() - energy.double()
            found = max(found, float((change - gradient.double() @ (near - vector).double()).abs()))
    except IMPOSSIBLE:
        return 0.0
    return found
