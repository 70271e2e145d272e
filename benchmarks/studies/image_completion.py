"""The lower half of a digit given its upper half, by deep GPs with latent inputs and by one layer.

``python -m benchmarks.studies.image_completion [--data FOLDER] [--figure FILE] [--steps N] [--components S] [--threads N]``

Without ``--data`` the 1,797 digits of 8 x 8 pixels that scikit-learn ships, a sixth of them for testing; with it 4,000 and 500 digits of
``FOLDER/images/mnist_t10k.npz``, 28 x 28 pixels, of its split 0. Inputs are 20 principal components of the upper half, targets all pixels of the lower half as mixtures of 16
functions (linear coregionalisation). ``one layer`` and ``two layers`` see the inputs; ``latent inputs`` has two layers and two standard normal inputs
more for each image, whose posterior in training comes of a network that sees both halves, and whose values for a new image are draws of the prior: they stand for
what the upper half leaves open. [2020-ashman] section 5.3 names the task and gives no protocol. Intensities lie in [0, 1], with uniform noise over a level
so that they have a density. Prints the joint log density of the lower half in nats a pixel, and the RMSE, and draws completions.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyro
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pyro import distributions as dist
from pyro.nn import PyroModule
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.common.data import add_data_option
from pyro_dgp import (
    ELBO,
    RBF,
    GaussianProcess,
    InducingPoints,
    LinearCoregionalization,
    LinearMean,
    MonteCarlo,
    Prediction,
    Projection,
    Variational,
    concatenate_inputs,
    fit,
    module_local_parameters,
    predict,
)
from pyro_dgp.data.reading import load

#: Functions that the pixels are mixtures of, principal components of the upper half, functions of the hidden layer, latent inputs of an image.
FUNCTIONS, COMPONENTS, WIDTH, LATENTS = 16, 20, 8, 2
MODELS = ("one layer", "two layers", "latent inputs")


@dataclass(frozen=True)
class Halves:
    """Images in two halves.

    :ivar upper: ``(N, P)``, and ``lower`` the same, intensities in [0, 1].
    :ivar x: standardised principal components of the upper half, ``(N, D)``.
    """

    upper: Tensor
    lower: Tensor
    x: Tensor


def halves(folder: Path | None) -> tuple[Halves, Halves, int]:
    """Return training and test images, and the number of pixels of a row."""
    if folder is None:
        pixels, levels = load_digits().data, 17
        test = np.random.RandomState(0).permutation(len(pixels)) < len(pixels) // 6
        train_rows, test_rows = np.flatnonzero(~test), np.flatnonzero(test)
    else:
        data = load(folder / "images" / "mnist_t10k.npz")
        assert data.splits is not None
        pixels, levels = data.x, 256
        train_rows, test_rows = np.flatnonzero(data.splits[:, 0] == 0)[:4000], np.flatnonzero(data.splits[:, 0])[:500]
    side = round(pixels.shape[1] ** 0.5)
    values = torch.as_tensor(pixels)
    values = (values + torch.rand(values.shape, generator=torch.Generator().manual_seed(0))) / levels
    middle = side // 2 * side
    upper, lower = values[:, :middle], values[:, middle:]
    centre = upper[train_rows].mean(0)
    _, _, directions = torch.linalg.svd(upper[train_rows] - centre, full_matrices=False)
    x = (upper - centre) @ directions[:COMPONENTS].T
    x = x / x[train_rows].std(0)
    train, held_out = (Halves(upper[rows], lower[rows], x[rows]) for rows in (train_rows, test_rows))
    return train, held_out, side


class Completion(PyroModule):
    """Pixels of the lower half given the upper: one or two layers, with latent inputs or without."""

    def __init__(self, kind: str, x: Tensor, y: Tensor) -> None:
        super().__init__()
        self.kind, inputs = kind, x.shape[-1] + (LATENTS if kind == "latent inputs" else 0)
        if kind != "one layer":
            projection = Projection.fit(x, WIDTH)
            weight = torch.cat([projection.weight, torch.zeros(inputs - x.shape[-1], WIDTH)])
            weight[x.shape[-1] :, : inputs - x.shape[-1]] = torch.eye(inputs - x.shape[-1])
            self.hidden = GaussianProcess(RBF(ard=inputs), mean=LinearMean(inputs, WIDTH), num_outputs=WIDTH)
            self.hidden.mean.weight = weight
        self.top = GaussianProcess(RBF(ard=inputs if kind == "one layer" else WIDTH), num_outputs=FUNCTIONS)
        self.likelihood = LinearCoregionalization.fit(y, FUNCTIONS)
        for kernel in [self.top.kernel] + ([self.hidden.kernel] if kind != "one layer" else []):
            kernel.lengthscale = float(kernel.lengthscale.shape[-1]) ** 0.5

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Pixels ``(N, P)``."""
        if self.kind == "latent inputs":
            with pyro.plate("images", x.shape[-2]):
                z = pyro.sample("z", dist.Normal(x.new_zeros(LATENTS), 1.0).to_event(1))
            x = concatenate_inputs(x, z)
        h = x if self.kind == "one layer" else pyro.sample("h", self.hidden(x))
        return pyro.sample("y", self.likelihood(self.top(h)), obs=y)


class Encoder(nn.Module):
    """Posterior of the latent inputs of an image that is whole; that of one whose lower half is not given is the prior."""

    def __init__(self, inputs: int, pixels: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(inputs + pixels, 100), nn.ReLU(), nn.Linear(100, 2 * LATENTS))

    def forward(self, x: Tensor, y: Tensor | None = None) -> dist.Distribution:
        """Normal ``(N,)``, event ``(LATENTS,)``."""
        if y is None:
            return dist.Normal(x.new_zeros(len(x), LATENTS), 1.0).to_event(1)
        loc, log_scale = self.network(torch.cat([x, y], -1)).chunk(2, -1)
        return dist.Normal(loc, (log_scale - 1).exp()).to_event(1)


def completed(kind: str, train: Halves, test: Halves, steps: int, components: int) -> Prediction:
    """Fit one model and predict the lower halves of the test images."""
    torch.manual_seed(0)
    model = Completion(kind, train.x, train.lower)
    networks = {"z": Encoder(train.x.shape[-1], train.lower.shape[-1])} if kind == "latent inputs" else {}
    guide = Variational(model, InducingPoints(100), MonteCarlo(1), networks=networks)
    guide.initialize(train.x, train.lower)
    with module_local_parameters():
        fit(ELBO(len(train.x))(model, guide), train.x, train.lower, steps=steps, batch_size=256, learning_rate=0.01)
    return predict(guide, test.x, components)


def draw(test: Halves, predictions: dict[str, Prediction], side: int, path: Path, shown: int = 12) -> None:
    """Draw images, their upper halves, the mean of each model, and two draws of the model with latent inputs."""
    generator = torch.Generator().manual_seed(1)
    chosen = torch.randperm(len(test.x), generator=generator)[:shown]
    rows = [("image", test.lower[chosen]), ("given", torch.full_like(test.lower[chosen], torch.nan))]
    rows += [(f"{kind}, mean", prediction.mean[chosen]) for kind, prediction in predictions.items()]
    torch.manual_seed(0)
    rows += [(f"{MODELS[-1]}, draw {number}", predictions[MODELS[-1]].sample()[chosen]) for number in (1, 2)]
    figure = Figure(figsize=(0.95 * shown + 1.6, 0.98 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), shown)
    for (title, lower), line in zip(rows, axes, strict=True):
        for index, panel in enumerate(line):
            image = torch.cat([test.upper[chosen[index]], lower[index].detach()]).reshape(side, side)
            panel.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            panel.axhline(side // 2 - 0.5, color="C3", lw=0.8)
            panel.set(xticks=[], yticks=[])
        line[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=9)
    figure.savefig(path, dpi=90)


def main() -> None:
    """Fit the models, print their scores and draw what they complete."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument(
        "--figure", type=Path, default=Path("results/image_completion.png"), help="figure that is written"
    )
    parser.add_argument("--steps", type=int, default=5000, help="training steps of 256 images")
    parser.add_argument("--components", type=int, default=200, help="components of a prediction")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_default_dtype(torch.float64)
    train, test, side = halves(arguments.data)
    predictions = {}
    for kind in MODELS:
        predictions[kind] = prediction = completed(kind, train, test, arguments.steps, arguments.components)
        density = float(prediction.log_prob(test.lower).mean()) / test.lower.shape[-1]
        error = float((prediction.mean - test.lower).square().mean().sqrt())
        print(f"{kind}: {density:.3f} nats a pixel, RMSE {error:.4f}", flush=True)
    arguments.figure.parent.mkdir(parents=True, exist_ok=True)
    draw(test, predictions, side, arguments.figure)


if __name__ == "__main__":
    main()
