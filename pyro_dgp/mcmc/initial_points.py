"""Where a chain starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.mcmc.density import WhitenedDensity

#: From a density to initial values in unconstrained space.
Start = Callable[[WhitenedDensity], dict[str, Tensor]]


def require_start(start: object) -> None:
    """Raise for a class where one of its objects is wanted."""
    if isinstance(start, type) or not callable(start):
        raise TypeError(f"start is an object such as PriorDraw() or Ascent(), not {start!r}")


@dataclass(frozen=True)
class PriorDraw:
    """At a draw of the prior: as far apart as chains can be, so that R-hat means most."""

    def __call__(self, density: WhitenedDensity) -> dict[str, Tensor]:
        """Whitened values and latent values in unconstrained space, by site."""
        return density.unconstrained_start()


@dataclass(frozen=True)
class Ascent:
    """From a draw of the prior up the posterior density, by Adam at a rate that falls to zero.

    ``WhitenedNUTS(model, start=Ascent())``. Where the likelihood is sharp (little noise), a chain from the prior climbs for longer than a
    whole warm-up lasts; this climbs in seconds. Chains ascend from draws of their own and may end in different modes. A mode is no
    typical draw: the warm-up has to leave it.

    :param steps: gradients at most; it stops earlier where the density is not finite.
    :param rate: of Adam at first, in whitened and unconstrained coordinates, where the prior has unit scale.
    """

    steps: int = 1000
    rate: float = 0.05

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.rate > 0:
            raise ValueError(f"an ascent has a positive number of steps and rate, got {self.steps} and {self.rate}")

    def __call__(self, density: WhitenedDensity) -> dict[str, Tensor]:
        """The highest point that it came to."""
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
