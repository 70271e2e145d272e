"""First points of chains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.mcmc.density import WhitenedDensity

#: A function from a density to the first point of a chain, in unconstrained space, by site.
Start = Callable[[WhitenedDensity], dict[str, Tensor]]


def require_start(start: object) -> None:
    """Raise for a class, as ``start=Ascent``, where an object, ``start=Ascent()``, is wanted."""
    if isinstance(start, type) or not callable(start):
        raise TypeError(f"start is an object such as PriorDraw() or Ascent(), not {start!r}")


@dataclass(frozen=True)
class PriorDraw:
    """Start at a draw of the prior. Chains start as far apart as they can, which makes R-hat most telling."""

    def __call__(self, density: WhitenedDensity) -> dict[str, Tensor]:
        """Whitened values and latent values in unconstrained space, by site."""
        return density.unconstrained_start()


@dataclass(frozen=True)
class Ascent:
    """Start at the end of an ascent of the posterior density from a draw of the prior, by Adam at a rate that falls to zero.

    ``WhitenedNUTS(model, start=Ascent())``. Under little noise, a chain that starts at the prior climbs for longer than a whole warm-up
    lasts; an ascent takes seconds. Each chain ascends from a draw of its own and may end in a mode of its own. A mode is not a typical
    draw: the warm-up has to leave it.

    :param steps: largest number of gradients; the ascent ends earlier where the density is not finite.
    :param rate: first learning rate of Adam, in whitened and unconstrained coordinates, where the prior has unit scale.
    """

    steps: int = 1000
    rate: float = 0.05

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.rate > 0:
            raise ValueError(f"an ascent has a positive number of steps and rate, got {self.steps} and {self.rate}")

    def __call__(self, density: WhitenedDensity) -> dict[str, Tensor]:
        """The highest point of the ascent, by site."""
        best = density.unconstrained_start()
        point = {name: value.detach().clone().requires_grad_() for name, value in best.items()}
        optimizer = torch.optim.Adam(point.values(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.steps)
        lowest = math.inf
        with torch.enable_grad():
            for _ in range(self.steps):
                optimizer.zero_grad()
                try:
                    energy = density.potential(point)
                except NotPositiveDefiniteError:
                    break
                if not math.isfinite(energy.item()):
                    break
                if energy.item() < lowest:
                    lowest, best = energy.item(), {name: value.detach().clone() for name, value in point.items()}
                energy.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
        return best
