"""Models of several layers."""

from __future__ import annotations

import pyro
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Normal, Poisson

from pyro_dgp import (
    RBF,
    Bernoulli,
    GaussianProcess,
    concatenate_inputs,
)
from tests.contract.case import Case, Model, Weighted, gaussian
from tests.contract.known import ALL, DEEP, NOISE, X, Y, function, rbf
from tests.contract.one_layer import COUNTS, LABELS, N, noisy, regression


def column(values: Tensor) -> Tensor:
    """Values as one input."""
    return values.unsqueeze(-1)


def layer(x: Tensor, variance: float = 1.0) -> Tensor:
    """Draws of a hidden layer with the identity as its mean, at ``(n, 1)`` or at ``(S, n, 1)``."""
    return x[..., 0] + function(x, DEEP, lambda a, b: rbf(a, b, 1.0, variance))


def hidden(variance: float = 0.3) -> GaussianProcess:
    """A hidden layer with the identity as its mean."""
    return GaussianProcess(RBF(variance=variance), mean=lambda x: x)


class Layers(Model):
    """Two layers: a hidden one, and a likelihood around the top one."""

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


def two_layers() -> Weighted:
    h = layer(ALL, 0.3)
    return regression(function(column(h), DEEP))


class ThreeSites(Model):
    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        f = pyro.sample("f", self.top(h))
        return pyro.sample("y", dist.Normal(f[..., 0], NOISE**0.5).to_event(1), obs=y)


class Stack(Model):
    """Any number of layers in a list."""

    def forward(self, x, y=None):
        h = x
        for number, gp in enumerate(self.layers):
            h = pyro.sample(f"h{number}", gp(h))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


def stack(depth: int) -> Stack:
    layers = PyroModule[torch.nn.ModuleList]([hidden(0.1) for _ in range(depth - 1)])
    return Stack(layers=layers, top=GaussianProcess(RBF()), likelihood=gaussian())


def stacked(depth: int):
    def reference() -> Weighted:
        h = layer(ALL, 0.1)
        for _ in range(depth - 2):
            h = layer(column(h), 0.1)
        return regression(function(column(h), DEEP))

    return reference


class Skip(Model):
    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(concatenate_inputs(h, x))), obs=y)


def skip() -> Weighted:
    h = layer(ALL, 0.3)
    both = torch.stack([h, ALL[:, 0].expand_as(h)], -1)
    return regression(function(both, DEEP))


class Warped(Model):
    """A nonlinear map between the layers."""

    def forward(self, x, y=None):
        h = torch.tanh(pyro.sample("h", self.hidden(x)))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


def warped() -> Weighted:
    return regression(function(column(torch.tanh(layer(ALL, 0.3))), DEEP))


class Branches(Model):
    """Two hidden layers beside each other, joined under the top layer."""

    def forward(self, x, y=None):
        a = pyro.sample("a", self.left(x))
        b = pyro.sample("b", self.right(x))
        return pyro.sample("y", self.likelihood(self.top(torch.cat([a, b], -1))), obs=y)


def branches() -> Weighted:
    a, b = layer(ALL, 0.3), layer(ALL, 0.3)
    return regression(function(torch.stack([a, b], -1), DEEP))


class Wide(Model):
    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


def wide() -> Weighted:
    h = torch.stack([layer(ALL, 0.3) for _ in range(2)], -1)
    return regression(function(h, DEEP))


class DeepCounts(Model):
    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        f = pyro.sample("f", self.top(h))
        return pyro.sample("y", dist.Poisson(f[..., 0].exp()).to_event(1), obs=y)


def deep_counts() -> Weighted:
    f = function(column(layer(ALL, 0.3)), DEEP)
    weight = Poisson(f[:, :N].exp()).log_prob(COUNTS).sum(-1)
    return {"f": f[:, N:], "y": torch.poisson(f[:, N:].exp())}, weight


def deep_classes() -> Weighted:
    f = function(column(layer(ALL, 0.3)), DEEP)
    p = Normal(0.0, 1.0).cdf(f)
    weight = torch.distributions.Bernoulli(p[:, :N]).log_prob(LABELS).sum(-1)
    return {"y": torch.bernoulli(p[:, N:]), "f": f[:, N:]}, weight


class Fidelities(Model):
    """A cheap code seen at all rows and a costly one at two of them: linear multi-fidelity (Kennedy and O'Hagan 2000)."""

    def forward(self, x, y=None, cheap=None):
        low = pyro.sample("low", self.low(x))[..., 0]
        change = pyro.sample("change", self.change(x))[..., 0]
        pyro.sample("cheap", dist.Normal(low, 0.3).to_event(1), obs=cheap)
        high = pyro.deterministic("high", 1.5 * low + change)
        if y is None:
            return high
        return pyro.sample("y", dist.Normal(high[..., 1::2], 0.3).to_event(1), obs=y)


COSTLY = Y[1::2] * 1.5 + 0.4


def fidelities() -> Weighted:
    low, change = function(ALL, DEEP), function(ALL, DEEP, lambda a, b: rbf(a, b, 1.0, 0.5))
    high = 1.5 * low + change
    weight = Normal(low[:, :N], 0.3).log_prob(Y).sum(-1) + Normal(high[:, 1:N:2], 0.3).log_prob(COSTLY).sum(-1)
    return {"high": high[:, N:], "f": change[:, N:]}, weight


class NonlinearFidelities(Model):
    """The costly code is an unknown function of the cheap one (Perdikaris and others 2017)."""

    def forward(self, x, y=None, cheap=None):
        low = pyro.sample("low", self.low(x))
        pyro.sample("cheap", dist.Normal(low[..., 0], 0.3).to_event(1), obs=cheap)
        return pyro.sample("y", self.likelihood(self.high(concatenate_inputs(low, x))), obs=y)


def nonlinear_fidelities() -> Weighted:
    low = function(ALL, DEEP)
    both = torch.stack([low, ALL[:, 0].expand_as(low)], -1)
    draws, weight = regression(function(both, DEEP))
    return draws, weight + Normal(low[:, :N], 0.3).log_prob(0.6 * Y).sum(-1)


class HiddenSeen(Model):
    """A hidden layer that is measured too."""

    def forward(self, x, y=None, at_hidden=None):
        h = pyro.sample("h", self.hidden(x))
        pyro.sample("seen", dist.Normal(h[..., 0], 0.3).to_event(1), obs=at_hidden)
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


def hidden_seen() -> Weighted:
    h = layer(ALL, 0.3)
    draws, weight = regression(function(column(h), DEEP))
    return draws, weight + Normal(h[:, :N], 0.3).log_prob(X[:, 0] + 0.2).sum(-1)


def network() -> torch.nn.Module:
    """Features with known weights."""
    linear = torch.nn.Linear(1, 2)
    linear.weight.data = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    linear.bias.data = torch.tensor([0.2, 0.1], dtype=torch.float64)
    return torch.nn.Sequential(linear, torch.nn.Tanh())


def features() -> Weighted:
    x = ALL[:, 0]
    mapped = torch.tanh(torch.stack([x + 0.2, -0.5 * x + 0.1], -1))
    return regression(function(mapped, DEEP))


class Features(Model):
    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.top(self.network(x))), obs=y)


class ErrorsInVariables(Model):
    """Inputs are measured with an error of known size."""

    def forward(self, x, y=None):
        with pyro.plate("rows", len(x)):
            shift = pyro.sample("shift", dist.Normal(0.0, 0.3))
        return pyro.sample("y", self.likelihood(self.gp(x + shift.unsqueeze(-1))), obs=y)


def errors_in_variables() -> Weighted:
    shift = 0.3 * torch.randn(DEEP, len(ALL))
    return regression(function(column(ALL[:, 0] + shift), DEEP))


class ChangePoint(Model):
    """Two regimes that a latent place in x parts."""

    def forward(self, x, y=None):
        place = pyro.sample("place", dist.Normal(0.0, 0.7))
        a = pyro.sample("a", self.first(x))[..., 0]
        b = pyro.sample("b", self.second(x))[..., 0]
        share = torch.sigmoid(4 * (x[:, 0] - place.unsqueeze(-1)))
        f = pyro.deterministic("value", (1 - share) * a + share * b)
        return pyro.sample("y", dist.Normal(f, NOISE**0.5).to_event(1), obs=y)


def change_point() -> Weighted:
    place = 0.7 * torch.randn(DEEP, 1)
    share = torch.sigmoid(4 * (ALL[:, 0] - place))
    second = function(ALL, DEEP)
    f = (1 - share) * function(ALL, DEEP) + share * second
    return {"value": f[:, N:], "f": second[:, N:], "y": noisy(f[:, N:])}, Normal(f[:, :N], NOISE**0.5).log_prob(Y).sum(
        -1
    )


def layered(kind=Layers, **parts):
    """Make a model of two layers."""
    chosen = {"hidden": hidden(), "top": GaussianProcess(RBF()), "likelihood": gaussian()} | parts
    return kind(**chosen)


CASES = [
    Case("two layers", "a hidden layer, a likelihood around the top one", layered, two_layers),
    Case("three sites", "hidden layer, f and y", lambda: layered(ThreeSites), two_layers),
    Case("three layers", "layers in a ModuleList", lambda: stack(3), stacked(3)),
    Case(
        "five layers",
        "layers in a ModuleList",
        lambda: stack(5),
        stacked(5),
        within={"functions": 0.2, "SVI": 0.1, "fit": 0.1},
    ),
    Case("skip connection", "the top layer sees h and x", lambda: layered(Skip, top=GaussianProcess(RBF(ard=2))), skip),
    Case("tanh between layers", "any map of hidden values", lambda: layered(Warped), warped),
    Case(
        "branches",
        "two hidden layers side by side",
        lambda: Branches(left=hidden(), right=hidden(), top=GaussianProcess(RBF(ard=2)), likelihood=gaussian()),
        branches,
    ),
    Case(
        "wide hidden layer",
        "two hidden outputs",
        lambda: layered(
            Wide,
            hidden=GaussianProcess(RBF(variance=0.3), mean=lambda x: x.expand(*x.shape[:-1], 2), num_outputs=2),
            top=GaussianProcess(RBF(ard=2)),
        ),
        wide,
    ),
    Case("deep counts", "Poisson on two layers", lambda: layered(DeepCounts), deep_counts, args=(X, COUNTS), site="f"),
    Case(
        "deep classes",
        "Bernoulli on two layers",
        lambda: layered(likelihood=Bernoulli()),
        deep_classes,
        args=(X, LABELS),
    ),
    Case(
        "multi-fidelity",
        "rho times the cheap code and a change",
        lambda: Fidelities(low=GaussianProcess(RBF()), change=GaussianProcess(RBF(variance=0.5))),
        fidelities,
        args=(X, COSTLY),
        kwargs={"cheap": Y},
        site="high",
        within={"SVI": 0.12, "stock loss": 0.12},
    ),
    Case(
        "nonlinear multi-fidelity",
        "the costly code is a function of the cheap one",
        lambda: NonlinearFidelities(
            low=GaussianProcess(RBF()), high=GaussianProcess(RBF(ard=2)), likelihood=gaussian()
        ),
        nonlinear_fidelities,
        kwargs={"cheap": 0.6 * Y},
    ),
    Case(
        "measured hidden layer",
        "an observed site half way",
        lambda: layered(HiddenSeen),
        hidden_seen,
        kwargs={"at_hidden": X[:, 0] + 0.2},
    ),
    Case(
        "features of a network",
        "deep kernel learning",
        lambda: Features(network=network(), top=GaussianProcess(RBF(ard=2)), likelihood=gaussian()),
        features,
    ),
    Case(
        "errors in variables",
        "a latent shift for each row",
        lambda: ErrorsInVariables(gp=GaussianProcess(RBF()), likelihood=gaussian()),
        errors_in_variables,
    ),
    Case(
        "change point",
        "two functions and a latent place",
        lambda: ChangePoint(first=GaussianProcess(RBF()), second=GaussianProcess(RBF())),
        change_point,
        site="value",
        function="b",
    ),
]
