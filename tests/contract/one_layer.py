"""Models of one layer: idioms of regression, counts, classes, and what stands between a function and the targets."""

from __future__ import annotations

import math

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor
from torch.distributions import (
    Bernoulli as TorchBernoulli,
)
from torch.distributions import Beta, Binomial, Categorical, Gamma, NegativeBinomial, Normal, Poisson, StudentT

from pyro_dgp import (
    RBF,
    Bernoulli,
    FromFunction,
    Gaussian,
    GaussianProcess,
    LinearCoregionalization,
    Matern12,
    Matern52,
    Periodic,
)
from tests.contract.case import Case, Model, Weighted, gaussian
from tests.contract.known import ALL, NOISE, SHALLOW, X, Y, function, numbers, rbf

N = len(X)
COUNTS = numbers(0, 1, 1, 4, 2)
LABELS = numbers(0, 0, 1, 1, 1)
CLASSES = torch.tensor([0, 0, 1, 2, 2])
POSITIVE = numbers(0.4, 0.5, 1.2, 2.5, 1.8)


def seen(draws: Tensor) -> Tensor:
    """Values at the training rows."""
    return draws[:, :N]


def new(draws: Tensor) -> Tensor:
    """Values at the test rows."""
    return draws[:, N:]


def noisy(f: Tensor, variance: float = NOISE) -> Tensor:
    """Targets of function values, with Gaussian noise."""
    return f + variance**0.5 * torch.randn_like(f)


def regression(f: Tensor, y: Tensor = Y, variance: float = NOISE) -> Weighted:
    """Draws and weights of regression with Gaussian noise."""
    return {"y": noisy(new(f), variance), "f": new(f)}, Normal(seen(f), variance**0.5).log_prob(y).sum(-1)


class Regression(Model):
    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


def one(kernel=None, likelihood=None, **options):
    """Make a model of one site."""
    return Regression(gp=GaussianProcess(kernel or RBF(), **options), likelihood=likelihood or gaussian())


class TwoSites(Model):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", dist.Normal(f[..., 0], NOISE**0.5).to_event(1), obs=y)


class Given(Model):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", self.likelihood.given(f), obs=y)


class Counts(Model):
    def forward(self, x, y=None, exposure=None):
        f = pyro.sample("f", self.gp(x))
        rate = pyro.deterministic("rate", f[..., 0].exp())
        return pyro.sample("y", dist.Poisson(rate * exposure).to_event(1), obs=y)


EXPOSURE = numbers(1, 2, 0.5, 2, 1)


def counts() -> Weighted:
    f = function(ALL, SHALLOW)
    return {"rate": new(f).exp(), "f": new(f), "y": torch.poisson(new(f).exp())}, Poisson(
        seen(f).exp() * EXPOSURE
    ).log_prob(COUNTS).sum(-1)


class Plain(Model):
    """A plain site whose distribution is made from function values."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        fn = self.made(f[..., 0])
        return pyro.sample("y", fn if fn.event_shape else fn.to_event(1), obs=y)


def plain(made, **parts):
    """Make a model of two sites from a function of the values."""
    model = Plain(gp=GaussianProcess(RBF()), **parts)
    model.made = made
    return model


def through(made, y):
    """Return the reference of such a model: f itself is compared."""

    def reference() -> Weighted:
        f = function(ALL, SHALLOW)
        return {"f": new(f), "y": made(new(f)).sample()}, made(seen(f)).log_prob(y).sum(-1)

    return reference


class Softmax(Model):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", dist.Categorical(logits=f).to_event(1), obs=y)


def softmax() -> Weighted:
    f = torch.stack([function(ALL, SHALLOW) for _ in range(3)], -1)
    return {"y": new(f).softmax(-1), "f": new(f)}, Categorical(logits=seen(f)).log_prob(CLASSES).sum(-1)


class Ordinal(Model):
    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))
        return pyro.sample("y", dist.OrderedLogistic(f[..., 0], torch.tensor([-0.5, 0.7])).to_event(1), obs=y)


def ordinal() -> Weighted:
    f = function(ALL, SHALLOW)
    above = torch.sigmoid(f.unsqueeze(-1) - torch.tensor([-0.5, 0.7]))
    probs = torch.stack([1 - above[..., 0], above[..., 0] - above[..., 1], above[..., 1]], -1)
    return {"y": new(probs), "f": new(f)}, Categorical(probs=seen(probs)).log_prob(CLASSES).sum(-1)


class TwoFunctionNoise(Model):
    def forward(self, x, y=None):
        f = pyro.sample("a", self.mean(x))
        g = pyro.sample("g", self.log_noise(x))
        return pyro.sample("y", dist.Normal(f[..., 0], torch.exp(0.5 * g[..., 0] - 1)).to_event(1), obs=y)


def two_function_noise() -> Weighted:
    f, g = function(ALL, SHALLOW), function(ALL, SHALLOW)
    y = new(f) + torch.exp(0.5 * new(g) - 1) * torch.randn_like(new(f))
    return {"a": new(f), "f": new(g), "y": y}, Normal(seen(f), torch.exp(0.5 * seen(g) - 1)).log_prob(Y).sum(-1)


class Mixture(Model):
    """Two functions and a gate that says which of them a row follows."""

    def forward(self, x, y=None):
        a = pyro.sample("a", self.first(x))[..., 0]
        b = pyro.sample("b", self.second(x))[..., 0]
        gate = pyro.sample("gate", self.gate(x))[..., 0]
        weights = torch.stack([gate, -gate], -1)
        parts = dist.Normal(torch.stack([a + 1, b - 1], -1), NOISE**0.5)
        return pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(logits=weights), parts).to_event(1), obs=y)


def mixture() -> Weighted:
    a, b, gate = (function(ALL, SHALLOW) for _ in range(3))
    first = Normal(seen(a) + 1, NOISE**0.5).log_prob(Y) + torch.nn.functional.logsigmoid(2 * seen(gate))
    second = Normal(seen(b) - 1, NOISE**0.5).log_prob(Y) + torch.nn.functional.logsigmoid(-2 * seen(gate))
    chosen = torch.rand_like(new(gate)) < torch.sigmoid(2 * new(gate))
    values = torch.where(chosen, new(a) + 1, new(b) - 1)
    return {"y": noisy(values), "f": new(gate)}, torch.logaddexp(first, second).sum(-1)


class Preference(Model):
    """Which of two rows is better: pairs (0, 1), (1, 2), ..., each a difference of the same function."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Bernoulli(logits=2 * (f[..., 1:] - f[..., :-1])).to_event(1), obs=y)


PREFERRED = numbers(1, 1, 1, 0)


def preference() -> Weighted:
    f = function(ALL, SHALLOW)
    differences = 2 * (seen(f)[:, 1:] - seen(f)[:, :-1])
    return {"f": new(f)}, TorchBernoulli(logits=differences).log_prob(PREFERRED).sum(-1)


class Sums(Model):
    """Targets are means of neighbouring rows: fewer targets than rows."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        bins = 0.5 * (f[..., 1:] + f[..., :-1])
        return pyro.sample("y", dist.Normal(bins, 0.3).to_event(1), obs=y)


def sums() -> Weighted:
    f = function(ALL, SHALLOW)
    bins = 0.5 * (seen(f)[:, 1:] + seen(f)[:, :-1])
    return {"f": new(f)}, Normal(bins, 0.3).log_prob(Y[1:]).sum(-1)


class SecondLikelihood(Model):
    """One function seen twice: by counts and by real numbers."""

    def forward(self, x, y=None, counts=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        pyro.sample("counts", dist.Poisson(f.exp()).to_event(1), obs=counts)
        return pyro.sample("y", dist.Normal(f, NOISE**0.5).to_event(1), obs=y)


def second_likelihood() -> Weighted:
    f = function(ALL, SHALLOW)
    weight = Poisson(seen(f).exp()).log_prob(COUNTS) + Normal(seen(f), NOISE**0.5).log_prob(Y)
    return {"f": new(f)}, weight.sum(-1)


class VaryingCoefficient(Model):
    """A slope that is a function of time: y = f(t) z, with a second input z."""

    def forward(self, x, y=None, z=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f * z, NOISE**0.5).to_event(1), obs=y)


SLOPES = numbers(1, -2, 1.5, 0.5, 2)


def varying_coefficient() -> Weighted:
    f = function(ALL, SHALLOW)
    return {"f": new(f), "y": noisy(new(f))}, Normal(seen(f) * SLOPES, NOISE**0.5).log_prob(Y).sum(-1)


class Outputs(Model):
    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


PAIRS = torch.stack([Y, Y.flip(0)], -1)


def outputs() -> Weighted:
    f = torch.stack([function(ALL, SHALLOW) for _ in range(2)], -1)
    return {"y": noisy(new(f)), "f": new(f)}, Normal(seen(f), NOISE**0.5).log_prob(PAIRS).sum((-1, -2))


MIXING = numbers(1, 0.5, -0.7, 1.2).reshape(2, 2)


def coregionalized() -> Weighted:
    g = torch.stack([function(ALL, SHALLOW) for _ in range(2)], -1)
    f = g @ MIXING.mT
    return {"y": noisy(new(f)), "f": new(g)}, Normal(seen(f), NOISE**0.5).log_prob(PAIRS).sum((-1, -2))


def coregionalization():
    likelihood = LinearCoregionalization(2, 2, variance=NOISE)
    likelihood.mixing = MIXING
    return Outputs(gp=GaussianProcess(RBF(), num_outputs=2), likelihood=likelihood)


class Missing(Model):
    """Some targets are missing: an argument by row says which are there."""

    def forward(self, x, y=None, present=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        if y is None:
            return pyro.sample("y", dist.Normal(f, NOISE**0.5).to_event(1))
        with pyro.plate("rows", len(x)), pyro.poutine.mask(mask=present):
            return pyro.sample("y", dist.Normal(f, NOISE**0.5), obs=y)


PRESENT = torch.tensor([True, False, True, False, True])


def missing() -> Weighted:
    f = function(ALL, SHALLOW)
    kept = [0, 2, 4]
    return {"f": new(f)}, Normal(seen(f)[:, kept], NOISE**0.5).log_prob(Y[kept]).sum(-1)


def zero_inflated(f: Tensor) -> Tensor:
    """Log probability of counts that are zero in two cases of ten besides."""
    own = Poisson(f.exp()).log_prob(COUNTS) + math.log(0.8)
    return torch.where(COUNTS == 0, torch.logaddexp(own, torch.tensor(math.log(0.2))), own)


def zero_inflated_reference() -> Weighted:
    f = function(ALL, SHALLOW)
    return {"f": new(f)}, zero_inflated(seen(f)).sum(-1)


def with_kernel(kernel, mean=None):
    """Return the reference of regression under another kernel."""

    def reference() -> Weighted:
        f = function(ALL, SHALLOW, kernel)
        return regression(f if mean is None else f + mean(ALL[:, 0]))

    return reference


def gaps(a: Tensor, b: Tensor) -> Tensor:
    """Distances of inputs of one dimension."""
    return (a[..., :, None, 0] - b[..., None, :, 0]).abs()


def matern52(a: Tensor, b: Tensor) -> Tensor:
    r = 5**0.5 * gaps(a, b)
    return (1 + r + r.square() / 3) * torch.exp(-r)


def periodic(a: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-2 * torch.sin(math.pi * gaps(a, b) / 2).square())


CLOSED = "no closed form"
CASES = [
    Case("regression", "likelihood wrapped around a GP", one, lambda: regression(function(ALL, SHALLOW))),
    Case(
        "two sites",
        "f, then y from a plain Normal",
        lambda: TwoSites(gp=GaussianProcess(RBF())),
        lambda: regression(function(ALL, SHALLOW)),
    ),
    Case(
        "given",
        "f, then likelihood.given(f)",
        lambda: Given(gp=GaussianProcess(RBF()), likelihood=gaussian()),
        lambda: regression(function(ALL, SHALLOW)),
    ),
    Case(
        "kernel algebra",
        "2 * RBF + Matern + 0.5",
        lambda: one(2 * RBF() + Matern52() + 0.5),
        with_kernel(lambda a, b: 2 * rbf(a, b) + matern52(a, b) + 0.5),
    ),
    Case(
        "kernel product",
        "Periodic * Matern",
        lambda: one(Periodic(period=2.0) * Matern52()),
        with_kernel(lambda a, b: periodic(a, b) * matern52(a, b)),
    ),
    Case(
        "kernel from a function",
        "FromFunction",
        lambda: one(FromFunction(lambda x, z: torch.exp(-(x - z.mT).abs()))),
        with_kernel(lambda a, b: torch.exp(-gaps(a, b))),
    ),
    Case("rough kernel", "Matern 1/2", lambda: one(Matern12()), with_kernel(lambda a, b: torch.exp(-gaps(a, b)))),
    Case(
        "network as mean",
        "any nn.Module as the mean",
        lambda: one(mean=line()),
        with_kernel(rbf, lambda x: 0.8 * x - 0.1),
    ),
    Case(
        "function as mean",
        "a lambda as the mean",
        lambda: one(mean=lambda x: 0.8 * x - 0.1),
        with_kernel(rbf, lambda x: 0.8 * x - 0.1),
    ),
    Case(
        "counts with exposure",
        "Poisson with an argument by row",
        lambda: Counts(gp=GaussianProcess(RBF())),
        counts,
        args=(X, COUNTS),
        kwargs={"exposure": EXPOSURE},
        new_kwargs={"exposure": torch.ones(3)},
        site="rate",
    ),
    Case(
        "negative binomial",
        "overdispersed counts",
        lambda: plain(lambda f: dist.NegativeBinomial(3.0, logits=f)),
        through(lambda f: NegativeBinomial(3.0, logits=f), COUNTS),
        args=(X, COUNTS),
        site="f",
    ),
    Case(
        "binomial",
        "counts out of five",
        lambda: plain(lambda f: dist.Binomial(5, logits=f)),
        through(lambda f: Binomial(5, logits=f), COUNTS),
        args=(X, COUNTS),
        site="f",
    ),
    Case(
        "zero-inflated counts",
        "ZeroInflatedPoisson",
        lambda: plain(lambda f: dist.ZeroInflatedPoisson(f.exp(), gate=torch.tensor(0.2))),
        zero_inflated_reference,
        args=(X, COUNTS),
        site="f",
    ),
    Case(
        "probit",
        "Bernoulli around a GP",
        lambda: one(likelihood=Bernoulli()),
        lambda: classes_by(lambda f: Normal(0.0, 1.0).cdf(f)),
        args=(X, LABELS),
    ),
    Case(
        "logit",
        "a plain Bernoulli site",
        lambda: plain(lambda f: dist.Bernoulli(logits=f)),
        through(lambda f: TorchBernoulli(logits=f), LABELS),
        args=(X, LABELS),
        site="f",
    ),
    Case(
        "softmax",
        "three classes",
        lambda: Softmax(gp=GaussianProcess(RBF(), num_outputs=3)),
        softmax,
        args=(X, CLASSES),
        has_classes=True,
    ),
    Case(
        "ordinal",
        "OrderedLogistic",
        lambda: Ordinal(gp=GaussianProcess(RBF())),
        ordinal,
        args=(X, CLASSES),
        has_classes=True,
    ),
    Case(
        "Student-t",
        "heavy-tailed noise",
        lambda: plain(lambda f: dist.StudentT(4.0, f, 0.4)),
        through(lambda f: StudentT(4.0, f, 0.4), Y),
        site="f",
    ),
    Case(
        "gamma",
        "positive targets",
        lambda: plain(lambda f: dist.Gamma(4.0, 4 * (-f).exp())),
        through(lambda f: Gamma(4.0, 4 * (-f).exp()), POSITIVE),
        args=(X, POSITIVE),
        site="f",
    ),
    Case(
        "beta",
        "targets between 0 and 1",
        lambda: plain(lambda f: dist.Beta(5 * f.sigmoid(), 5 * (1 - f.sigmoid()))),
        through(lambda f: Beta(5 * f.sigmoid(), 5 * (1 - f.sigmoid())), POSITIVE / 3),
        args=(X, POSITIVE / 3),
        site="f",
    ),
    Case(
        "noise from a second GP",
        "input-dependent noise",
        lambda: TwoFunctionNoise(mean=GaussianProcess(RBF()), log_noise=GaussianProcess(RBF())),
        two_function_noise,
        site="a",
        function="g",
        within={"fit": 0.1, "gamma": 0.1, "SVI": 0.1, "stock loss": 0.1, "functions": 0.15},
    ),
    Case(
        "gated mixture",
        "two functions and a gate",
        lambda: Mixture(first=GaussianProcess(RBF()), second=GaussianProcess(RBF()), gate=GaussianProcess(RBF())),
        mixture,
        function="gate",
        within={"functions": 0.4},
    ),
    Case(
        "preferences",
        "which of two rows is better",
        lambda: Preference(gp=GaussianProcess(RBF())),
        preference,
        args=(X, PREFERRED),
        site="f",
    ),
    Case(
        "means of bins",
        "fewer targets than rows",
        lambda: Sums(gp=GaussianProcess(RBF())),
        sums,
        args=(X, Y[1:]),
        site="f",
    ),
    Case(
        "second likelihood",
        "counts and real numbers of one function",
        lambda: SecondLikelihood(gp=GaussianProcess(RBF())),
        second_likelihood,
        kwargs={"counts": COUNTS},
        site="f",
    ),
    Case(
        "varying coefficient",
        "y = f(t) z",
        lambda: VaryingCoefficient(gp=GaussianProcess(RBF())),
        varying_coefficient,
        kwargs={"z": SLOPES},
        new_kwargs={"z": torch.ones(3)},
        site="f",
        within={"predictive": 3.0, "amortised": 1.5, "EP": 0.1},
    ),
    Case(
        "two outputs",
        "independent outputs",
        lambda: Outputs(gp=GaussianProcess(RBF(), num_outputs=2), likelihood=Gaussian(2, variance=NOISE)),
        outputs,
        args=(X, PAIRS),
        within={"exact": 0.02},
    ),
    Case(
        "correlated outputs",
        "LinearCoregionalization",
        coregionalization,
        coregionalized,
        args=(X, PAIRS),
        has_outputs=True,
        within={"exact": 0.02},
    ),
    Case(
        "missing targets",
        "an argument says which are there",
        lambda: Missing(gp=GaussianProcess(RBF())),
        missing,
        kwargs={"present": PRESENT},
        site="f",
    ),
]


def line() -> torch.nn.Module:
    """A linear map of known weights."""
    linear = torch.nn.Linear(1, 1)
    linear.weight.data.fill_(0.8)
    linear.bias.data.fill_(-0.1)
    return linear


def classes_by(link) -> Weighted:
    """Draws and weights of two classes by a link."""
    f = function(ALL, SHALLOW)
    p = link(f)
    return {"y": TorchBernoulli(new(p)).sample(), "f": new(f)}, TorchBernoulli(seen(p)).log_prob(LABELS).sum(-1)
