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
# # Predictions that can be trusted
#
# A predictive distribution says how far off it may be. Whether it is right about that can be measured. This tutorial
# measures it on an example whose true density is known, compares the evidence lower bound with a loss that trains the
# predictive density itself, carries that loss to two layers with deep sigma points, and shows how it overfits and what
# a validation set does about it.

# %%
import copy
import math
import os

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch

from pyro_dgp import (
    ELBO,
    DeepGP,
    InducingPoints,
    MarginalLikelihood,
    Mixture,
    MonteCarlo,
    PosteriorDraws,
    Prediction,
    PredictiveLogLikelihood,
    SigmaPoints,
    Validation,
    Variational,
    coverage,
    fit,
    fit_validated,
    load_named,
    predict,
    scores,
    split,
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
# ## 1. How to judge a predictive distribution
#
# Let $F_n$ be the predictive distribution function of a held-out target $y_n$ and $p_n$ its density. Two scores rank
# forecasts; both are lowest on average for the true distribution, so a forecast gains nothing by a pretence:
#
# $$\mathrm{NLL} = -\frac1N \sum_{n} \log p_n(y_n), \qquad
# \mathrm{CRPS} = \frac1N \sum_{n} \int \bigl(F_n(z) - \mathbb 1\{z \ge y_n\}\bigr)^2 \, \mathrm dz.$$
#
# The NLL (mean negative log density, nats) is local and severe: a target where the density is tiny costs without
# limit. The continuous ranked probability score has the units of $y$, grows linearly with the distance, and is the
# absolute error if the forecast is a point.
#
# Two checks say in which way a forecast is wrong. The probability integral transform $F_n(y_n)$ is uniform if the
# forecast is calibrated: a histogram like a valley means intervals too narrow, a hill means intervals too wide. And the
# central interval of level $\alpha$ should hold a share $\alpha$ of the targets; `coverage` counts that.
#
# The data below are normal with a known mean and a standard deviation that rises from 0.05 on the left to 0.5 on the
# right, so the true density can be scored as well. The floor of any method is what it gets:
# $\mathbb E \log \sigma(x) + \tfrac12 \log 2\pi e$ for the NLL and $\mathbb E\,\sigma(x) / \sqrt\pi$ for the CRPS.


# %%
def true_mean(x):
    return torch.sin(2 * x.squeeze(-1))


def true_sd(x):
    return 0.05 + 0.45 * torch.sigmoid(4 * x.squeeze(-1))


def noisy(count):
    x = 4 * torch.rand(count, 1) - 2
    return x, true_mean(x) + true_sd(x) * torch.randn(count)


def normal_forecast(mean, sd):
    """A `Prediction` that is one normal distribution for each row."""
    return Prediction(lambda rows: Mixture(dist.Normal(mean[None, rows], sd[None, rows]), torch.zeros(1)), len(mean))


x, y = noisy(300)
x_test, y_test = noisy(2000)
mean, sd = true_mean(x_test), true_sd(x_test)

forecasts = {
    "the true density": normal_forecast(mean, sd),
    "half the spread": normal_forecast(mean, 0.5 * sd),
    "twice the spread": normal_forecast(mean, 2 * sd),
    "one spread for all": normal_forecast(mean, sd.square().mean().sqrt().expand_as(sd)),
}
LEVELS = torch.linspace(0.02, 0.98, 49)


def table(predictions, y):
    """Print the scores and the coverage of central intervals; return the NLLs."""
    lines, nll = [f"{'':34}{'NLL':>8}{'CRPS':>9}{'in 50 %':>10}{'in 90 %':>10}"], {}
    for name, prediction in predictions.items():
        score, inside = scores(prediction, y), coverage(prediction, y, torch.tensor([0.5, 0.9])).tolist()
        nll[name] = score["nll"]
        lines.append(f"{name:34}{score['nll']:8.3f}{score['crps']:9.4f}{inside[0]:10.2f}{inside[1]:10.2f}")
    print("\n".join(lines))
    return nll


forecast_nll = table(forecasts, y_test)
print(f"expected floor: NLL {sd.log().mean().item() + 0.5 * math.log(2 * math.pi * math.e):.3f}, ", end="")
print(f"CRPS {sd.mean().item() / math.pi**0.5:.4f}")

inside = (2 * (forecasts["one spread for all"].cdf(y_test) - 0.5).abs() < 0.9).double()
for side, rows in {"x < 0": x_test[:, 0] < 0, "x > 0": x_test[:, 0] > 0}.items():
    print(f"one spread for all, targets in the 90 % interval, {side}: {inside[rows].mean().item():.2f}")


# %%
def pit_histogram(axis, prediction, y, title):
    axis.hist(prediction.cdf(y).detach(), bins=20, range=(0, 1), density=True, color="C0", alpha=0.6)
    axis.axhline(1, color="0.3", lw=0.8, ls="--")
    axis.set(xlabel="$F(y)$", title=title, xlim=(0, 1))
    axis.title.set_fontsize(9)


def calibration(axis, predictions, y):
    axis.plot([0, 1], [0, 1], color="0.3", lw=0.8, ls="--")
    for name, prediction in predictions.items():
        axis.plot(LEVELS, coverage(prediction, y, LEVELS), label=name)
    axis.set(xlabel="level of the interval", ylabel="targets inside", xlim=(0, 1), ylim=(0, 1))
    axis.legend(fontsize=7, frameon=False)


figure = plt.figure(figsize=(9.5, 4.2), layout="constrained")
axes = figure.subplot_mosaic([["a", "b", "e"], ["c", "d", "e"]], width_ratios=(1, 1, 1.6))
for key, (name, prediction) in zip("abcd", forecasts.items(), strict=True):
    pit_histogram(axes[key], prediction, y_test, name)
calibration(axes["e"], forecasts, y_test)
assert all(prediction.cdf(y_test).shape == (2000,) for prediction in forecasts.values())
assert min(forecast_nll.values()) == forecast_nll["the true density"]

# %% [markdown]
# The true density scores -0.265 nats, against an expected floor of -0.271, and its histogram is flat. Half the spread
# gives a valley, and only 59 % of the targets lie in the 90 % interval; twice the spread gives a hill, and all of
# them do. The last forecast has one spread for all inputs, of the right size on average. It holds 88 % in its 90 %
# interval, which looks calibrated, and yet costs 0.6 nats: the interval holds every target on the left and 77 % on
# the right. A coverage that is right on average says nothing about the single prediction. The NLL and the CRPS see
# the difference, and so does the histogram here, with a hill in the middle and a wall at either end.
#
# ## 2. Why a predictive loss differs from an ELBO
#
# One sparse GP with Gaussian noise $\sigma^2$ predicts $\mathcal N(\mu_f(x), \sigma_f^2(x) + \sigma^2)$ however it was
# trained. The ELBO (Jankowiak, Pleiss and Gardner 2020, deep sigma point processes, Eq. 6) has for each observation
#
# $$\mathbb E_{q(f)} \log p(y_n \mid f_n)
# = \log \mathcal N\bigl(y_n \mid \mu_f(x_n), \sigma^2\bigr) - \frac{\sigma_f^2(x_n)}{2 \sigma^2},$$
#
# so the variance of $f$ is a penalty and cannot explain a residual: whatever the data scatter by has to go into
# $\sigma^2$, one number for all inputs. The predictive log-likelihood (Eq. 16) has the logarithm outside,
#
# $$\log \mathbb E_{q(f)}\, p(y_n \mid f_n)
# = \log \mathcal N\bigl(y_n \mid \mu_f(x_n), \sigma_f^2(x_n) + \sigma^2\bigr),$$
#
# and there $\sigma_f^2(x)$ is as good an explanation as $\sigma^2$, with the advantage that it may depend on the input.
# Both subtract a KL divergence, here with the same weight 1, so that the term above is all that differs. The two fits
# start from copies of one untrained model.


# %%
def fitted(untrained, loss, processes, propagation, x, y, count, batch_size=100, seed=0):
    """A guide on a copy of an untrained model, after `count` steps."""
    pyro.set_rng_seed(seed)
    model = copy.deepcopy(untrained)
    guide = Variational(model, processes, propagation)
    guide.initialize(x, y)
    fit(loss(model, guide), x, y, steps=steps(count), batch_size=batch_size, learning_rate=0.02, seed=seed)
    return guide


untrained = DeepGP(x, layers=1)
shallow = {
    name: fitted(untrained, loss, InducingPoints(20, covariance="diagonal"), MonteCarlo(1), x, y, 800, len(x))
    for name, loss in {
        "svgp (ELBO)": ELBO(len(x)),
        "ppgpr (predictive)": PredictiveLogLikelihood(len(x), beta=1.0),
    }.items()
}
at_test = {name: predict(guide, x_test) for name, guide in shallow.items()}
shallow_nll = table({"the true density": forecasts["the true density"], **at_test}, y_test)

# %%
grid = torch.linspace(-2, 2, 201)[:, None]
at = grid.squeeze(-1)

figure, axes = plt.subplots(2, 3, figsize=(9.5, 5.4), layout="constrained", width_ratios=(1.4, 1.2, 1))
noise, latent = {}, {}
for row, (name, guide) in zip(axes, shallow.items(), strict=True):
    prediction = predict(guide, grid)
    low, high = prediction.quantile([0.05, 0.95])
    noise[name] = guide.model.likelihood.variance.item()
    latent[name] = prediction.variance - noise[name]
    row[0].fill_between(at, low, high, color="C0", alpha=0.25, lw=0, label="90 % interval")
    for sign in (-1.645, 1.645):
        row[0].plot(at, true_mean(grid) + sign * true_sd(grid), color="0.3", lw=0.8, ls="--")
    row[0].plot(x, y, "k.", ms=2)
    row[0].set(title=name, xlabel="$x$", ylabel="$y$", ylim=(-2.6, 2.6))
    row[1].plot(at, true_sd(grid), color="0.3", lw=0.8, ls="--", label="true noise")
    row[1].plot(at, latent[name].sqrt(), color="C1", label=r"$\sigma_f(x)$")
    row[1].axhline(noise[name] ** 0.5, color="C2", label=r"$\sigma$")
    row[1].set(title="standard deviations", xlabel="$x$", ylim=(0, 0.75))
    row[1].legend(fontsize=7, frameon=False, loc="upper left")
    pit_histogram(row[2], at_test[name], y_test, "held-out PIT")

for name in shallow:
    ends = ", ".join(f"{latent[name][index].sqrt().item():.3f} at x = {at[index].item():.1f}" for index in (25, 175))
    print(f"{name:20} noise sd {noise[name] ** 0.5:.3f}; sd of f {ends}")
assert latent["svgp (ELBO)"].shape == (201,) and all((value > 0).all() for value in latent.values())
if not SMOKE:
    assert shallow_nll["ppgpr (predictive)"] < shallow_nll["svgp (ELBO)"] - 0.2
    assert noise["ppgpr (predictive)"] < 0.1 * noise["svgp (ELBO)"]

# %% [markdown]
# The dashed lines are the true 90 % interval and the true noise. Under the ELBO $\sigma_f$ stays near 0.1 everywhere
# and $\sigma$ is 0.33, a compromise that is far too wide on the left and too narrow on the right; the PIT has the
# shape of the forecast with one spread above, and the NLL is 0.363. The predictive loss moves the scatter into
# $\sigma_f$, which rises from about 0.05 to between 0.32 and 0.56, and leaves 0.02 for the noise. Its NLL is -0.148,
# 0.1 above the floor.
#
# It is not free of faults. The walls at the ends of its PIT, and 85 % of the targets in the 90 % interval, say that
# the intervals are a little too narrow: $\sigma_f$ dips to 0.32 near $x = 1.35$, where the true noise does not. And
# $\sigma_f$ no longer says how well the function is known. A predictive loss approximates no posterior, and its value
# is no bound on $\log p(y)$: it cannot be used to compare models as a marginal likelihood can. What it trains is the
# predictive density, and held-out data are the judge of that.
#
# ## 3. Deep sigma points
#
# With a hidden layer of width $W$ the predictive density is a mixture over its values, and the logarithm of a Monte
# Carlo mean is biased downwards. Jankowiak et al. replace the draws by $S$ points with weights that sum to one,
#
# $$p(y_n \mid x_n) = \sum_{s=1}^{S} \omega_s\, \mathcal N\bigl(y_n \mid \mu_f(g_n^{(s)}),\,
# \sigma_f^2(g_n^{(s)}) + \sigma^2\bigr), \qquad g_{n,w}^{(s)} = \mu_w(x_n) + \xi_w^{(s)} \sigma_w(x_n),$$
#
# and learn $\xi$ and $\omega$ with everything else. The mixture is the model's density, exactly. Nothing is being
# integrated, so the points owe nothing to a normal distribution. `SigmaPoints` has four rules. Three are grids with $S$
# points in each dimension; `qr3` is a list of $S$ points in all, and the only one for more than one hidden layer.

# %%
tiny = DeepGP(x, layers=2, width=3)
for rule in ("gauss-hermite", "qr1", "qr2", "qr3"):
    guide = Variational(tiny, InducingPoints(5), SigmaPoints(rule, 4))
    guide.initialize(x, y)
    learned = sum(parameter.numel() for parameter in guide.propagation.parameters())
    print(f"{rule:14} S = 4, W = 3: {guide.propagation.num_components:3d} components, {learned:3d} learned numbers")
    assert guide.propagation.num_components == (4 if rule == "qr3" else 64)

# %% [markdown]
# The data below need a mixture. The mean splits into two branches as $x$ grows; an observation is on the upper one with
# probability 0.7, and the noise is 0.1. Three fits start from one untrained model with a hidden layer of width 2:
# `dsvi` (ELBO and Monte Carlo), `mc-predictive` (predictive log-likelihood and Monte Carlo) and `dspp` (predictive
# log-likelihood and ten sigma points). The two predictive losses weigh the KL by 0.2.


# %%
def branches(x):
    """Density of y given x: two normals, upper and lower."""
    middle, gap = 0.5 * torch.sin(2 * x.squeeze(-1)), 0.8 * torch.sigmoid(3 * x.squeeze(-1))
    return Mixture(dist.Normal(torch.stack([middle + gap, middle - gap]), 0.1), torch.tensor([0.7, 0.3]).log())


def branching(x):
    return Prediction(lambda rows: branches(x[rows]), len(x))


pyro.set_rng_seed(2)
x_two = 4 * torch.rand(1000, 1) - 2
y_two = branching(x_two).sample((1,))[0]
x_two_test = 4 * torch.rand(1000, 1) - 2
y_two_test = branching(x_two_test).sample((1,))[0]

untrained = DeepGP(x_two, layers=2, width=2)
full, diagonal = InducingPoints(20), InducingPoints(20, covariance="diagonal", hidden_scale=0.5)
predictive = PredictiveLogLikelihood(len(x_two), beta=0.2)
deep = {
    name: fitted(untrained, loss, processes, propagation, x_two, y_two, 800)
    for name, loss, processes, propagation in (
        ("dsvi", ELBO(len(x_two)), full, MonteCarlo(10)),
        ("mc-predictive", predictive, diagonal, MonteCarlo(10)),
        ("dspp", predictive, diagonal, SigmaPoints("qr3", 10)),
    )
}
deep["dspp, another start"] = fitted(untrained, predictive, diagonal, SigmaPoints("qr3", 10), x_two, y_two, 800, seed=1)
SAMPLES = steps(100, smoke=10)  # components of a Monte Carlo mixture
at_two = {name: predict(guide, x_two_test, num_samples=SAMPLES) for name, guide in deep.items()}
deep_nll = table({"the true density": branching(x_two_test), **at_two}, y_two_test)

# %%
heights = torch.linspace(-1.7, 1.7, 171)


def density(prediction):
    """The predictive density on the grid of inputs and heights."""
    return torch.stack([prediction.log_prob(height.expand(len(grid))) for height in heights]).exp().detach()


pictures = {"the true density": density(branching(grid))}
pictures |= {name: density(predict(guide, grid, num_samples=SAMPLES)) for name, guide in deep.items()}
figure, axes = plt.subplots(1, 5, figsize=(9.5, 2.7), sharex=True, sharey=True, layout="constrained")
for axis, (name, picture) in zip(axes, pictures.items(), strict=True):
    image = axis.pcolormesh(at.numpy(), heights.numpy(), picture.numpy(), vmin=0, vmax=3, cmap="Blues", rasterized=True)
    axis.plot(x_two[:250], y_two[:250], "k.", ms=1, alpha=0.5)
    axis.set(xlabel="$x$")
    axis.set_title(name, fontsize=9)
axes[0].set_ylabel("$y$")
_ = figure.colorbar(image, ax=axes, label="density", extend="max")
assert all(picture.shape == (171, 201) for picture in pictures.values())

# %% [markdown]
# The ELBO gives `dsvi` one normal bump that covers both branches and the gap between them: 0.750 nats, where the true
# density scores -0.452. Ten sigma points find both branches, -0.395. `mc-predictive` finds the upper one and smears
# the lower: -0.214; normal draws of the hidden layer fill the space between two modes. The last panel is the same
# loss and the same rule from another seed, and it found neither branch: 0.240. Learned points have local optima: of
# the two seeds here one found the branches, and it is the one shown first.

# %%
points = deep["dspp"].propagation.positions("h1", x_two).detach()
weights = deep["dspp"].propagation.log_weights(x_two).exp().detach()
column = int((at - 1.5).abs().argmin())

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained", width_ratios=(1, 1.5))
left.scatter(*torch.randn(400, 2).T, s=3, color="0.75", label="standard normal draws")
left.scatter(*points.T, s=600 * weights, color="C3", alpha=0.5, label="sigma points, area by weight")
left.set(xlabel=r"$\xi_1$", ylabel=r"$\xi_2$", aspect="equal", xlim=(-3.3, 3.3), ylim=(-3.3, 3.3))
left.legend(fontsize=7, loc="lower center", ncols=1)
for name, picture in pictures.items():
    style = {"color": "0.3", "ls": "--", "lw": 0.9} if name == "the true density" else {}
    right.plot(heights, picture[:, column], label=name, **style)
right.set(xlabel="$y$", ylabel="density at $x = 1.5$", ylim=(0, 3))
right.legend(fontsize=7, frameon=False)

order = weights.argsort(descending=True)
for index in order.tolist():
    print(f"weight {weights[index].item():.3f} at ({points[index, 0].item():6.2f}, {points[index, 1].item():6.2f})")
for name in ("dspp", "dspp, another start"):
    apart = torch.pdist(deep[name].propagation.positions("h1", x_two).detach()).max().item()
    print(f"largest distance of two points, {name}: {apart:.2f}")
middle = 0.5 * math.sin(3.0)
upper = {
    name: 1 - predict(guide, torch.full((1, 1), 1.5), num_samples=SAMPLES).cdf(torch.tensor([middle])).item()
    for name, guide in deep.items()
}
listed = ", ".join(f"{name} {value:.2f}" for name, value in upper.items())
print(f"probability of the upper branch at x = 1.5 (true: 0.70): {listed}")
assert points.shape == (10, 2) and abs(weights.sum().item() - 1) < 1e-9
if not SMOKE:
    assert deep_nll["dspp"] < deep_nll["dsvi"] - 0.3

# %% [markdown]
# Ten points are two groups: five of them, with weights that sum to 0.73, lie at (-0.58, 0.35) and (-0.48, 0.43), and the
# other five, with 0.27, at (0.44, -1.18). They are the branches and their probabilities. The grey draws are what Monte
# Carlo would have put in their place. At $x = 1.5$ the fit follows the upper peak, and its lower peak is a little too
# high and too narrow. In the fit from the other start no two points are further apart than 0.62, where it is 1.86 in
# the first, and the density at $x = 1.5$ has a single bump.
#
# ## 4. What beta does
#
# A predictive loss is maximum likelihood with a penalty: $\beta$ is the weight of the KL terms. With few data and much
# noise the penalty matters, since a density that is trained to be high at the training targets can shrink around each
# of them. The data are scikit-learn's diabetes set (442 rows, 10 inputs), two of the library's splits of nine to one,
# standardised by training statistics. The model has two layers of which the hidden one has width 3, with 40 inducing
# points and ten sigma points, and takes 240 steps.

# %%
BETAS = (0.01, 0.05, 0.2, 1.0, 5.0)
SPLITS = (0, 1)
parts = {number: split(load_named("diabetes"), number) for number in SPLITS}
small = {number: DeepGP(part.x_train, layers=2, width=3) for number, part in parts.items()}
processes = InducingPoints(40, covariance="diagonal")


def nll_of(guide, x, y):
    return -predict(guide, x).log_prob(y).mean().item()


def train(number, beta):
    """The trained guide, and rows of (step, training NLL, test NLL)."""
    part, history = parts[number], []
    model = copy.deepcopy(small[number])
    guide = Variational(model, processes, SigmaPoints("qr3", 10))
    pyro.set_rng_seed(0)
    guide.initialize(part.x_train, part.y_train)

    def record(step, _):
        if (step + 1) % steps(30, smoke=1) == 0:
            values = nll_of(guide, part.x_train, part.y_train), nll_of(guide, part.x_test, part.y_test)
            history.append((step + 1, *values))

    loss = PredictiveLogLikelihood(len(part.x_train), beta)(model, guide)
    fit(loss, part.x_train, part.y_train, steps=steps(240), batch_size=100, learning_rate=0.02, callback=record)
    return guide, torch.tensor(history)


runs = {(number, beta): train(number, beta) for number in SPLITS for beta in BETAS}
histories = {key: history for key, (_, history) in runs.items()}

print(f"mean of {len(SPLITS)} splits, nats per row")
print(f"{'beta':>6}{'train NLL, end':>16}{'test NLL, end':>16}{'lowest test NLL':>18}{'at step':>12}")
ends = {}
for beta in BETAS:
    both = [histories[number, beta] for number in SPLITS]
    ends[beta] = [torch.stack([history[-1, k] for history in both]).mean().item() for k in (1, 2)]
    lowest = torch.stack([history[:, 2].min() for history in both]).mean().item()
    where = ", ".join(str(int(history[history[:, 2].argmin(), 0])) for history in both)
    print(f"{beta:6.2f}{ends[beta][0]:16.2f}{ends[beta][1]:16.2f}{lowest:18.2f}{where:>12}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
for column, (name, style) in enumerate({"training": "--", "test": "-"}.items(), 1):
    left.plot(BETAS, [ends[beta][column - 1] for beta in BETAS], "o" + style, color="k", label=name)
    for color, beta in enumerate((0.01, 1.0, 5.0)):
        history = histories[0, beta]
        label = rf"{name}, $\beta = {beta:g}$"
        right.plot(history[:, 0], history[:, column], style, color=f"C{color}", label=label)
left.set(xscale="log", xlabel=r"$\beta$", title="after the last step, mean of two splits")
right.set(xlabel="step", title="during training, split 0")
for axis in (left, right):
    axis.set(ylabel="NLL, nats per row", ylim=(0, 3))
    axis.legend(fontsize=7, frameon=False, handlelength=3.5, loc="upper left")
assert all(history.shape[1] == 3 and history.isfinite().all() for history in histories.values())
if not SMOKE:
    assert all(test > train + 0.5 for beta, (train, test) in ends.items() if beta <= 1)

# %% [markdown]
# As $\beta$ falls from 5 to 0.01, the training NLL falls from 0.84 to 0.40 nats and the test NLL rises from 1.13 to
# 2.08. The right panel shows it happening: up to $\beta = 1$ the test NLL is lowest, 1.12, within the first 60 steps
# and rises from there, while the training NLL falls to the end. Only $\beta = 5$ holds its level. The lowest test NLL
# is there to be looked at: to stop where it is reached would be to train on the test rows.
#
# ## 5. The remedy, and its limits
#
# `fit_validated` does what any such loss needs. It holds out a ninth of the training rows, and where these are few, as here,
# up to three such folds in turn. It tries each $\beta$ from the same start for a part of the steps and scores the held-out rows
# at equally spaced steps, by NLL and by CRPS. Of the $\beta$ that are within one standard error of the best it takes the
# largest, and makes longer runs where the search was still improving. With one fold the best checkpoint stays in the model;
# with several the model is trained once more, on all rows, to the step that was best. The test rows are not looked at.
# `Validation` holds the settings, and the result says what was chosen and what it cost.

# %%
validation = Validation(betas=(0.01, 0.05, 0.2, 1.0), search=0.25, checks=20, patience=5)


def validated(untrained, processes, x, y, count, split=0):
    """A guide with sigma points after a validated fit, and its report."""
    pyro.set_rng_seed(0)
    guide = Variational(copy.deepcopy(untrained), processes, SigmaPoints("qr3", 10))
    guide.initialize(x, y)
    report = fit_validated(
        guide,
        lambda beta, rows: PredictiveLogLikelihood(rows, beta),
        x,
        y,
        steps=steps(count, smoke=4),
        batch_size=100,
        validation=validation,
        split=split,
    )
    return guide, report


def exact_gp(part):
    """Exact GP regression by its marginal likelihood, as a `Prediction` at the test rows."""
    model = DeepGP(part.x_train, layers=1)
    fit(
        MarginalLikelihood(model),
        part.x_train,
        part.y_train,
        steps=steps(150),
        batch_size=len(part.x_train),
        learning_rate=0.03,
    )
    return predict(PosteriorDraws(model, {}, (part.x_train, part.y_train)), part.x_test)


results, reports = {}, {}
for number, part in parts.items():
    data, rows = (part.x_train, part.y_train), len(part.x_train)
    svgp = fitted(DeepGP(data[0], layers=1), ELBO(rows), InducingPoints(40), MonteCarlo(1), *data, 240)
    guide, reports[f"diabetes {number}"] = validated(small[number], processes, *data, 240, number)
    results["exact-gp", number] = exact_gp(part)
    results["svgp", number] = predict(svgp, part.x_test)
    results["dspp, beta 0.05, last step", number] = predict(runs[number, 0.05][0], part.x_test)
    results["dspp, beta 5, last step", number] = predict(runs[number, 5.0][0], part.x_test)
    results["dspp, validated", number] = predict(guide, part.x_test)
guide, reports["branches"] = validated(untrained, diagonal, x_two, y_two, 800)
at_two["dspp, validated"] = predict(guide, x_two_test)

for name, report in reports.items():
    tried = ", ".join(f"{beta:g}: {value:.3f}" for beta, value in report.searched.items())
    print(f"{name}: beta {report.beta:g} ({tried})")
    print(
        f"    best step {report.best_step}, {report.validation_rows} rows held out in {report.folds} fold(s), ", end=""
    )
    print(f"{report.steps} steps in {report.seconds:.0f} s, of which {report.extra_seconds:.0f} s search and checks")
for number in SPLITS:
    print(f"\ndiabetes, split {number}, {len(parts[number].y_test)} test rows")
    table({name: p for (name, split_of), p in results.items() if split_of == number}, parts[number].y_test)
print("\nbranches, 1000 test rows")
branch_nll = table({"the true density": branching(x_two_test), **at_two}, y_two_test)

# %%
names = list(dict.fromkeys(name for name, _ in results))
test_nll = {key: -prediction.log_prob(parts[key[1]].y_test).mean().item() for key, prediction in results.items()}
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.2), layout="constrained")
for number, marker in zip(SPLITS, "os", strict=True):
    left.plot([test_nll[name, number] for name in names], names, marker, label=f"split {number}")
left.set(xlabel="test NLL, nats per row", title="diabetes")
left.invert_yaxis()
left.legend(fontsize=7)
right.plot(list(branch_nll.values())[1:], list(branch_nll)[1:], "o", color="C2")
right.set_xlim(branch_nll["the true density"] - 0.1, None)
right.axvline(branch_nll["the true density"], color="0.3", lw=0.8, ls="--", label="the true density")
right.set(xlabel="test NLL, nats per row", title="branches")
right.invert_yaxis()
_ = right.legend(fontsize=7, loc="lower right")
assert all(math.isfinite(value) for value in test_nll.values())
assert all(report.folds == 3 for report in list(reports.values())[:2])
if not SMOKE:
    for number in SPLITS:
        assert test_nll["dspp, validated", number] < test_nll["dspp, beta 0.05, last step", number] - 0.2

# %% [markdown]
# On the diabetes data validation takes `dspp` from 2.40 and 1.42 nats (beta 0.05, last step) to 1.16 and 1.09.
# Stopping did that more than $\beta$: the best steps are 72 and 60, and the four $\beta$ differ by 0.01 on the
# held-out rows, less than a standard error, so the largest was taken. The cost was 885 and 897 steps in place of
# 240; no row was given away, since the last fit is to all of them. The weight 5, which was not among the four, has 1.16
# and 1.10 at the last step without any validation; but only the test rows say so.
#
# It does not stand out from the simple methods. An exact GP has 1.09 and 1.15, `svgp` 1.09 and 1.10, and neither needs held-out
# rows. With 44 test rows differences of a few hundredths mean nothing either way; what can be said is that on few,
# noisy data the deep predictive model bought nothing. The data of Jankowiak et al., where it leads on the NLL, have
# $10^4$ to $10^6$ rows.
#
# On the branches it pays. Validated, `dspp` reaches -0.22 where `dsvi` has 0.75. It does not beat the first fit above,
# which has -0.395 with $\beta = 0.2$. After a quarter of the steps the four $\beta$ are between -0.06 and 0.02 on the held-out
# rows, near what the fit from the other start has in the end. So the search served to leave a bad optimum as much as to
# weigh the KL, and what it finds depends on the start.
#
# Two things to keep in mind. A predictive loss is judged by held-out data and by nothing else, since it approximates
# no posterior and bounds no marginal likelihood. And where the function itself is the question, with its uncertainty,
# an ELBO or MCMC on the same model is the tool.
#
# ## References
#
# - T. Gneiting and A. E. Raftery (2007). Strictly proper scoring rules, prediction, and estimation. JASA.
# - J. Hensman, N. Fusi and N. D. Lawrence (2013). Gaussian processes for big data. UAI.
# - M. Jankowiak, G. Pleiss and J. R. Gardner (2020). Deep sigma point processes. UAI.
# - M. Jankowiak, G. Pleiss and J. R. Gardner (2020). Parametric Gaussian process regressors. ICML.
# - H. Salimbeni and M. P. Deisenroth (2017). Doubly stochastic variational inference for deep Gaussian
#   processes. NeurIPS.
