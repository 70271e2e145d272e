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
# # A deep GP is a Pyro model
#
# A Gaussian process layer is a distribution over function values at given inputs, so it fits into `pyro.sample`. A
# deep GP is a model in which the value of one such site is the input of the next. Nothing else is needed: Pyro's
# handlers, `Predictive`, `SVI` and MCMC work on the model as written. This tutorial looks at the sites of such a
# model, draws from its prior, scores data under it and fits it once.

# %%
import os

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive
from pyro.nn import PyroModule

from pyro_dgp import (
    ELBO,
    RBF,
    Gaussian,
    GaussianProcess,
    InducingPoints,
    Matern52,
    MonteCarlo,
    Projection,
    Variational,
    Zero,
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
# ## 1. A GP layer is a site
#
# `GaussianProcess` is a Pyro module that holds a kernel and a mean function. Called at inputs $X$ of shape $(N, D)$
# it returns a distribution over the matrix $F$ of function values, of shape $(N, D_\mathrm{out})$. The columns are
# independent given the kernel:
#
# $$\log p(F \mid X) = \sum_{d=1}^{D_\mathrm{out}} \log \mathcal N\bigl(F_{:,d} \mid m_d(X),\, K_d(X, X)\bigr).$$
#
# The rows of $F$ depend on each other, so data are an event dimension: the event shape is $(N, D_\mathrm{out})$, and
# one site has one log density. Leading axes of the inputs are the batch shape.

# %%
gp = GaussianProcess(RBF(lengthscale=0.5), num_outputs=2)
x_few = torch.linspace(-1, 1, 6)[:, None]

fx = gp(x_few)
f = pyro.sample("f", fx)
batched = gp(x_few.expand(7, 6, 1))

print(f"one set of inputs:    batch shape {tuple(fx.batch_shape)}, event shape {tuple(fx.event_shape)}")
print(f"seven sets of inputs: batch shape {tuple(batched.batch_shape)}, event shape {tuple(batched.event_shape)}")
print(f"value of the site:    {tuple(f.shape)}")
print(f"log density:          {fx.log_prob(f).item():.3f}")

by_hand = dist.MultivariateNormal(torch.zeros(6), fx.covariance_matrix[0]).log_prob(f.mT).sum()
assert fx.batch_shape == () and fx.event_shape == (6, 2)
assert batched.batch_shape == (7,) and batched.event_shape == (6, 2)
assert torch.allclose(fx.log_prob(f), by_hand, atol=1e-3)


# %% [markdown]
# ## 2. Depth and the mean function
#
# Stacking zero-mean GPs makes functions flat (Duvenaud et al. 2014). The slope of a composition is the product of the
# slopes of its layers,
#
# $$\lvert f'(x)\rvert = \prod_{l=1}^{L} \lvert f_l'(\cdot)\rvert, \qquad f_l'(\cdot) \sim \mathcal N(0, 1)$$
#
# for zero-mean layers with RBF kernels of unit variance and lengthscale. Each of them multiplies the slope by
# $\lvert z\rvert$ with $z \sim \mathcal N(0, 1)$, and $\mathbb E \log \lvert z\rvert \approx -0.64$: the typical slope
# halves with every layer. A hidden layer whose mean is the identity multiplies it by $\lvert 1 + z\rvert$ instead, and
# $\mathbb E \log \lvert 1 + z\rvert \approx -0.21$. This is the fixed linear mean of Salimbeni and Deisenroth (2017),
# here `Projection`.
#
# The chain below is a model like any other. The plate makes the draws a batch.


# %%
class Chain(PyroModule):
    """`depth` GPs of one input and one output; `mean` is that of the hidden ones."""

    def __init__(self, depth, mean):
        super().__init__()
        self.hidden = PyroModule[torch.nn.ModuleList](GaussianProcess(RBF(), mean) for _ in range(depth - 1))
        self.top = GaussianProcess(RBF())

    def forward(self, x):
        f = x
        for number, layer in enumerate([*self.hidden, self.top], 1):
            f = pyro.sample(f"f{number}", layer(f))
        return f


DEPTHS = (1, 2, 3, 5)
FLAT = 0.05  # a slope below this counts as nearly flat; the root mean square slope of one layer is 1
grid = torch.linspace(-4, 4, 200)[:, None]
means = {"zero mean": Zero(), "identity mean": Projection.fit(grid, 1)}

draws = {}
for name, mean in means.items():
    for depth in DEPTHS:
        pyro.clear_param_store()
        with torch.no_grad(), pyro.plate("draws", steps(200, smoke=50)):
            draws[name, depth] = Chain(depth, mean)(grid).squeeze(-1)

# %% [markdown]
# Pyro keeps parameters by name in one global store, and two models that use the same names share their values. Hence
# `pyro.clear_param_store()` wherever a new model begins.

# %%
figure, axes = plt.subplots(2, 4, figsize=(9.5, 4.4), sharex=True, sharey=True, layout="constrained")
for row, name in zip(axes, means, strict=True):
    for axis, depth in zip(row, DEPTHS, strict=True):
        axis.plot(grid, draws[name, depth][:5].mT, lw=1.1)
        axis.set_title(f"{depth} layer{'s' if depth > 1 else ''}, {name}", fontsize=9)
    row[0].set_ylabel("$f(x)$")
for axis in axes[1]:
    axis.set_xlabel("$x$")

# %% [markdown]
# Without the mean, most draws from five layers are nearly constant: what two inputs differ in has been forgotten on the
# way up. With it they still move, though in steps. One number for the collapse is the share of the grid where
# $\lvert f'(x)\rvert < 0.05$, here beside what the product of slopes predicts.

# %%
spacing = (grid[1] - grid[0]).item()
flat, predicted = {}, {}
for (name, depth), values in draws.items():
    flat[name, depth] = (values.diff(dim=-1).abs() / spacing < FLAT).double().mean().item()
    slopes = torch.randn(100_000, depth)
    if name == "identity mean":
        slopes[:, 1:] += 1
    predicted[name, depth] = (slopes.prod(-1).abs() < FLAT).double().mean().item()

print("share of the grid that is nearly flat (predicted)")
print("layers" + "".join(f"{name:>20}" for name in means))
for depth in DEPTHS:
    print(f"{depth:6d}" + "".join(f"{flat[name, depth]:12.2f}  ({predicted[name, depth]:.2f})" for name in means))

assert flat["zero mean", 5] > 1.5 * flat["identity mean", 5]
assert flat["zero mean", 5] > 4 * flat["zero mean", 1]

# %% [markdown]
# The identity slows the collapse and does not abolish it. All hidden layers below have that mean.
#
# ## 3. Sites and shapes
#
# A two-layer model as a user writes it, with a Matérn hidden layer and a Gaussian likelihood:
#
# $$h_d \sim \mathcal{GP}\bigl((xW)_d, k_{5/2}\bigr), \qquad f \sim \mathcal{GP}(0, k_\mathrm{RBF}), \qquad
# y_n \mid f, h \sim \mathcal N\bigl(f(h(x_n)), \sigma^2\bigr).$$
#
# The data are forty noisy values of a step, which no single stationary GP describes well.


# %%
class TwoLayer(PyroModule):
    def __init__(self, x, width=2):
        super().__init__()
        self.hidden = GaussianProcess(Matern52(ard=x.shape[-1]), mean=Projection.fit(x, width), num_outputs=width)
        self.top = GaussianProcess(RBF(ard=width))
        self.likelihood = Gaussian(variance=0.01)

    def forward(self, x, y=None):
        h = pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


def true_step(x):
    return x.squeeze(-1).sign()


pyro.set_rng_seed(0)
x, x_test = torch.linspace(-2, 2, 40)[:, None], 4 * torch.rand(200, 1) - 2
y, y_test = (true_step(inputs) + 0.1 * torch.randn(len(inputs)) for inputs in (x, x_test))

pyro.clear_param_store()
model = TwoLayer(x)
trace = poutine.trace(model).get_trace(x, y)

print(f"{'site':6}{'distribution':16}{'batch shape':14}{'event shape':14}observed")
for name in trace.stochastic_nodes + trace.observation_nodes:
    fn = trace.nodes[name]["fn"]
    shapes = f"{tuple(fn.batch_shape)!s:14}{tuple(fn.event_shape)!s:14}"
    print(f"{name:6}{type(fn).__name__:16}{shapes}{trace.nodes[name]['is_observed']}")

assert trace.nodes["h"]["value"].shape == (40, 2)
assert trace.nodes["y"]["value"].shape == y.shape == (40,)

# %% [markdown]
# There are two sites. `h` holds the function values of the hidden layer, one row for each input and one column for
# each function. `y` has shape $(N,)$, as a vector of targets has. Both have an empty batch shape: the rows are an
# event dimension, so the model needs no data plate. The top function has no site of its own. `likelihood(gp(x))` is
# the distribution of `y` with $f$ integrated out.
#
# ## 4. Prior predictive
#
# With `y` left out, the model draws it. `Predictive` collects the draws.

# %%
wide = torch.linspace(-3, 3, 101)[:, None]
prior = Predictive(model, num_samples=steps(400, smoke=50))(wide)
print({name: tuple(value.shape) for name, value in prior.items()})

levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
fan = prior["y"].quantile(levels, dim=0)

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.fill_between(wide.squeeze(-1), fan[0], fan[4], color="C0", alpha=0.15, lw=0, label="90 % of draws")
axis.fill_between(wide.squeeze(-1), fan[1], fan[3], color="C0", alpha=0.3, lw=0, label="50 % of draws")
axis.plot(wide, fan[2], color="C0", lw=1.5, label="median")
axis.plot(wide, prior["y"][:3].mT, color="0.25", lw=0.8, label=["three draws", None, None])
axis.set(xlabel="$x$", ylabel="$y$", xlim=(-3, 3))
_ = axis.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.15), frameon=False)

# %% [markdown]
# The fan is flat. At one input, $y$ is $\mathcal N(0, 1 + \sigma^2)$ whatever the hidden layer does, since the top
# kernel is stationary with unit variance. Depth shows in the joint distribution: how fast a draw moves depends on the
# slope of `h` there, so the increments have heavy tails, where those of a single GP are normal.

# %%
spread = prior["y"].std().item()
increments = prior["y"][:, 4:] - prior["y"][:, :-4]
kurtosis = increments.pow(4).mean().item() / increments.square().mean().item() ** 2 - 3
print(f"standard deviation of y: {spread:.2f} (exact: {1.01**0.5:.2f})")
print(f"excess kurtosis of y(x + 0.24) - y(x): {kurtosis:.2f} (a single GP: 0)")

assert abs(spread - 1.01**0.5) < (0.25 if SMOKE else 0.1)
assert kurtosis > 0.5

# %% [markdown]
# ## 5. The latent values change the density of the data
#
# Given the hidden values, the top layer is an exact GP regression on them:
#
# $$\log p(y \mid h) = \log \mathcal N\bigl(y \mid 0,\, K_\mathrm{RBF}(h, h) + \sigma^2 I\bigr).$$
#
# So `h` decides how likely the data are. Condition the model on two values of it: the inputs as they are, and the
# inputs pulled apart around the jump.

# %%
straight = torch.cat([x, torch.zeros_like(x)], -1)
stretched = torch.cat([x + torch.tanh(4 * x), torch.zeros_like(x)], -1)

scores = {}
print(f"{'h':24}{'log p(h)':>12}{'log p(y | h)':>16}{'log p(y, h)':>16}")
for name, value in {"x": straight, "x + tanh(4x)": stretched}.items():
    conditioned = poutine.condition(model, data={"h": value})
    trace = poutine.trace(conditioned).get_trace(x, y)
    trace.compute_log_prob()
    log_h, log_y = (trace.nodes[site]["log_prob"].item() for site in ("h", "y"))
    scores[name] = log_y
    print(f"{name:24}{log_h:12.1f}{log_y:16.1f}{log_h + log_y:16.1f}")

covariance = model.top.kernel().matrix(stretched[None])[0] + model.likelihood.variance * torch.eye(40)
exact = dist.MultivariateNormal(torch.zeros(40), covariance).log_prob(y)
assert abs(scores["x + tanh(4x)"] - exact.item()) < 1e-4
assert scores["x + tanh(4x)"] > scores["x"] + 20

# %% [markdown]
# The stretched values are a little less likely under the prior and make the data far more likely. The joint density is
# differentiable in `h`, and that is all a gradient-based sampler asks for. This is why the same model object that a
# guide is fitted to below can be sampled by NUTS, without a second version written for MCMC. `pyro_dgp.whitened(model)`
# is the same model in coordinates in which the prior of `h` is standard normal.

# %%
h = straight.clone().requires_grad_()
trace = poutine.trace(poutine.condition(model, data={"h": h})).get_trace(x, y)
(gradient,) = torch.autograd.grad(trace.log_prob_sum(), h)
print(f"gradient of log p(y, h) in h: shape {tuple(gradient.shape)}, norm {gradient.norm().item():.0f}")
assert gradient.isfinite().all() and gradient.norm() > 1

# %% [markdown]
# ## 6. One fit
#
# A `Variational` guide runs the model with a variational process in the place of each GP. Here both are
# inducing-point processes, and ten Monte Carlo draws carry the hidden layer upwards. `initialize` runs the model once
# on the training data and creates the parameters. The loss is the evidence lower bound
#
# $$\mathcal L = \sum_{n=1}^{N} \mathbb E_{q(h)\, q(f)}\bigl[\log p(y_n \mid f(h_n))\bigr]
# - \mathrm{KL}\bigl(q(u_h)\,\Vert\,p(u_h)\bigr) - \mathrm{KL}\bigl(q(u_f)\,\Vert\,p(u_f)\bigr),$$
#
# and everything around it is stock Pyro.

# %%
pyro.set_rng_seed(0)
pyro.clear_param_store()
model = TwoLayer(x)
guide = Variational(model, InducingPoints(20), MonteCarlo(10))
guide.initialize(x, y)

svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), ELBO(num_data=len(x)))
losses = torch.tensor([svi.step(x, y) for _ in range(steps(1500))])
print(f"minus the ELBO, nats: {losses[0].item():.0f} at the first step, {losses[-100:].mean().item():.1f} at the end")

# %% [markdown]
# `predict` returns the predictive distribution: for each row a mixture over draws of the hidden layer, noise
# included. For a look inside, the trace of the guide at the grid holds $q(h)$.

# %%
grid = torch.linspace(-2.5, 2.5, 251)[:, None]
at = grid.squeeze(-1)
prediction = predict(guide, grid, num_samples=500)
mean, (low, high) = prediction.mean, prediction.quantile([0.05, 0.95])
with torch.no_grad():
    q_h = poutine.trace(guide).get_trace(grid).nodes["h"]["fn"]
    centre, width = q_h.mean, 2 * q_h.variance.sqrt()

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.5), sharex=True, layout="constrained")
for column in range(2):
    left.plot(at, centre[:, column], color=f"C{column + 1}", label=f"$h_{column + 1}$")
    band = (centre - width)[:, column], (centre + width)[:, column]
    left.fill_between(at, *band, color=f"C{column + 1}", alpha=0.2, lw=0)
left.plot(at, at, color="0.5", lw=0.8, ls="--", label="identity")
left.set(xlabel="$x$", ylabel="$h(x)$", title="hidden layer: mean and two standard deviations")
left.legend()
right.fill_between(at, low, high, color="C0", alpha=0.2, lw=0, label="90 % of $y$")
right.plot(at, mean, color="C0", label="mean")
right.plot(at, true_step(grid), color="0.5", lw=0.8, ls="--", label="true step")
right.plot(x, y, "k.", ms=4, label="data")
right.set(xlabel="$x$", ylabel="$y$", title="prediction")
_ = right.legend(loc="upper left")

# %% [markdown]
# The hidden layer spreads the inputs around zero and squeezes them elsewhere, and the top layer is a smooth function
# of the result. The second hidden output was not needed: its lengthscale in the top kernel has grown.

# %%
away = (at.abs() > 0.2) & (at.abs() < 2)
rmse = (mean - true_step(grid))[away].square().mean().sqrt().item()
jump = (mean[at > 0.2][0] - mean[at < -0.2][-1]).item()
nll = -predict(guide, x_test, num_samples=500).log_prob(y_test).mean().item()
best = -dist.Normal(true_step(x_test), 0.1).log_prob(y_test).mean().item()
scales = ", ".join(f"{scale:.2f}" for scale in model.top.kernel.lengthscale.tolist())

print(f"RMSE of the mean against the step, |x| between 0.2 and 2: {rmse:.3f}")
print(f"rise of the mean from x = -0.2 to x = 0.2: {jump:.2f} (true: 2)")
print(f"test NLL: {nll:.2f} nats per observation (with the true function and noise: {best:.2f})")
print(f"lengthscales of the top kernel: {scales}; noise variance {model.likelihood.variance.item():.4f} (true: 0.01)")

assert losses.isfinite().all() and mean.isfinite().all() and (low < high).all()
assert rmse < (1.5 if SMOKE else 0.15)
assert SMOKE or jump > 1.5

# %% [markdown]
# ## References
#
# - D. Duvenaud, O. Rippel, R. P. Adams and Z. Ghahramani (2014). Avoiding pathologies in very deep networks. AISTATS.
# - H. Salimbeni and M. P. Deisenroth (2017). Doubly stochastic variational inference for deep Gaussian
#   processes. NeurIPS.
