# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A model of your own
#
# A model of this library is a `PyroModule` with sample statements. Its Gaussian processes are sites, and everything
# around them is plain Pyro. So a model is not chosen from a list, it is written. This tutorial writes four of them, and
# then three new parts:
#
# 1. counts that were watched for different times;
# 2. noise that has a Gaussian process of its own;
# 3. an unseen input, which makes a density of any shape;
# 4. a cheap simulation and a costly one;
# 5. a kernel, a likelihood and a basis of your own.
#
# Each model is fitted in the same way, by the function `trained` below. All are small and have one or two layers.

# %%
import math
import os
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from sklearn.datasets import load_iris

from pyro_dgp import (
    ELBO,
    RBF,
    Basis,
    BasisFamily,
    Conditional,
    Covariance,
    Gaussian,
    GaussianProcess,
    HeteroscedasticGaussian,
    InducingPoints,
    Kernel,
    Likelihood,
    MonteCarlo,
    Poisson,
    RowObservation,
    Variational,
    concatenate_inputs,
    fit,
    predict,
)

SMOKE = os.environ.get("PYRO_DGP_SMOKE") == "1"


def steps(full, smoke=2):
    """The length of a loop: `smoke` if the tutorial is only run to see that it runs."""
    return smoke if SMOKE else full


torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
plt.rcParams.update({"figure.dpi": 80, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})


def trained(model, x, y, *, count, family=InducingPoints(20), draws=1, networks=None, **arguments):
    """A guide of any model, trained by the evidence lower bound on all rows in each step."""
    pyro.set_rng_seed(0)
    guide = Variational(model, family, MonteCarlo(draws), networks=networks or {})
    guide.initialize(x, y, **arguments)
    objective = ELBO(num_data=len(x))(model, guide)
    result = fit(objective, x, y, steps=steps(count), batch_size=len(x), learning_rate=0.02, **arguments)
    print(f"loss {sum(result.losses[-20:]) / len(result.losses[-20:]):.3f} nats a row")
    return guide


# %% [markdown]
# ## 1. Counts with exposure
#
# A counter was read after different times, between 1 and 30 hours. The rate of events follows an unknown function: $y_n
# \sim \mathrm{Poisson}(t_n\, e^{f(x_n)})$. The time $t_n$ is the *exposure*. It is an argument of the model, and goes
# on to the likelihood.


# %%
class Events(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(lengthscale=0.5)), Poisson()

    def forward(self, x, y=None, hours=None):
        return pyro.sample("y", self.likelihood(self.gp(x), exposure=hours), obs=y)


def true_rate(x):
    return torch.exp(0.5 + torch.sin(3 * x[:, 0]))


pyro.set_rng_seed(0)
x = 4 * torch.rand(80, 1) - 2
hours = 1 + 29 * torch.rand(80).square()
events = dist.Poisson(hours * true_rate(x)).sample()
guide = trained(Events(), x, events, count=400, hours=hours)

# %% [markdown]
# A prediction needs the exposure of its own rows. With one hour each, the mean of the count is the rate.

# %%
grid = torch.linspace(-2, 2, 121)[:, None]
at = grid[:, 0]
for_one_hour = predict(guide, grid, hours=torch.ones(121))
for_a_day = predict(guide, grid, hours=torch.full((121,), 24.0))
low, high = for_a_day.quantile([0.05, 0.95])

figure, axes = plt.subplots(1, 2, figsize=(8.5, 2.7), layout="constrained")
axes[0].scatter(x[:, 0], events / hours, s=2 * hours, color="0.5", label="counts by hours, area by hours")
axes[0].plot(at, true_rate(grid), "k--", lw=0.9, label="true rate")
axes[0].plot(at, for_one_hour.mean, color="C0", label="predicted rate")
axes[0].set(xlabel="$x$", ylabel="events an hour", ylim=(0, 9))
axes[0].legend(fontsize=7, frameon=False)
axes[1].fill_between(at, low, high, color="C0", alpha=0.25, lw=0, step="mid", label="90 % of counts")
axes[1].plot(at, 24 * true_rate(grid), "k--", lw=0.9)
axes[1].set(xlabel="$x$", ylabel="events a day", ylim=(0, 180))
_ = axes[1].legend(fontsize=7, frameon=False)

# %% [markdown]
# Small dots are counts of a short time, and they scatter widely: a single event in an hour is a rate of one. The model
# knows how long each was watched, and follows the large dots. The band on the right is one of counts, with the noise of
# counting.
#
# ## 2. Noise with a function of its own
#
# The width of an iris petal by its length. Long petals vary more. One number for the noise cannot say that. So the
# likelihood takes two Gaussian processes: the first is the mean, and the noise variance is `variance * exp(g)` with the
# second one, $g$.


# %%
class Noisy(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.noise = GaussianProcess(RBF()), GaussianProcess(RBF())
        self.likelihood = HeteroscedasticGaussian()

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x), self.noise(x)), obs=y)


class OneNoise(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF()), Gaussian()

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


flowers = torch.as_tensor(load_iris().data)[:, 2:]
flowers = (flowers - flowers.mean(0)) / flowers.std(0)
order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
petals, widths = flowers[order[:100], :1], flowers[order[:100], 1]
new_petals, new_widths = flowers[order[100:], :1], flowers[order[100:], 1]
wide = torch.linspace(-1.8, 2, 121)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(8.5, 2.7), sharey=True, layout="constrained")
noises = {"one noise variance": OneNoise(), "noise by a function": Noisy()}
for axis, (name, model) in zip(axes, noises.items(), strict=True):
    guide = trained(model, petals, widths, count=600)
    low, high = predict(guide, wide).quantile([0.05, 0.95])
    axis.fill_between(wide[:, 0], low, high, color="C0", alpha=0.25, lw=0)
    axis.plot(wide[:, 0], predict(guide, wide).mean, color="C0")
    axis.plot(petals[:, 0], widths, "k.", ms=3)
    axis.set(title=name, xlabel="petal length, standardised")
    nll = -predict(guide, new_petals).log_prob(new_widths).mean()
    print(f"{name}: test NLL {nll:.3f} nats a row")
_ = axes[0].set_ylabel("petal width")

# %% [markdown]
# With one variance the band is as wide for short petals as for long ones: too wide on the left. With a function for the
# noise it widens to the right. The test NLL falls from 0.064 to -0.140 nats a row. `predict(guide, x,
# site="y/log_noise")` shows the function $g$ itself.
#
# ## 3. An unseen input
#
# Here a target has two branches, and no input says which one. Neither noise model above can have two humps. But a
# function of $x$ *and of a number $w_n$ that nobody has seen* can: $y_n = f(x_n, w_n)$ and noise, with $w_n \sim
# \mathcal N(0, 1)$. Where $f$ is low for $w < 0$ and high for $w > 0$, the density of $y$ has two humps. The site `w`
# is a plain Pyro site in a plate over the rows.


# %%
class Unseen(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(ard=2)), Gaussian(variance=0.05)

    def forward(self, x, y=None):
        with pyro.plate("rows", x.shape[-2]):
            w = pyro.sample("w", dist.Normal(x.new_zeros(1), 1.0).to_event(1))
        return pyro.sample("y", self.likelihood(self.gp(concatenate_inputs(x, w))), obs=y)


class Encoder(torch.nn.Module):
    """Where w is, given x and y; without y nothing is known, and the guide draws from the prior."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.Tanh(), torch.nn.Linear(20, 2))

    def forward(self, x, y=None):
        if y is None:
            return None
        loc, log_scale = self.layers(torch.cat([x, y[:, None]], -1)).chunk(2, -1)
        return dist.Normal(loc, (log_scale - 1).exp()).to_event(1)


pyro.set_rng_seed(1)


def branches(count):
    inputs = 4 * torch.rand(count, 1) - 2
    side = torch.where(torch.rand(count) < 0.7, 1.0, -1.0)
    return inputs, 0.5 * torch.sin(2 * inputs[:, 0]) + side * torch.sigmoid(3 * inputs[:, 0]) + 0.1 * torch.randn(count)


forked, y_forked = branches(300)
forked_test, y_forked_test = branches(1000)
heights = torch.linspace(-2, 2, 121)
across = torch.linspace(-2, 2, 101)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(8.5, 2.7), sharey=True, layout="constrained")
pairs = {"no unseen input": (OneNoise(), {}), "an unseen input": (Unseen(), {"w": Encoder()})}
for axis, (name, (model, networks)) in zip(axes, pairs.items(), strict=True):
    guide = trained(model, forked, y_forked, count=800, networks=networks, draws=5 if networks else 1)
    prediction = predict(guide, across, num_samples=steps(200, smoke=5))
    with torch.no_grad():
        density = torch.stack([prediction.log_prob(height.expand(101)) for height in heights]).exp()
    axis.pcolormesh(across[:, 0].numpy(), heights.numpy(), density.numpy(), vmin=0, vmax=2.5, cmap="Blues")
    axis.plot(forked[:, 0], y_forked, "k.", ms=1.5)
    axis.set(title=name, xlabel="$x$")
    nll = -predict(guide, forked_test, num_samples=steps(200, smoke=5)).log_prob(y_forked_test).mean()
    print(f"{name}: test NLL {nll:.3f} nats a row")
_ = axes[0].set_ylabel("$y$")

# %% [markdown]
# Without an unseen input the density is one wide hump, highest between the branches where no target is. With it there
# are two humps on the right and one on the left, and the test NLL falls from 0.904 to 0.096 nats a row. A thin veil
# stays between the branches: the function has to cross from one to the other somewhere, and some $w$ fall there.
#
# ## 4. A cheap simulation and a costly one
#
# A costly simulation was run at fourteen inputs, a cheap one at forty. The cheap one is wrong, but what is wrong with
# it is regular: the costly result is an unknown function of the cheap one and of $x$ (Perdikaris and others 2017). That
# is a deep GP whose hidden layer is *observed*, by the cheap runs.
#
# All forty rows are in the model. Where there was no costly run, the target is masked: `mask(seen)` takes these rows
# out of the likelihood. Their `y` may be any number, here 0.


# %%
class Fidelities(PyroModule):
    def __init__(self):
        super().__init__()
        self.low = GaussianProcess(RBF(lengthscale=0.1))
        self.high = GaussianProcess(RBF(ard=2))

    def forward(self, x, y=None, cheap=None, seen=None):
        low = pyro.sample("low", self.low(x))
        pyro.sample("cheap", dist.Normal(low[..., 0], 0.02).to_event(1), obs=cheap)
        high = pyro.sample("high", self.high(concatenate_inputs(low, x)))
        noise = dist.Normal(high[..., 0], 0.02)
        if seen is not None:
            noise = noise.mask(seen)
        return pyro.sample("y", noise.to_event(1), obs=y)


def cheap_code(x):
    return torch.sin(8 * math.pi * x[:, 0])


def costly_code(x):
    return (x[:, 0] - 2**0.5) * cheap_code(x).square()


runs = torch.linspace(0, 1, 40)[:, None]
seen = torch.zeros(40, dtype=torch.bool)
seen[torch.tensor([0, 2, 5, 8, 11, 13, 17, 20, 22, 26, 29, 33, 36, 39])] = True
costly = torch.where(seen, costly_code(runs), 0.0)
together = trained(
    Fidelities(), runs, costly, family=InducingPoints(40), count=1500, draws=5, cheap=cheap_code(runs), seen=seen
)
alone = trained(OneNoise(), runs[seen], costly[seen], family=InducingPoints(14), count=600)

# %%
fine = torch.linspace(0, 1, 201)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(8.5, 2.7), sharey=True, layout="constrained")
for axis, (name, guide) in zip(
    axes, {"costly runs alone": alone, "with the cheap runs": together}.items(), strict=True
):
    prediction = predict(guide, fine, num_samples=steps(100), site="y")
    low, high = prediction.quantile([0.05, 0.95])
    axis.fill_between(fine[:, 0], low, high, color="C0", alpha=0.25, lw=0, label="90 %")
    axis.plot(fine[:, 0], prediction.mean, color="C0", label="mean")
    axis.plot(fine[:, 0], costly_code(fine), "k--", lw=0.8, label="costly code")
    axis.plot(runs[seen], costly[seen], "k.", ms=6)
    axis.set(title=name, xlabel="$x$", ylim=(-2, 1))
    print(f"{name}: error of the mean {(prediction.mean - costly_code(fine)).square().mean().sqrt():.3f}")
_ = axes[0].legend(fontsize=7, frameon=False, ncols=3, loc="upper center")

# %% [markdown]
# Fourteen costly runs say little by themselves; the model that has only them takes the waves for noise. Beside forty
# cheap runs they are enough. The cheap code has the wrong sign half of the time and the wrong height everywhere. The
# top layer has learned to square it and to scale it. The error falls from 0.344 to 0.037.
#
# ## 5. Parts of your own
#
# ### A kernel
#
# Suppose you know that the function is even: $f(-x) = f(x)$. The kernel $k(x, z) + k(x, -z)$ has such functions, for
# any stationary $k$. A *kernel* is a module with parameters. When it is called, it reads them and returns a
# *covariance*: an object with a matrix and a diagonal.


# %%
@dataclass(frozen=True)
class EvenCovariance(Covariance):
    part: Covariance

    def matrix(self, x, z=None):
        other = x if z is None else z
        return self.part.matrix(x, other) + self.part.matrix(x, -other)

    def diagonal(self, x):
        mirrored = self.part.matrix(x.unsqueeze(-2), -x.unsqueeze(-2))[..., 0, 0]
        return self.part.diagonal(x) + mirrored


class Even(Kernel):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self):
        return EvenCovariance(self.part())


pyro.set_rng_seed(0)
line = torch.linspace(-2, 2, 101)[:, None]
draws = GaussianProcess(Even(RBF(lengthscale=0.5)))(line).rsample((4,))[..., 0].detach()
print(f"largest difference of f(x) and f(-x): {(draws - draws.flip(-1)).abs().max():.3f}")

# %% [markdown]
# ### A likelihood
#
# Waiting times are positive: $y_n \sim \mathrm{Exponential}$ with mean $e^{f(x_n)}$. A likelihood needs one method,
# `given(f)`, the distribution of the targets given function values of shape `(..., N, 1)`. The library integrates $f$
# out by quadrature.


# %%
class WaitingConditional(Conditional):
    def given(self, f):
        return RowObservation(dist.Exponential(torch.exp(-f[..., 0])), 1)


class Waiting(Likelihood):
    def conditional(self):
        return WaitingConditional()


class Queue(PyroModule):
    """Waiting times by the hour of the day, which are the same before and after noon."""

    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(Even(RBF(lengthscale=0.5))), Waiting()

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


def true_wait(x):
    return torch.exp(torch.cos(3 * x[:, 0]))


mornings = -2 * torch.rand(150, 1)  # only mornings were watched
waits = dist.Exponential(1 / true_wait(mornings)).sample()
queue = trained(Queue(), mornings, waits, count=400)

# %% [markdown]
# ### A basis
#
# A sparse guide keeps $M$ numbers that stand for the function. Inducing points keep its values. A basis of your own may
# keep *averages over bins*. Two things are asked of it: the covariance of the $M$ numbers, $K_{uu} = R R'$, and their
# covariance with the function values, $k_u(x)$. The method `columns` returns $R^{-1} k_u(x)$, of shape `(..., M, N)`.
# Here an average is the mean of the values at four places in the bin.


# %%
class BinBasis(Basis):
    def __init__(self, places):
        super().__init__()
        self.size = len(places)
        self.register_buffer("places", places)

    def columns(self, prior):
        inside = self.places.reshape(1, -1, 1)
        average = torch.block_diag(*[torch.full((1, each.numel()), 1 / each.numel()) for each in self.places])
        covariance = average @ prior.covariance.matrix(inside) @ average.mT
        root = torch.linalg.cholesky(covariance + 1e-8 * torch.eye(self.size))
        cross = average @ prior.covariance.matrix(inside, prior.x.unsqueeze(-3))
        return torch.linalg.solve_triangular(root, cross, upper=False)


@dataclass(frozen=True)
class Bins(BasisFamily):
    """Averages over equal bins of the range of the inputs."""

    num_inducing: int = 12
    covariance: str = "full"
    hidden_scale: float = 0.01
    scale: float = 1.0

    def basis(self, prior, beside=None):
        edges = torch.linspace(float(prior.x.min()), float(prior.x.max()), self.num_inducing + 1)
        inner = (torch.arange(4) + 0.5) / 4
        return BinBasis(edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] * inner)

    def restored_basis(self, state):
        return BinBasis(state["places"])


by_bins = trained(Queue(), mornings, waits, family=Bins(12), count=400)

# %%
figure, axes = plt.subplots(1, 2, figsize=(8.5, 2.7), layout="constrained")
axes[0].plot(line[:, 0], draws.mT, lw=0.9)
axes[0].set(title="draws of the even kernel", xlabel="$x$")
axes[1].plot(mornings[:, 0], waits, ".", ms=2, color="0.5")
axes[1].plot(line[:, 0], true_wait(line), "k--", lw=0.9, label="true mean")
for name, guide in {"20 inducing points": queue, "12 bins": by_bins}.items():
    axes[1].plot(line[:, 0], predict(guide, line, num_samples=1).mean, label=name)
axes[1].set(title="waiting time", xlabel="$x$", ylim=(0, 8))
_ = axes[1].legend(fontsize=7, frameon=False)

# %% [markdown]
# Only mornings were watched ($x < 0$). The even kernel carries what was learned to the afternoon. Both bases give the
# same curve and the same loss, 0.896 nats a row. The peak at 0 is too low in both: there are some ten waiting times
# near it.
#
# Each new part took some ten lines and goes with all the others: your likelihood with a library's kernel, your kernel
# in a hidden layer, your basis beside inducing points. To add a part to the library itself, and have its tests applied
# to it, see [extending the library](../docs/extending.md).
#
# ## Exercises
#
# 1. Give the counts a `NegativeBinomial` in the place of `Poisson`. When does it predict better?
# 2. Put a prior on a hyperparameter: `model.gp.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))`. What else has to change? (Nothing.)
# 3. Two unseen inputs in part 3, `dist.Normal(x.new_zeros(2), 1.0)`: is the density better?
# 4. Leave the cheap runs out at $x > 0.5$, with a mask of their own. Where does the prediction get unsure?
# 5. Make the kernel of an odd function, $k(x, z) - k(x, -z)$. What is its variance at 0?
#
# ## References
#
# - A. Damianou and N. D. Lawrence (2013). Deep Gaussian processes. AISTATS.
# - P. Perdikaris, M. Raissi, A. Damianou, N. D. Lawrence and G. E. Karniadakis (2017). Nonlinear information fusion algorithms for data-efficient
#   multi-fidelity modelling. Proceedings of the Royal Society A.
