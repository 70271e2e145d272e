"""Models that several tests use, written as a user would."""

import pyro
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule

from pyro_dgp import RBF, CompiledDensity, Gaussian, GaussianProcess, Matern52, Projection, concatenate_inputs


class OneLayer(PyroModule):
    def __init__(self, kernel=None, likelihood=None, outputs=1, jitter=None):
        super().__init__()
        self.gp = GaussianProcess(kernel or RBF(lengthscale=0.7), num_outputs=outputs, jitter=jitter)
        self.likelihood = likelihood or Gaussian(outputs, variance=0.04)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


class TwoSites(PyroModule):
    def __init__(self, likelihood=None, outputs=1):
        super().__init__()
        self.gp = GaussianProcess(RBF(lengthscale=0.7), num_outputs=outputs)
        self.likelihood = likelihood or Gaussian(outputs, variance=0.04)

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", self.likelihood.given(f), obs=y)


class TwoLayers(PyroModule):
    def __init__(self, x, width=2, likelihood=None):
        super().__init__()
        self.hidden = GaussianProcess(Matern52(ard=x.shape[-1]), mean=Projection.fit(x, width), num_outputs=width)
        self.top = GaussianProcess(RBF(ard=width))
        self.likelihood = likelihood or Gaussian(variance=0.04)

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


class LatentInputs(PyroModule):
    """Latent-variable regression: each row has an unseen input w beside x."""

    def __init__(self, variance=0.04):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(2)), Gaussian(variance=variance)

    def forward(self, x, y=None):
        with pyro.plate("rows", len(x)):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        return pyro.sample("y", self.likelihood(self.gp(concatenate_inputs(w[:, None], x))), obs=y)


class Encoder(torch.nn.Module):
    """q(w given x, y); without y the prior."""

    def __init__(self, spread=0.1):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.spread = spread

    def forward(self, x, y=None):
        return None if y is None else dist.Normal(self.layers(torch.stack([x[:, 0], y], -1))[:, 0], self.spread)


def as_recorded(graph, points, backend):
    """In the place of a compiler: the graph itself, or what a function makes of it."""
    return backend(graph, None) if callable(backend) else graph


class Recorded(CompiledDensity):
    """Recorded, and run as it was recorded: nothing to wait for."""

    backend = "eager"


def regression(rows=30, inputs=1):
    x = torch.rand(rows, inputs) * 4 - 2
    return x, torch.sin(2 * x[:, 0]) + 0.2 * torch.randn(rows)


def posterior(prior, y, variance):
    """Mean and standard deviation of one output's function values at the data, given noise of that variance: the closed form."""
    k = prior.covariance_matrix[0]
    noisy = k + variance * torch.eye(len(y))
    return k @ torch.linalg.solve(noisy, y), (k - k @ torch.linalg.solve(noisy, k)).diagonal().sqrt()
