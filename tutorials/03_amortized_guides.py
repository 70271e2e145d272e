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
# # Amortized guides
#
# Inducing points summarise a function over its whole input space, so a complicated function needs many. An *amortized*
# guide makes a few for each row instead: small networks map a row $x_n$ to inducing inputs $Z_n$ near it, and to the mean and
# scale of the function values there. The model is not touched; only the guide changes. This tutorial fits one classifier by
# both, looks at where the points go, shows what the objective no longer is, and what overfits.
#
# The method is that of Meng and Zhang (2024) for deep GPs and of Jafrasteh and others (2022) for one layer.

# %%
import os
import time

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    AffineMaps,
    AmortizedInducingPoints,
    Bernoulli,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern52,
    MonteCarlo,
    SigmaPoints,
    Validation,
    Variational,
    WithMean,
    describe_letters,
    fit,
    fit_validated,
    inside_letters,
    letters,
    module_local_parameters,
    predict,
)

SMOKE = os.environ.get("PYRO_DGP_SMOKE") == "1"


def steps(full, smoke=2):
    """The length of a loop: `smoke` if the tutorial is only run to see that it runs."""
    return smoke if SMOKE else full


torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
pyro.set_rng_seed(0)
plt.rcParams.update({"figure.dpi": 100, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## 1. Inside the letters
#
# Points are uniform in the unit square; $y$ says whether a point lies inside the letters "DGP". The outlines are long and the strokes
# thin, which is what makes it hard.

# %%
data = letters(6000)
train = ~data.splits[:, 0]
centre, scale = data.x[train].mean(0), data.x[train].std(0)


def standardised(points):
    return torch.as_tensor((points - centre) / scale)


x, y = standardised(data.x[train]), torch.as_tensor(data.y[train])
x_test, y_test = standardised(data.x[~train]), torch.as_tensor(data.y[~train])
facts = describe_letters(1000)
print(f"{len(x)} training rows, {len(x_test)} test rows")
print(f"outlines of length {facts['boundary_length']:.2f}, {facts['share_of_ones']:.1%} of the square inside")

figure, axis = plt.subplots(figsize=(3.4, 3.4))
axis.scatter(*data.x[train].T, c=data.y[train], s=2, cmap="coolwarm")
axis.set(aspect="equal", title="training rows")
plt.show()

# %% [markdown]
# ## 2. One model, two kinds of inducing points
#
# The model is two layers and a Bernoulli likelihood, in plain Pyro.


# %%
class Classifier(PyroModule):
    def __init__(self):
        super().__init__()
        self.hidden = GaussianProcess(Matern52(lengthscale=1.4), num_outputs=2)
        self.top = GaussianProcess(Matern52(lengthscale=1.4))
        self.likelihood = Bernoulli()

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


# %% [markdown]
# The ordinary guide has 16 inducing points in each layer, the amortized one has 16 *for each row* in the first and
# 8 in the second. What do the networks of the second layer look at? Its inputs are uncertain, and there are two answers:
#
# - each sample of the hidden layer by itself: rule AR1, `MonteCarlo(1)`;
# - the mean of the hidden layer, while the samples travel on: AR2, `WithMean(MonteCarlo(S))`, or over learned sigma points AR2P,
#   `WithMean(SigmaPoints("qr3", S))`.
#
# `WithMean` carries the mean as one more component that no loss counts, which goes through whatever the model does between layers.
# Everything else is the same for both guides, the validation routine included.

# %%
GUIDES = {
    "ordinary": lambda model: Variational(model, InducingPoints(16), MonteCarlo(10)),
    "amortized": lambda model: Variational(
        model, {"h": AmortizedInducingPoints(16), "y": AmortizedInducingPoints(8)}, WithMean(SigmaPoints("qr3", 10))
    ),
}
RATES = {"ordinary": 0.02, "amortized": 0.005}
guides = {}
for name, make in GUIDES.items():
    pyro.set_rng_seed(0)
    guide = make(Classifier())
    start = time.perf_counter()
    result = fit_validated(
        guide, lambda beta, rows: ELBO(rows), x, y, steps=steps(3000), batch_size=100, learning_rate=RATES[name],
        validation=Validation(share=0.25, betas=(1.0,), folds=1),
    )  # fmt: skip
    seconds = time.perf_counter() - start
    error = float(((predict(guide, x_test).mean > 0.5) != (y_test > 0.5)).double().mean())
    guides[name] = guide
    print(f"{name}: test error {error:.1%}, validation NLL {result.validation_nll:.3f}, {seconds:.0f} s")

# %% [markdown]
# The decision surfaces, with the true outlines on top:

# %%
at = torch.linspace(0.005, 0.995, 100 if not SMOKE else 10).numpy()
grid = torch.cartesian_prod(torch.as_tensor(at), torch.as_tensor(at)).numpy()
truth = inside_letters(grid).reshape(len(at), len(at)).T
figure, axes = plt.subplots(1, 2, figsize=(7, 3.4), layout="constrained")
for axis, (name, guide) in zip(axes, guides.items(), strict=True):
    with torch.no_grad():
        probability = predict(guide, standardised(grid)).mean.reshape(len(at), len(at)).T.numpy()
    shown = axis.imshow(probability, origin="lower", extent=(0, 1, 0, 1), cmap="coolwarm", vmin=0, vmax=1)
    axis.contour(at, at, truth, levels=[0.5], colors="black", linewidths=0.7)
    axis.set(title=f"{name}: predicted probability")
figure.colorbar(shown, ax=axes, shrink=0.8)
plt.show()

# %% [markdown]
# The ordinary guide blurs what its points cannot resolve, the amortized one is sharp, with gaps in the letters still. Neither has converged:
# `benchmarks/studies/amortized_letters.py` goes on for 20,000 steps on 20,000 rows.
#
# ## 3. Where the inducing points go
#
# The inducing inputs of a row are affine maps of it, $z_{nm} = W_m x_n + b_m$. At the start $W_m$ is the identity and the points lie
# around their row. Training moves the maps: below are the first layer's points of three rows, and of all rows.

# %%
functions = guides["amortized"].processes.h.functions
with module_local_parameters(), torch.no_grad():
    z, means, scales = functions(x_test)
figure, axes = plt.subplots(1, 2, figsize=(7, 3.4), layout="constrained")
for row in range(3):
    axes[0].scatter(*z[row].T, s=12, color=f"C{row}")
    axes[0].plot(*x_test[row], "*", ms=14, mec="black", color=f"C{row}")
axes[0].set(title="three rows (stars) and their points")
for m in range(z.shape[1]):
    axes[1].scatter(*z[:300, m].T, s=1)
axes[1].set(title="the points of 300 rows, a color for each map")
plt.show()
offsets = (z - x_test.unsqueeze(1)).square().sum(-1).sqrt()
print(f"median distance of a point from its row: {float(offsets.median()):.2f} standard deviations of the inputs")

# %% [markdown]
# ## 4. The objective is no bound
#
# With ordinary inducing points the ELBO is a lower bound on $\log p(y)$, because its regulariser is a divergence between processes.
# The regulariser of an amortized guide is the KL of a row's inducing values, *averaged over rows*: however many rows there are, it
# is that of one. A guide whose points sit at the row itself can then fit each row alone and pay once. Thirty rows of pure
# noise show it: the objective climbs past the exact log evidence, which one layer lets us compute.


# %%
class OneLayer(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(lengthscale=0.7)), Gaussian(variance=0.2)

    def forward(self, x, y=None):
        return pyro.sample("y", self.likelihood(self.gp(x)), obs=y)


pyro.set_rng_seed(1)
noise_x, noise_y = torch.linspace(-2, 2, 30)[:, None], torch.randn(30)
traces = {}
for name, family in {
    "ordinary": InducingPoints(10),
    "amortized": AmortizedInducingPoints(1, AffineMaps(width=30, spread=0.0), scale=0.1),
}.items():
    model = OneLayer()
    guide = Variational(model, family, MonteCarlo(1))
    guide.initialize(noise_x, noise_y)
    excess = []

    def record(step, loss, model=model, excess=excess):
        with torch.no_grad():
            evidence = float(model.likelihood(model.gp(noise_x)).log_prob(noise_y))
        excess.append(-30 * loss - evidence)

    fit(ELBO(30)(model, guide), noise_x, noise_y, steps=steps(800), batch_size=30, learning_rate=0.02, callback=record)
    traces[name] = excess
figure, axis = plt.subplots(figsize=(5, 2.8))
for name, excess in traces.items():
    axis.plot(excess, label=name)
axis.axhline(0, color="black", lw=0.7)
axis.set(xlabel="step", ylabel="objective minus log evidence, nats", title="thirty rows of noise", ylim=(-60, 60))
axis.legend(frameon=False)
plt.show()
print({name: f"{excess[-1]:.1f} nats above the evidence" for name, excess in traces.items()})
if not SMOKE:
    assert traces["ordinary"][-1] < 0.5 < traces["amortized"][-1]

# %% [markdown]
# ## 5. What overfits
#
# So an amortized ELBO needs what a predictive loss needs: held-out rows. `fit_validated` stops at the step that is best for them;
# the zoo's amortized methods all do, in a run over all steps or in one over a quarter of them, `Validation(runs=(0.25, 1.0))`. On 80
# rows of a noisy sine, of which it holds out a ninth before it trains on all of them to the best step:

# %%
pyro.set_rng_seed(2)


def sine(count):
    inputs = 4 * torch.rand(count, 1) - 2
    return inputs, torch.sin(2 * inputs[:, 0]) + 0.4 * torch.randn(count)


(few_x, few_y), (many_x, many_y) = sine(80), sine(1000)
family = AmortizedInducingPoints(4, AffineMaps(width=30))
curves = {"training rows": [], "new rows": []}
guide = Variational(OneLayer(), family, MonteCarlo(1))
guide.initialize(few_x, few_y)


def watch(step, loss):
    if step % 50 == 0:
        with torch.no_grad():
            for name, (a, b) in zip(curves, ((few_x, few_y), (many_x, many_y)), strict=True):
                curves[name].append(-float(predict(guide, a).log_prob(b).mean()))


fit(
    ELBO(80)(guide.model, guide), few_x, few_y, steps=steps(2000, 60), batch_size=80, learning_rate=0.02, callback=watch
)
checked = Variational(OneLayer(), family, MonteCarlo(1))
result = fit_validated(
    checked,
    lambda beta, rows: ELBO(rows),
    few_x,
    few_y,
    steps=steps(2000, 60),
    batch_size=80,
    learning_rate=0.02,
    validation=Validation(betas=(1.0,)),
)
with torch.no_grad():
    kept = -float(predict(checked, many_x).log_prob(many_y).mean())
figure, axis = plt.subplots(figsize=(5, 2.8))
for name, values in curves.items():
    axis.plot(torch.arange(len(values)) * 50, values, label=name)
axis.axhline(kept, color="C1", ls=":", label="new rows, validated")
axis.set(xlabel="step", ylabel="NLL, nats per row", title="80 rows, trained by the amortized ELBO")
axis.legend(frameon=False)
plt.show()
print(f"new rows: {curves['new rows'][-1]:.2f} after all steps, {kept:.2f} with validation (step {result.best_step})")

# %% [markdown]
# ## 6. Far from the data
#
# Ordinary inducing points stay where the data are, and far from them the posterior returns to the prior. Those of an amortized guide travel with
# the row, and the networks go on as their last linear pieces do: far predictions run off, by more than their variance says.

# %%
pyro.set_rng_seed(4)
ordinary = Variational(OneLayer(), InducingPoints(20), MonteCarlo(1))
ordinary.initialize(few_x, few_y)
fit(ELBO(80)(ordinary.model, ordinary), few_x, few_y, steps=steps(500), batch_size=80, learning_rate=0.02)
far = torch.linspace(-8, 8, 200)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True)
for axis, (name, trained) in zip(axes, {"ordinary": ordinary, "amortized": checked}.items(), strict=True):
    with torch.no_grad():
        prediction = predict(trained, far)
        mean, deviation = prediction.mean, prediction.stddev
    axis.fill_between(far[:, 0], mean - 2 * deviation, mean + 2 * deviation, alpha=0.2)
    axis.plot(far[:, 0], mean)
    axis.plot(few_x[:, 0], few_y, "k.", ms=3)
    axis.set(title=f"{name} inducing points", xlabel="x")
plt.show()
with torch.no_grad():
    widths = [float(predict(trained, torch.tensor([[8.0]])).stddev) for trained in (ordinary, checked)]
print(f"standard deviation at x = 8: ordinary {widths[0]:.2f}, amortized {widths[1]:.2f}")

# %% [markdown]
# ## 7. Networks for other latent sites
#
# Inducing values are not the only thing that can be amortized. `networks=` takes, for any latent site, a module that is called with the
# model's arguments and returns the site's posterior: Pyro's own distributions, any torch module. Here each row has an unseen
# input $w_n$, and an encoder finds it from $(x_n, y_n)$. Where there is no $y$ to look at, it says so by returning nothing, and the
# site is drawn from its prior.


# %%
class Latent(PyroModule):
    def __init__(self):
        super().__init__()
        self.gp, self.likelihood = GaussianProcess(RBF(2)), Gaussian(variance=0.01)

    def forward(self, x, y=None):
        with pyro.plate("rows", len(x)):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        return pyro.sample("y", self.likelihood(self.gp(torch.stack([x[:, 0], w], -1))), obs=y)


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def forward(self, x, y=None):
        if y is None:
            return None
        loc, log_scale = self.layers(torch.stack([x[:, 0], y], -1)).unbind(-1)
        return dist.Normal(loc, log_scale.exp())


pyro.set_rng_seed(3)
seen, hidden = torch.rand(200, 1), torch.randn(200)
observed = hidden * (0.5 + seen[:, 0]) + 0.05 * torch.randn(200)
encoder = Encoder()
guide = Variational(Latent(), InducingPoints(20), MonteCarlo(5), networks={"w": encoder})
guide.initialize(seen, observed)
fit(ELBO(200)(guide.model, guide), seen, observed, steps=steps(1500), batch_size=50, learning_rate=0.01)
with torch.no_grad():
    found = encoder(seen, observed)
figure, axis = plt.subplots(figsize=(3.4, 3))
axis.errorbar(hidden, found.loc, found.scale, fmt=".", ms=3, lw=0.5)
axis.set(xlabel="w that made the data", ylabel="w that the encoder finds")
plt.show()
agreement = float(torch.corrcoef(torch.stack([found.loc, hidden]))[0, 1])
print(f"correlation {agreement:.3f} (its sign is free)")
if not SMOKE:
    assert abs(agreement) > 0.9

# %% [markdown]
# ## Where to go on
#
# `pyro-dgp compare --methods svgp,dsvi,dspp,avdgp-ar2p,avdgp-ar2pp` puts these methods beside each other on your regression data;
# `--row-inducing` is the number of points of a row. Longer runs of the letters are in `benchmarks/studies/amortized_letters.py`.
