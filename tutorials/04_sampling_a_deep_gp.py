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
# # Sampling a deep GP and reading it in ArviZ
#
# Sampling is slow, and it approximates nothing: run long enough, its draws are the posterior that every faster method is judged by. This tutorial
# draws from the posterior of a two-layer GP on a step function by two samplers, asks in ArviZ whether the draws can be trusted,
# and then measures how far a variational fit of the same model is from them.

# %%
import logging
import os
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroSample

from pyro_dgp import (
    ELBO,
    EllipticalSlice,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern52,
    MonteCarlo,
    PosteriorDraws,
    Projection,
    Variational,
    WhitenedNUTS,
    draw_gap,
    fit,
    import_arviz,
    inference_gap,
    predict,
    run_chains,
    to_arviz,
)

az = import_arviz()
SMOKE = os.environ.get("PYRO_DGP_SMOKE") == "1"
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def count(full, smoke):
    """The length of a run: `smoke` if the tutorial is only run to see that it runs."""
    return smoke if SMOKE else full


# %% [markdown]
# ## The model
#
# Forty noisy values of a step, and two GPs, one on top of the other. What the samplers are to learn besides the functions has a prior: two
# lengthscales and the noise variance. Nothing in the model says how it will be fitted.


# %%
class Step(PyroModule):
    def __init__(self):
        super().__init__()
        self.hidden = GaussianProcess(Matern52(), mean=Projection.fit(torch.zeros(1, 1), 1))
        self.top = GaussianProcess(Matern52())
        self.likelihood = Gaussian()
        self.hidden.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.7))
        self.top.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 0.7))
        self.likelihood.variance = PyroSample(dist.LogNormal(-4.0, 1.0))

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


x = torch.rand(40, 1) * 2 - 1
y = torch.sign(x[:, 0]) + 0.1 * torch.randn(40)
grid = torch.linspace(-1.5, 1.5, 121)[:, None]
model = Step().requires_grad_(False)
logging.getLogger("pyro_dgp").setLevel(
    logging.ERROR
)  # it would say that the two kernel variances, without a prior, stay at 1

# %% [markdown]
# ## Two samplers
#
# Both work on *whitened* values, $h = m + L\varepsilon$ with $\varepsilon$ standard normal, and integrate the last layer out, since the noise is
# Gaussian. Elliptical slices need no gradient and nothing to tune; the No-U-Turn sampler makes long moves along gradients, and says when the
# geometry was too much for it. Chains run in processes of their own. With a folder they are saved as they go: a run that is interrupted goes on where
# it stopped, and one that is repeated with a larger number adds draws.

# %%
folder = Path(tempfile.mkdtemp())
slices = run_chains(
    EllipticalSlice(model), (x, y), num_samples=count(700, 12), warmup_steps=count(200, 4), num_chains=4, folder=folder
)
more = run_chains(
    EllipticalSlice(model), (x, y), num_samples=count(1000, 16), warmup_steps=count(200, 4), num_chains=4, folder=folder
)
assert torch.equal(more.draws["h_whitened"][:, : slices.draws["h_whitened"].shape[1]], slices.draws["h_whitened"])
slices = more

nuts = run_chains(
    WhitenedNUTS(model, max_tree_depth=5, target_accept_prob=0.9),
    (x, y),
    num_samples=count(200, 8),
    warmup_steps=count(200, 6),
    num_chains=4,
)
print({name: tuple(values.shape) for name, values in slices.draws.items()})

# %% [markdown]
# ## Can the draws be trusted?
#
# Not every number of a deep GP should be looked at: a hidden function and its mirror image fit the data equally well, so chains may disagree about
# $h$ and agree about everything that matters. Look at the hyperparameters, the log density, and the function that meets the data.
# `to_arviz` draws that function, `f`, which the samplers had integrated out, and the log likelihood at it.


# %%
def in_arviz(chains):
    draws = next(iter(chains.draws.values())).shape[:2]  # predict takes 100 if not told otherwise
    at_data = predict(chains, x, num_samples=draws[0] * draws[1])
    return to_arviz(at_data, x, y, draws=chains.draws, sample_stats=chains.stats)


def squeezed(values):
    """One number by name for every column of a table of ArviZ, whose tables differ between its versions."""
    return values[["r_hat", "ess_bulk"]].agg({"r_hat": "max", "ess_bulk": "min"})


data = {"ess": in_arviz(slices), "nuts": in_arviz(nuts)}
hyperparameters = ["hidden.kernel.lengthscale", "top.kernel.lengthscale", "likelihood.variance"]
for name, chains in (("ess", slices), ("nuts", nuts)):
    print(name)
    print(az.summary(data[name], var_names=hyperparameters, round_to=3).to_string())
    worst = squeezed(az.summary(data[name], var_names=["f"], round_to="none"))
    print(f"f at 40 rows: largest R-hat {worst['r_hat']:.3f}, smallest bulk ESS {worst['ess_bulk']:.0f}")
    print(f"{worst['ess_bulk'] / chains.sampling_seconds:.2f} effective draws a second of one core\n")
share = float(nuts.stats["diverging"].mean())
print(f"nuts: divergent transitions {100 * share:.2f} %, mean tree depth {nuts.stats['tree_depth'].mean():.1f}")

# %% [markdown]
# Elliptical slices pass on what matters: R-hat of `f` is at most 1.004 over the 40 rows, with 1,627 effective draws or more. The two lengthscales mix slowly
# (1.06 both): they trade against each other, and slices move one number at a time. The No-U-Turn sampler fails here, and says so: its trees are as deep as
# allowed, R-hat is 1.16 for `f` and 1.5 for a lengthscale, though only 0.1 % of its transitions diverged. Do not use those draws. More warm-up and deeper trees may help,
# and where one chain sits in a worse mode, as here, a start at the highest of several ascents, `Ascent(200, draws=6)` ([tutorial 5](05_one_model_many_algorithms.ipynb) has it); the other sampler is cheaper.
#
# Traces of the log density, a chain a colour: chains that found different explanations of the data stand apart here.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9.5, 2.8), layout="constrained")
for axis, (name, chains) in zip(axes, (("ess", slices), ("nuts", nuts)), strict=True):
    for chain in chains.stats["lp"]:
        axis.plot(chain, lw=0.5)
    axis.set(title=name, xlabel="draw")
_ = axes[0].set_ylabel("log density, nats")

# %% [markdown]
# One chain of `nuts` sits in a mode of its own, some 25 nats below the others, and never leaves it.
#
# ## What it says about the step
#
# The predictive distribution is a mixture with a component for each draw, the same object that a variational fit gives. Its NLL by chain shows whether
# one chain stands in a worse mode than the others.

# %%
sampled = predict(slices, grid, num_samples=400)
low, high = sampled.quantile([0.05, 0.95])
figure, axis = plt.subplots(figsize=(6.5, 3), layout="constrained")
axis.fill_between(grid[:, 0], low, high, color="C0", alpha=0.25, lw=0, label="90 %")
axis.plot(grid[:, 0], sampled.mean, color="C0", label="mean")
axis.plot(x[:, 0], y, "k.", ms=4)
_ = axis.legend(fontsize=8)

x_test = torch.rand(200, 1) * 2 - 1
y_test = torch.sign(x_test[:, 0]) + 0.1 * torch.randn(200)
for name, chains in (("ess", slices), ("nuts", nuts)):
    nll = []
    for chain in range(4):
        own = {site: values[chain] for site, values in chains.draws.items()}
        nll.append(-predict(PosteriorDraws(model, own, (x, y)), x_test, num_samples=100).log_prob(y_test).mean().item())
    print(f"{name}: test NLL by chain", ", ".join(f"{value:.3f}" for value in nll))

# %% [markdown]
# The chain in the other mode has a test NLL of 0.140 where the others have -0.672 to -0.690. The average over chains, -0.47, would not have shown that one
# chain alone is to blame.
#
# PSIS-LOO estimates the same from the training rows alone. Where its Pareto shape is above 0.7 a row is too influential for that: at a step,
# these are the rows next to it.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    loo = az.loo(data["ess"], pointwise=True)
shapes = loo.pareto_k.values
print(f"expected log density of a new row {loo.elpd_loo / 40:.3f}, rows with a shape above 0.7: {(shapes > 0.7).sum()}")

# %% [markdown]
# ## The gap
#
# A variational fit of the *same* model object. Its guide has a distribution over the hyperparameters, too. `inference_gap` compares the two
# posteriors at each input: the means of $f$, its standard deviations, the distance of the two distributions, and the KL of
# the predictions. A second run of the sampler, from other starts, says how much of that is chance.

# %%
guide = Variational(model, InducingPoints(20), MonteCarlo(10))
guide.initialize(x, y)
fit(ELBO(40)(model, guide), x, y, steps=count(3000, 3), batch_size=40, learning_rate=0.01)
variational = predict(guide, grid, num_samples=400, num_hyperparameter_draws=count(100, 5))
again = run_chains(
    EllipticalSlice(model), (x, y), num_samples=count(1000, 16), warmup_steps=count(200, 4), num_chains=4, seed=9
)
gaps = {
    "another run": inference_gap(predict(again, grid, num_samples=400), sampled),
    "variational": inference_gap(variational, sampled),
}
for name, gap in gaps.items():
    print(name, {key: round(value, 3) for key, value in gap.figures().items()})
path = folder / "gap.png"
draw_gap(gaps, grid, path, reference="elliptical slices")
figure, axis = plt.subplots(figsize=(11, 3), layout="constrained")
axis.imshow(plt.imread(path))
_ = axis.axis("off")

# %% [markdown]
# Two runs of the sampler differ by 0.05 standard deviations (1-Wasserstein, averaged over inputs): that is what 400 of the 4,000 draws, as many as a
# prediction takes here, leave to chance. The variational posterior is 0.25 away. The distance is largest next to the step, up to 0.8. Where there are no
# data it is 0.1 to 0.25, and there its `f` varies too little. In predictions the distance is small, 0.04 nats, since the noise covers it.
# `pyro-dgp compare --gap ess` measures this for any deep method of the zoo.
