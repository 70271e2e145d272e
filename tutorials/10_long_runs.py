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
# # Long runs
#
# A fit that takes a minute needs no care. One that takes a night does: the rows may not fit into memory, the machine
# may be switched off, one processor may be too slow, and in the end there are forty runs to be kept apart. This
# tutorial shows, on small data, the tool for each:
#
# 1. a *stream* reads rows from disk, a few blocks at a time;
# 2. *checkpoints* let a run that was killed go on, to the same bits;
# 3. `torchrun` lets several processes share the rows of each step;
# 4. a *sweep* makes many runs, keeps one line of each, and makes only those that are missing.

# %%
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch

from pyro_dgp import (
    ELBO,
    DeepGP,
    InducingPoints,
    MonteCarlo,
    NumpyStream,
    Settings,
    Standardized,
    Variational,
    fit_stream,
    load_named,
    predict,
    sweep,
)

SMOKE = os.environ.get("PYRO_DGP_SMOKE") == "1"


def steps(full, smoke=2):
    """The length of a loop: `smoke` if the tutorial is only run to see that it runs."""
    return smoke if SMOKE else full


torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
pyro.set_rng_seed(0)
plt.rcParams.update({"figure.dpi": 80, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## 1. Rows that stay on disk
#
# Half a million rows of three inputs are written to two files of NumPy. The target is far from mean 0 and variance 1,
# as measured targets are.

# %%
ROWS = 5000 if SMOKE else 500_000
random = np.random.default_rng(0)
inputs = random.uniform(-1, 1, (ROWS, 3))


def truth(inputs):
    return 100 + 20 * np.sin(4 * inputs[:, 0]) * (1 + inputs[:, 1])


np.save(folder / "x.npy", inputs)
np.save(folder / "y.npy", truth(inputs) + 5 * random.normal(size=ROWS))
del inputs
print(f"{(folder / 'x.npy').stat().st_size / 1e6:.0f} MB of inputs")

# %% [markdown]
# `NumpyStream` reads a block of rows at a time. It shuffles a few blocks together and gives batches. `Standardized`
# gives inputs and target mean 0 and variance 1; it takes the statistics in one pass over the files. Memory does not
# grow with the number of rows.
#
# Two things need rows before training starts: the model, for the scale of its inputs, and the guide, for its first
# inducing points. `stream.sample` takes them from a few random blocks. `fit_stream` is then `fit` for streams.
# `num_data` is the number of *all* rows: it says how much the data weigh beside the prior.

# %%
stream = Standardized(NumpyStream(folder / "x.npy", folder / "y.npy"))
x, y = stream.sample(1000)
pyro.set_rng_seed(0)
model = DeepGP(x, layers=2, width=2)
guide = Variational(model, InducingPoints(50), MonteCarlo(1))
guide.initialize(x, y)
result = fit_stream(ELBO(num_data=len(stream))(model, guide), stream, steps=steps(500), batch_size=500)
print(f"{len(stream)} rows, {len(result.losses)} steps, {result.seconds:.0f} s")

# %% [markdown]
# Predictions are those of the standardised target. The stream knows the way back:

# %%
line = np.zeros((101, 3))
line[:, 0], line[:, 1] = np.linspace(-1, 1, 101), 0.5
ready = torch.as_tensor(stream.inputs.transform(line), dtype=x.dtype)
prediction = predict(guide, ready)
low, high = prediction.quantile([0.05, 0.95])
in_units = [stream.target_mean + stream.target_scale * values for values in (prediction.mean, low, high)]

figure, axes = plt.subplots(1, 2, figsize=(8.5, 2.7), layout="constrained")
axes[0].plot(result.losses, lw=0.8)
axes[0].set(xlabel="step", ylabel="loss, nats a row", title="training")
axes[1].fill_between(line[:, 0], in_units[1], in_units[2], color="C0", alpha=0.25, lw=0, label="90 %")
axes[1].plot(line[:, 0], in_units[0], color="C0", label="mean")
axes[1].plot(line[:, 0], truth(line), "k--", lw=0.8, label="true")
axes[1].set(xlabel="$x_1$", ylabel="y", title="along the first input, $x_2 = 0.5$")
axes[1].legend(fontsize=7, frameon=False)
error = np.abs(in_units[0].numpy() - truth(line)).mean()
print(f"mean distance from the truth along the line: {error:.2f} (the noise has standard deviation 5)")

# %% [markdown]
# The mean follows the truth to within half a unit, a tenth of the noise. Training saw 250,000 of the rows, each once,
# and held a few blocks of them at a time.
#
# Rows are mixed only among blocks that are shuffled together. A file whose rows are sorted should be shuffled once,
# before training.
#
# ## 2. A run is killed, and goes on
#
# Long runs are programs, not cells of a notebook. So here is a program, written to a file. It trains a small deep GP in
# the scope of `Checkpoints`, which saves the parameters, the optimiser, the order of the rows and the random numbers
# every so many seconds. The only rule: set the seed before the model is built, so that the same program makes the same
# start.
#
# The program prints the number of each step, so that we see what it does.

# %%
PROGRAM = """
import sys

import pyro
import torch
from pyro_dgp import ELBO, Checkpoints, DeepGP, Distributed, InducingPoints, MonteCarlo, Variational, fit

folder, end, number_of_steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
together = torch.distributed.is_torchelastic_launched()  # whether torchrun started this process
if together:
    torch.distributed.init_process_group("gloo")

pyro.set_rng_seed(0)
x = torch.linspace(-1, 1, 400)[:, None]
y = torch.sign(x[:, 0]) + 0.1 * torch.randn(400)
guide = Variational(DeepGP(x, layers=2, width=1), InducingPoints(20), MonteCarlo(5))
guide.initialize(x, y)
objective = ELBO(num_data=400)(guide.model, guide)


def train():
    with Checkpoints(folder, seconds=0.2):
        return fit(
            objective, x, y, steps=number_of_steps, batch_size=100, callback=lambda step, loss: print(step, flush=True)
        )


if together:
    with Distributed():
        result = train()
else:
    result = train()
if not together or torch.distributed.get_rank() == 0:
    parameters = {name: parameter.detach() for name, parameter in objective.named_parameters()}
    torch.save({"losses": result.losses, "parameters": parameters}, end)
if together:
    torch.distributed.destroy_process_group()
"""
(folder / "train.py").write_text(PROGRAM)
LENGTH, KILL_AT = steps(400, 80), steps(220, 6)
environment = os.environ | {"OMP_NUM_THREADS": "1"}


def command(name, launcher=()):
    """The words that start the program; checkpoints and result have the name of the run."""
    arguments = [str(folder / name), str(folder / f"{name}.pt"), str(LENGTH)]
    return [sys.executable, *launcher, str(folder / "train.py"), *arguments]


def started(name, kill_at=None):
    """Run the program, kill it at a step if one is given, and return the steps that it printed."""
    seen = []
    with subprocess.Popen(command(name), stdout=subprocess.PIPE, text=True, env=environment) as process:
        for printed in process.stdout:
            seen.append(int(printed))
            if seen[-1] == kill_at:
                process.kill()
                break
    return seen


def of(name):
    return torch.load(folder / f"{name}.pt")


# %% [markdown]
# First a run that nobody disturbs. Then one that is killed in the middle, as by a power cut: the process gets no chance
# to save anything. Then *the same command again*.

# %%
whole = started("undisturbed")
before = started("killed", kill_at=KILL_AT)
after = started("killed")
print(f"undisturbed: steps {whole[0]} to {whole[-1]}")
print(f"killed:      steps {before[0]} to {before[-1]}, and after the second start {after[0]} to {after[-1]}")

figure, axis = plt.subplots(figsize=(7, 1.5), layout="constrained")
for height, (label, seen) in enumerate({"second start": after, "first start": before, "undisturbed": whole}.items()):
    axis.plot([seen[0], seen[-1]], [height, height], lw=6, solid_capstyle="butt")
    axis.text(-4, height, label, ha="right", va="center")
axis.set(yticks=[], xlabel="step", xlim=(0, LENGTH), ylim=(-0.6, 2.6))
axis.spines["left"].set_visible(False)

same_losses = of("undisturbed")["losses"] == of("killed")["losses"]
ends = of("undisturbed")["parameters"], of("killed")["parameters"]
same_parameters = all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
print(f"all {LENGTH} losses are equal: {same_losses}")
print(f"all {len(ends[0])} parameters are equal, bit for bit: {same_parameters}")
assert same_losses and same_parameters

# %% [markdown]
# The second start goes on a little before the kill, at the last save, and makes the steps from there again. Its losses
# and parameters are those of the run that nobody disturbed, to the last bit. Nothing was to be changed in the program
# for that, and nothing has to be told to it when it starts again. A changed program is another run, and is refused.
#
# ## 3. Several processes
#
# `torchrun` starts a program several times, on one machine or on many. In the scope of `Distributed` the processes
# train one model together. Each of them takes a part of the rows of every step, and their gradients are summed. In the
# terminal it is
#
#     torchrun --nproc-per-node 2 train.py ...
#
# and on two machines the same with `--nnodes 2 --node-rank 0 --master-addr HOST --master-port 29500`, with `--node-rank
# 1` on the second. The program above is ready for it: it asks whether `torchrun` started it. Here from the notebook,
# with two processes:

# %%
launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
finished = subprocess.run(command("together", launcher), env=environment, capture_output=True, text=True)
assert finished.returncode == 0, finished.stderr[-2000:]
one, two = (torch.tensor(of(name)["losses"]) for name in ("undisturbed", "together"))
apart = (one - two).abs()
print(f"largest difference of the first 10 losses: {apart[:10].max():.1e} nats a row; of all: {apart.max():.1e}")
print(f"mean of the last 50 losses: {one[-50:].mean():.3f} by one process, {two[-50:].mean():.3f} by two")
assert apart[:10].max() < 1e-6

figure, axes = plt.subplots(1, 2, figsize=(8.5, 2.5), layout="constrained")
axes[0].plot(one, lw=2.5, color="0.7", label="one process")
axes[0].plot(two, lw=0.8, color="C3", label="two processes")
axes[0].set(xlabel="step", ylabel="loss, nats a row")
axes[0].legend(frameon=False, fontsize=7)
axes[1].semilogy(apart + 1e-17, lw=0.8)
_ = axes[1].set(xlabel="step", ylabel="difference")

# %% [markdown]
# The random numbers of a step belong to its rows and not to the process. So two processes draw what one would draw, and
# the first losses are the same up to rounding: 2e-10 nats. Sums in another order round differently, and training
# enlarges such a difference, as it does in any program. After 100 steps the two runs are two runs, equally good: they
# end at -0.164 and -0.189 nats. For the same bits use the same number of processes.
#
# Each step exchanges two messages between the processes. So several processes pay where a step is long: many rows, many
# inducing points, several machines.
#
# ## 4. Many runs
#
# One run says little: another split of the data gives another score. A *sweep* makes the runs of all methods on all
# data sets, splits and seeds, one after another or in several processes (`jobs=2`). It writes one line of JSON for each
# run as soon as it ends. The data are scikit-learn's diabetes set; `svgp` is one sparse layer, `dsvi` two layers.

# %%
runs = folder / "runs.jsonl"
settings = Settings(width=3, inducing=30, epochs=steps(60, 1), samples=1, batch_size=100)
diabetes = [load_named("diabetes")]
first = sweep(diabetes, ["svgp", "dsvi"], splits=range(steps(2, 1)), settings=settings, output=runs, say=print)
print(f"{len(runs.read_text().splitlines())} lines")

# %% [markdown]
# Ask for more splits, and only those that are missing are made. The same holds after a kill: the call is its own
# remedy. A run that fails has its error in its line, and the others go on.

# %%
rows = sweep(diabetes, ["svgp", "dsvi"], splits=range(steps(5)), settings=settings, output=runs, say=print)
assert rows[:1] == first[:1]
nll = {method: {row["split"]: row["nll"] for row in rows if row["method"] == method} for method in ("svgp", "dsvi")}
differences = torch.tensor([nll["dsvi"][split] - nll["svgp"][split] for split in nll["svgp"]])
error = differences.std() / len(differences) ** 0.5
print(f"dsvi minus svgp, NLL: {differences.mean():.3f}, standard error {error:.3f}")

figure, axis = plt.subplots(figsize=(4.5, 2.6), layout="constrained")
for split in nll["svgp"]:
    axis.plot([0, 1], [nll["svgp"][split], nll["dsvi"][split]], "o-", lw=0.8, label=f"split {split}")
axis.set(xticks=[0, 1], xticklabels=["svgp", "dsvi"], ylabel="test NLL, nats a row", xlim=(-0.3, 1.8))
_ = axis.legend(fontsize=7, frameon=False)

# %% [markdown]
# Look at pairs, not at means: the split matters more than the method (0.96 to 1.10 for `svgp`), and both methods have
# the same splits. The difference in pairs, 0.015 nats with a standard error of 0.009, says that two layers are no
# better than one on these 442 rows.
#
# From the terminal it is `pyro-dgp sweep --data diabetes --methods svgp,dsvi --splits 0-4 --output runs.jsonl`.
#
# ## Exercises
#
# 1. Write a `Stream` of your own, with `sizes` and `read(block)`, that makes its rows when they are read.
# 2. Put the stream of part 1 into the program of part 2. Kill it, start it again, and compare.
# 3. Change the learning rate in the program and start the killed run again. What does the library say?
# 4. Start the program by `torchrun` with two processes, kill it, and start it with three. Does it go on?
# 5. Add seeds to the sweep, `seeds=range(3)`. Is the spread over seeds smaller than that over splits?
