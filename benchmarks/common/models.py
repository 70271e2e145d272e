"""The model that several studies share: GPs on top of each other under one likelihood."""

from __future__ import annotations

from collections.abc import Sequence

import pyro
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_dgp import GaussianProcess
from pyro_dgp.likelihoods import Likelihood


class Stack(PyroModule):
    """A deep GP with sites ``h1, h2, ...`` for the hidden layers and ``y`` for the observations."""

    def __init__(self, hidden: Sequence[GaussianProcess], top: GaussianProcess, likelihood: Likelihood) -> None:
        super().__init__()
        self.hidden = PyroModule[nn.ModuleList](hidden)
        self.top, self.likelihood = top, likelihood

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Pyro model of targets ``y`` at inputs ``x``."""
        h = x
        for number, layer in enumerate(self.hidden, 1):
            h = pyro.sample(f"h{number}", layer(h))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)
