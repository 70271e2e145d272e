"""Models whose likelihood is one of the library, wrapped around its Gaussian processes."""

from __future__ import annotations

import pyro
import torch
from torch import Tensor
from torch.distributions import Categorical, NegativeBinomial, Normal, Poisson, StudentT

import pyro_dgp
from pyro_dgp import RBF, GaussianProcess
from tests.contract.case import Case, Model, Weighted
from tests.contract.known import ALL, SHALLOW, X, Y, function
from tests.contract.one_layer import CLASSES, COUNTS, EXPOSURE, new, one, seen


class WithExposure(Model):
    def forward(self, x, y=None, exposure=None):
        return pyro.sample("y", self.likelihood(self.gp(x), exposure=exposure), obs=y)


def counted(likelihood) -> WithExposure:
    """Make a model of counts."""
    return WithExposure(gp=GaussianProcess(RBF(variance=0.3)), likelihood=likelihood)


def counts(negative: bool) -> Weighted:
    f = 0.3**0.5 * function(ALL, SHALLOW)
    at, later = seen(f).exp() * EXPOSURE, new(f).exp()
    if not negative:
        return {"y": torch.poisson(later), "f": new(f)}, Poisson(at).log_prob(COUNTS).sum(-1)

    def made(mean: Tensor) -> NegativeBinomial:
        return NegativeBinomial(2.0, probs=0.5 * mean / (1 + 0.5 * mean))

    return {"y": made(later).sample(), "f": new(f)}, made(at).log_prob(COUNTS).sum(-1)


def student() -> Weighted:
    f = function(ALL, SHALLOW)
    y = StudentT(6.0, new(f), 0.4).sample()
    return {"y": y, "f": new(f)}, StudentT(6.0, seen(f), 0.4).log_prob(Y).sum(-1)


def of_classes(probs) -> Weighted:
    f = torch.stack([function(ALL, SHALLOW) for _ in range(3)], -1)
    return {"y": probs(new(f)), "f": new(f)}, Categorical(probs=probs(seen(f))).log_prob(CLASSES).sum(-1)


def largest(f: Tensor) -> Tensor:
    """Probabilities of the robust-max, with a share of errors of 0.1."""
    won = torch.nn.functional.one_hot(f.argmax(-1), 3).double()
    return 0.9 * won + 0.05 * (1 - won)


def ordered() -> Weighted:
    f = function(ALL, SHALLOW)

    def probs(f: Tensor) -> Tensor:
        ends = torch.tensor([-torch.inf, -0.5, 0.7, torch.inf], dtype=f.dtype)
        return Normal(0.0, 1.0).cdf(ends - f.unsqueeze(-1)).diff(dim=-1)

    return {"y": probs(new(f)), "f": new(f)}, Categorical(probs=probs(seen(f))).log_prob(CLASSES).sum(-1)


def of_order() -> pyro_dgp.Ordinal:
    likelihood = pyro_dgp.Ordinal(3)
    likelihood.cutpoints = torch.tensor([-0.5, 0.7])
    return likelihood


class NoisyRegression(Model):
    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x), self.noise(x)), obs=y)


def noisy() -> Weighted:
    f, g = function(ALL, SHALLOW), 0.5**0.5 * function(ALL, SHALLOW)
    y = new(f) + (0.2 * new(g).exp()).sqrt() * torch.randn_like(new(f))
    return {"y": y, "f": new(f)}, Normal(seen(f), (0.2 * seen(g).exp()).sqrt()).log_prob(Y).sum(-1)


CASES = (
    Case(
        "Poisson",
        "the likelihood, with exposure",
        lambda: counted(pyro_dgp.Poisson()),
        lambda: counts(negative=False),
        args=(X, COUNTS),
        kwargs={"exposure": EXPOSURE},
        new_kwargs={"exposure": torch.ones(3)},
    ),
    Case(
        "NegativeBinomial",
        "the likelihood, with exposure",
        lambda: counted(pyro_dgp.NegativeBinomial(0.5)),
        lambda: counts(negative=True),
        args=(X, COUNTS),
        kwargs={"exposure": EXPOSURE},
        new_kwargs={"exposure": torch.ones(3)},
    ),
    Case("StudentT", "the likelihood of outliers", lambda: one(likelihood=pyro_dgp.StudentT(6.0, 0.4)), student),
    Case(
        "Softmax",
        "the likelihood of three functions",
        lambda: one(likelihood=pyro_dgp.Softmax(3), num_outputs=3),
        lambda: of_classes(lambda f: f.softmax(-1)),
        args=(X, CLASSES),
        has_classes=True,
    ),
    Case(
        "RobustMax",
        "the class of the largest function",
        lambda: one(likelihood=pyro_dgp.RobustMax(3, epsilon=0.1), num_outputs=3),
        lambda: of_classes(largest),
        args=(X, CLASSES),
        has_classes=True,
    ),
    Case(
        "Ordinal",
        "ordered classes",
        lambda: one(likelihood=of_order()),
        ordered,
        args=(X, CLASSES),
        has_classes=True,
    ),
    Case(
        "HeteroscedasticGaussian",
        "two GPs under one likelihood",
        lambda: NoisyRegression(
            gp=GaussianProcess(RBF()),
            noise=GaussianProcess(RBF(variance=0.5)),
            likelihood=pyro_dgp.HeteroscedasticGaussian(variance=0.2),
        ),
        noisy,
        function="y/f",
    ),
)
