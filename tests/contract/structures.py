"""Groups, batches, latent variables, hyperparameters with priors, and models that are functions or handlers."""

from __future__ import annotations

import functools
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.nn import PyroSample
from torch.distributions import HalfCauchy, InverseGamma, LogNormal, Normal

from pyro_dgp import RBF, GaussianProcess, concatenate_inputs
from tests.contract.case import Case, Model, Weighted, fixed, gaussian
from tests.contract.known import ALL, DEEP, NEW, NOISE, SHALLOW, Answers, Known, X, Y, answers, function, numbers, rbf
from tests.contract.one_layer import N, Regression, noisy, one, regression

GROUPED = torch.stack([Y, -Y, 2 * Y.flip(0)])


class Plated(Model):
    """A function for each group, with hyperparameters in common."""

    def forward(self, x, y=None):
        with pyro.plate("groups", 3):
            return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


class PlatedTwoSites(Model):
    def forward(self, x, y=None):
        with pyro.plate("groups", 3):
            f = pyro.sample("f", self.gp(x))
            return pyro.sample("y", dist.Normal(f[..., 0], NOISE**0.5).to_event(1), obs=y)


def each(*parts: Weighted):
    """Answers of independent data sets, side by side."""
    own = [answers(*part) for part in parts]
    return Answers(
        sum(one.log_evidence for one in own),
        {
            site: Known(
                *(torch.stack([getattr(one.by_site[site], what) for one in own]) for what in ("mean", "variance"))
            )
            for site in own[0].by_site
        },
        min(one.effective for one in own),
    )


def groups() -> Answers:
    f = function(ALL, SHALLOW)
    return each(*(({"y": noisy(f[:, N:])}, regression(f, y)[1]) for y in GROUPED))


class DeepGroups(Model):
    """A function for each group, on a hidden layer that the groups share."""

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        with pyro.plate("groups", 2):
            return pyro.sample("y", self.likelihood(self.top(h.unsqueeze(-3))), obs=y)


def deep_groups() -> Answers:
    """Groups share the hidden layer: the other groups' targets weigh its draws too."""
    h = ALL[:, 0] + function(ALL, DEEP, lambda a, b: rbf(a, b, 1.0, 0.3))
    parts = [regression(function(h.unsqueeze(-1), DEEP), y) for y in GROUPED[:2]]
    draws = torch.stack([part[0]["y"] for part in parts], 1)
    return answers({"y": draws}, parts[0][1] + parts[1][1])


INPUTS = torch.stack([X, X + 0.3, 1.5 * X])


def batches() -> Answers:
    """Data sets with inputs of their own; predictions are at the same new rows."""
    parts = []
    for x, y in zip(INPUTS, GROUPED, strict=True):
        f = function(torch.cat([x, NEW]), SHALLOW)
        parts.append(({"y": noisy(f[:, N:])}, Normal(f[:, :N], NOISE**0.5).log_prob(y).sum(-1)))
    return each(*parts)


class Offset(Model):
    """A latent offset beside the function."""

    def forward(self, x, y=None):
        offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + offset.unsqueeze(-1), NOISE**0.5).to_event(1), obs=y)


def offset() -> Weighted:
    g = function(ALL, SHALLOW)
    f = g + torch.randn(SHALLOW, 1)
    return {"y": noisy(f[:, N:]), "f": g[:, N:]}, Normal(f[:, :N], NOISE**0.5).log_prob(Y).sum(-1)


class Slope(Model):
    """A linear trend with a prior, and a function around it."""

    def forward(self, x, y=None):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + slope.unsqueeze(-1) * x[:, 0], NOISE**0.5).to_event(1), obs=y)


def slope() -> Weighted:
    g = function(ALL, SHALLOW)
    f = g + torch.randn(SHALLOW, 1) * ALL[:, 0]
    return {"y": noisy(f[:, N:]), "f": g[:, N:]}, Normal(f[:, :N], NOISE**0.5).log_prob(Y).sum(-1)


SITES = torch.tensor([0, 1, 0, 1, 1])


class RandomEffects(Model):
    """A latent offset for each of two places, which rows name by number."""

    def forward(self, x, y=None, place=None):
        with pyro.plate("places", 2):
            effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + effect[..., place], NOISE**0.5).to_event(1), obs=y)


def random_effects() -> Weighted:
    effect = torch.randn(SHALLOW, 2)
    places = torch.cat([SITES, torch.tensor([0, 0, 1])])
    g = function(ALL, SHALLOW)
    f = g + effect[:, places]
    return {"y": noisy(f[:, N:]), "f": g[:, N:]}, Normal(f[:, :N], NOISE**0.5).log_prob(Y).sum(-1)


class LatentInputs(Model):
    """Rows with a latent input each: a conditional density with two modes."""

    def forward(self, x, y=None):
        with pyro.plate("rows", len(x)):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        both = concatenate_inputs(x, w.unsqueeze(-1))
        return pyro.sample("y", self.likelihood(self.gp(both)), obs=y)


def latent_inputs() -> Weighted:
    w = torch.randn(DEEP, len(ALL))
    both = torch.stack([ALL[:, 0].expand_as(w), w], -1)
    draws, weight = regression(function(both, DEEP))
    return {"y": draws["y"]}, weight


def with_prior(site: str, prior) -> Regression:
    """Make a model with a prior on one hyperparameter."""
    model = one()
    owner, name = {
        "lengthscale": (model.gp.kernel, "lengthscale"),
        "variance": (model.gp.kernel, "variance"),
        "noise": (model.likelihood, "variance"),
    }[site]
    setattr(owner, name, PyroSample(prior))
    return model


def sampled(site: str, prior):
    """Return the reference of such a model: a covariance for each draw."""

    def reference() -> Weighted:
        value = prior.sample((DEEP, 1, 1))
        lengthscale, variance = (value if site == name else 1.0 for name in ("lengthscale", "variance"))
        f = function(ALL, DEEP, lambda a, b: rbf(a / lengthscale, b / lengthscale) * variance)
        noise = value[:, :, 0] if site == "noise" else torch.tensor(NOISE)
        y = f[:, N:] + noise.sqrt() * torch.randn_like(f[:, N:])
        return {"y": y, "f": f[:, N:]}, Normal(f[:, :N], noise.sqrt()).log_prob(Y).sum(-1)

    return reference


def all_sampled() -> Regression:
    model = one()
    model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.5))
    model.gp.kernel.variance = PyroSample(dist.LogNormal(0.0, 0.5))
    model.likelihood.variance = PyroSample(dist.LogNormal(-1.5, 0.5))
    return model


def all_sampled_reference() -> Weighted:
    lengthscale, variance, noise = (torch.exp(m + 0.5 * torch.randn(DEEP, 1, 1)) for m in (0.0, 0.0, -1.5))
    f = function(ALL, DEEP, lambda a, b: rbf(a / lengthscale, b / lengthscale) * variance)
    noise = noise[:, :, 0]
    y = f[:, N:] + noise.sqrt() * torch.randn_like(f[:, N:])
    return {"y": y, "f": f[:, N:]}, Normal(f[:, :N], noise.sqrt()).log_prob(Y).sum(-1)


def deep_sampled():
    from tests.contract.deep import layered

    model = layered()
    model.top.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.5))
    return model


def deep_sampled_reference() -> Weighted:
    h = ALL[:, 0] + function(ALL, DEEP, lambda a, b: rbf(a, b, 1.0, 0.3))
    lengthscale = torch.exp(0.5 * torch.randn(DEEP, 1, 1))
    return regression(function(h.unsqueeze(-1) / lengthscale, DEEP))


def as_function():
    """A plain function that names its modules."""
    gp, likelihood = fixed(GaussianProcess(RBF())), fixed(gaussian())

    def model(x, y=None):
        pyro.module("gp", gp)
        return pyro.sample("y", likelihood(gp(x)), obs=y)

    return model


def as_partial():
    model: Any = VaryingOffset(gp=GaussianProcess(RBF()))
    return functools.partial(model, offset=0.5)


class VaryingOffset(Model):
    def forward(self, x, y=None, offset=0.0):
        f = pyro.sample("f", self.gp(x))[..., 0]
        return pyro.sample("y", dist.Normal(f + offset, NOISE**0.5).to_event(1), obs=y)


def shifted(by: float):
    def reference() -> Weighted:
        f = function(ALL, SHALLOW)
        return {"f": f[:, N:], "y": noisy(f[:, N:] + by)}, Normal(f[:, :N] + by, NOISE**0.5).log_prob(Y).sum(-1)

    return reference


class Tempered(Model):
    """Targets that count half."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with poutine.scale(scale=0.5):
            return pyro.sample("y", dist.Normal(f, NOISE**0.5).to_event(1), obs=y)


def tempered() -> Weighted:
    draws, weight = regression(function(ALL, SHALLOW))
    return draws, 0.5 * weight


class Masked(Model):
    """Rows that are masked out."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        if y is None:
            return pyro.sample("y", dist.Normal(f, NOISE**0.5).to_event(1))
        with pyro.plate("rows", len(x)), poutine.mask(mask=torch.arange(len(x)) % 2 == 0):
            return pyro.sample("y", dist.Normal(f, NOISE**0.5), obs=y)


def masked() -> Weighted:
    f = function(ALL, SHALLOW)
    kept = [0, 2, 4]
    return {"f": f[:, N:]}, Normal(f[:, kept], NOISE**0.5).log_prob(Y[kept]).sum(-1)


class InPlate(Model):
    """The targets, and they alone, in a plate over rows."""

    def forward(self, x, y=None):
        f = pyro.sample("f", self.gp(x))[..., 0]
        with pyro.plate("rows", len(x)):
            return pyro.sample("y", dist.Normal(f, NOISE**0.5), obs=y)


class OwnData(Model):
    """A model that holds other data of its own: the same function seen at other rows."""

    def forward(self, x, y=None):
        both = torch.cat([x, self.other_x])
        f = pyro.sample("f", self.gp(both))[..., 0]
        pyro.sample("other", dist.Normal(f[..., len(x) :], 0.3).to_event(1), obs=self.other_y)
        return pyro.sample("y", dist.Normal(f[..., : len(x)], NOISE**0.5).to_event(1), obs=y)


OTHER_X, OTHER_Y = numbers(-1.2, 0.5, 2.0)[:, None], numbers(-0.5, 0.9, -0.3)


def own_data() -> Weighted:
    f = function(torch.cat([X, OTHER_X, NEW]), SHALLOW)
    weight = Normal(f[:, :N], NOISE**0.5).log_prob(Y).sum(-1) + Normal(f[:, N : N + 3], 0.3).log_prob(OTHER_Y).sum(-1)
    return {"y": noisy(f[:, N + 3 :]), "f": f[:, N + 3 :]}, weight


def hidden_groups():
    parts = {"hidden": GaussianProcess(RBF(variance=0.3), mean=lambda x: x), "top": GaussianProcess(RBF())}
    return DeepGroups(**parts, likelihood=gaussian())


CASES = [
    Case(
        "groups",
        "a plate of functions",
        lambda: Plated(gp=GaussianProcess(RBF()), likelihood=gaussian()),
        groups,
        args=(X, GROUPED),
    ),
    Case(
        "groups, two sites",
        "f and y in a plate of groups",
        lambda: PlatedTwoSites(gp=GaussianProcess(RBF())),
        groups,
        args=(X, GROUPED),
    ),
    Case("groups on a shared layer", "hidden layer in common", hidden_groups, deep_groups, args=(X, GROUPED[:2])),
    Case("batch of data sets", "inputs (B, N, D)", one, batches, args=(INPUTS, GROUPED), new=(NEW.expand(3, 3, 1),)),
    Case("latent offset", "a latent number beside f", lambda: Offset(gp=GaussianProcess(RBF())), offset),
    Case("latent slope", "a linear trend with a prior", lambda: Slope(gp=GaussianProcess(RBF())), slope),
    Case(
        "random effects",
        "a latent offset for each place",
        lambda: RandomEffects(gp=GaussianProcess(RBF())),
        random_effects,
        kwargs={"place": SITES},
        new_kwargs={"place": torch.tensor([0, 0, 1])},
        within={"functions": 1.0},
    ),
    Case(
        "latent inputs",
        "a latent input for each row",
        lambda: LatentInputs(gp=GaussianProcess(RBF(ard=2)), likelihood=gaussian()),
        latent_inputs,
    ),
    Case(
        "prior on the lengthscale",
        "PyroSample(LogNormal)",
        lambda: with_prior("lengthscale", dist.LogNormal(0.0, 0.5)),
        sampled("lengthscale", LogNormal(0.0, 0.5)),
    ),
    Case(
        "prior on the variance",
        "PyroSample(HalfCauchy)",
        lambda: with_prior("variance", dist.HalfCauchy(1.0)),
        sampled("variance", HalfCauchy(1.0)),
    ),
    Case(
        "prior on the noise",
        "PyroSample(InverseGamma)",
        lambda: with_prior("noise", dist.InverseGamma(2.0, 0.3)),
        sampled("noise", InverseGamma(2.0, 0.3)),
    ),
    Case("priors on all", "three hyperparameters with priors", all_sampled, all_sampled_reference),
    Case("deep, with a prior", "two layers, a lengthscale with a prior", deep_sampled, deep_sampled_reference),
    Case("plain function", "a function that names modules", as_function, lambda: regression(function(ALL, SHALLOW))),
    Case("partial", "functools.partial of a model", as_partial, shifted(0.5)),
    Case(
        "conditioned",
        "poutine.condition(model)",
        lambda: poutine.condition(Offset(gp=GaussianProcess(RBF())), data={"offset": torch.tensor(0.5)}),
        shifted(0.5),
    ),
    Case("tempered targets", "poutine.scale around y", lambda: Tempered(gp=GaussianProcess(RBF())), tempered),
    Case(
        "masked rows", "poutine.mask on targets in a plate", lambda: Masked(gp=GaussianProcess(RBF())), masked, site="f"
    ),
    Case(
        "targets in a plate",
        "f outside, y inside the plate",
        lambda: InPlate(gp=GaussianProcess(RBF())),
        lambda: regression(function(ALL, SHALLOW)),
    ),
    Case(
        "data of its own",
        "a second data set inside the model",
        lambda: OwnData(gp=GaussianProcess(RBF()), other_x=OTHER_X, other_y=OTHER_Y),
        own_data,
    ),
]
