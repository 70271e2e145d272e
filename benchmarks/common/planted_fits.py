"""Small fits with one pitfall each, made on purpose, and sound ones, by seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro.nn import PyroSample
from torch import Tensor

from pyro_dgp import (
    ELBO,
    AmortizedInducingPoints,
    DeepGP,
    EllipticalSlice,
    Gaussian,
    InducingPoints,
    MonteCarlo,
    PredictiveLogLikelihood,
    SigmaPoints,
    Standardizer,
    Variational,
    WhitenedNUTS,
    Zero,
    fit,
    run_chains,
    with_priors,
)

STEPS = 300
RATE = 0.05
KERNELS = ("matern52", "rbf", "matern32")


class Case(NamedTuple):
    """A fit, and the rows that it is diagnosed at."""

    fit: Any
    x: Tensor
    y: Tensor


def rows(seed: int, count: int, columns: int = 1, *, noise: float = 0.3, reach: float = 2.0) -> tuple[Tensor, Tensor]:
    """Rows of a smooth function or of a step, by the parity of the seed, with noise; the targets are standardised."""
    generator = torch.Generator().manual_seed(seed)
    x = reach * (2 * torch.rand(count, columns, generator=generator) - 1)
    y = truth(seed, x) + noise * torch.randn(count, generator=generator)
    return x, y / y.std()


def truth(seed: int, x: Tensor) -> Tensor:
    """The function of :func:`rows`: of all inputs, the first most of all."""
    first = torch.sin(3 * x[:, 0]) if seed % 2 else torch.tanh(6 * x[:, 0])
    return first + 0.4 * x[:, 1:].sum(-1)


def trained(
    model: Any,
    data: tuple[Tensor, Tensor],
    family: Any = None,
    *,
    loss: Any = ELBO,
    propagation: Any = None,
    steps: int = STEPS,
    before: Callable[[Variational], Any] | None = None,
) -> Variational:
    """Initialise a guide, change it and train it."""
    x, y = data
    family = InducingPoints(12) if family is None else family
    guide = Variational(model, family, propagation or MonteCarlo(5))
    guide.initialize(x, y)
    if before is not None:
        before(guide)
    fit(loss(len(x))(guide.model, guide), x, y, steps=steps, learning_rate=RATE)
    return guide


def flat_hidden_layers(seed: int) -> Case:
    """Hidden layers with zero mean and little variance, which start at zero and stay there."""
    data = rows(seed, 80, 1 + seed % 2)
    x = data[0]
    model = DeepGP(x, 2 + seed % 3 % 2, width=1 + seed % 2, mean=lambda inputs, width: Zero(), kernel=KERNELS[seed % 3])
    for layer in model.hidden:
        layer.kernel.variance = 1e-5 * 10 ** (seed % 2)
        layer.kernel.requires_grad_(False)
    return Case(trained(model, data, steps=200), *data)


def collapsed_noise(seed: int) -> Case:
    """Noise that is fixed at next to nothing, for a fit that can run through every target, or a floor above the noise of the data."""
    if seed % 2:
        x, y = rows(seed, 50)
        model = DeepGP(x, 1, kernel=KERNELS[seed % 3])
        model.likelihood = Gaussian(variance=3e-4)
        model.likelihood.requires_grad_(False)
        model.top.kernel.lengthscale = torch.tensor([0.05])
        return Case(trained(model, (x, y), InducingPoints(50)), x, y)
    x, y = rows(seed, 100, noise=0.02)
    model = DeepGP(x, 1, kernel=KERNELS[seed % 3], likelihood=Gaussian(variance=0.05, floor=0.04))
    return Case(trained(model, (x, y), InducingPoints(20), steps=2 * STEPS), x, y)


def exploding_predictive_losses(seed: int) -> Case:
    """A predictive loss without weight on the KL, few rows; judged at held-out rows for every other seed."""
    columns, layers = 1 + seed % 4, 1 + seed // 2 % 2
    x, y = rows(seed, 120, columns)
    family = InducingPoints(15, "diagonal", hidden_scale=1.0)
    guide = trained(
        DeepGP(x[:60], layers, width=2),
        (x[:60], y[:60]),
        family,
        loss=lambda count: PredictiveLogLikelihood(count, 0.0),
        propagation=SigmaPoints("qr3", 6),
        steps=400,
    )
    return Case(guide, x[60:], y[60:]) if seed % 2 else Case(guide, x[:60], y[:60])


def divergences(seed: int) -> Case:
    """NUTS with a step that is far too long for targets with next to no noise, and no warm-up that would shorten it."""
    x, y = rows(seed, 20, noise=0.02)
    model = with_priors(DeepGP(x, 1 + seed % 2, width=1))
    model.likelihood = Gaussian(variance=1e-3)
    kernel = WhitenedNUTS(model, max_tree_depth=3, step_size=0.3 + 0.1 * (seed % 3))
    return Case(_chains(kernel, x, y, seed, warmup=0), x, y)


def mirror_images(seed: int) -> Case:
    """Chains of a hidden function with zero mean, whose mirror image is as likely."""
    x, y = rows(seed, 15, noise=0.05, reach=1.0)
    model = DeepGP(x, 2, width=1, mean=lambda inputs, width: Zero(), kernel="rbf")
    model.likelihood = Gaussian(variance=0.01)
    kernel = WhitenedNUTS(model.requires_grad_(False), max_tree_depth=3)
    return Case(_chains(kernel, x, y, seed, chains=4, warmup=20, draws=30), x, y)


def float32_long_ranges(seed: int) -> Case:
    """Inputs of which single precision keeps few digits."""
    x, y = (values.float() for values in rows(seed, 80))
    far = x + 10.0 ** (5 + seed % 3) if seed % 2 else 3000.0 * x + 2e7
    model = DeepGP(far, 1, standardizer=Standardizer.fit(far) if seed % 2 else None)
    return Case(trained(model.float(), (far, y), steps=50), far, y)


def amortised_extrapolation(seed: int) -> Case:
    """Inference functions of a wave that are used at rows on both sides of those that they saw."""
    wave = 2 * seed + 1
    x, y = rows(wave, 100, reach=1.0 + seed % 2)
    guide = trained(DeepGP(x, 1 + seed % 3 % 2, width=1, kernel=KERNELS[seed % 3]), (x, y), AmortizedInducingPoints(4))
    return Case(guide, 3 * x, truth(wave, 3 * x) / truth(wave, x).std())


def unscaled_targets(seed: int) -> Case:
    """Targets in units of their own."""
    x, y = rows(seed, 80)
    shift, scale = ((100.0, 20.0), (0.0, 0.01), (1e4, 1.0), (-40.0, 5.0))[seed % 4]
    return Case(trained(DeepGP(x, 1 + seed % 2, width=1), (x, shift + scale * y)), x, shift + scale * y)


def coinciding_points(seed: int) -> Case:
    """Fixed inducing points in pairs, or half of them at one place."""
    data = rows(seed, 80, 1 + seed % 2)

    def coincide(guide: Variational) -> None:
        for process in guide.processes.children():
            points = process.basis.inducing_points.data
            half = len(points) // 2
            points[half:] = points[:half] if seed % 2 else points[half]
            process.basis.requires_grad_(False)

    return Case(trained(DeepGP(data[0], 1 + seed % 2, width=1), data, before=coincide), *data)


def svgp(seed: int) -> Case:
    """One layer by the ELBO, with one to three inputs."""
    data = rows(seed, 100 + 20 * (seed % 4), 1 + seed % 3)
    return Case(trained(DeepGP(data[0], 1, kernel=KERNELS[seed % 3]), data), *data)


def dsvi(seed: int) -> Case:
    """Two or three layers by the ELBO."""
    data = rows(seed, 120, 1 + seed % 2)
    model = DeepGP(data[0], 2 + seed % 5 // 4, width=1 + seed % 2, kernel=KERNELS[seed % 3])
    return Case(trained(model, data, steps=400), *data)


def dspp(seed: int) -> Case:
    """Sigma points by a predictive loss with all of its KL."""
    data = rows(seed, 200)
    family = InducingPoints(10, "diagonal", hidden_scale=1.0)
    return Case(
        trained(
            DeepGP(data[0], 2, width=1), data, family, loss=PredictiveLogLikelihood, propagation=SigmaPoints("qr3", 5)
        ),
        *data,
    )


def amortised(seed: int) -> Case:
    """An amortised guide, judged at other rows from where it was trained."""
    x, y = rows(seed, 300)
    guide = trained(DeepGP(x[:200], 1 + seed % 2, width=1), (x[:200], y[:200]), AmortizedInducingPoints(4))
    return Case(guide, x[200:], y[200:])


def single_precision(seed: int) -> Case:
    """One layer in single precision."""
    x, y = (values.float() for values in rows(seed, 100))
    return Case(trained(DeepGP(x, 1).float(), (x, y)), x, y)


def in_units(seed: int) -> Case:
    """Two layers that carry the units of their data."""
    x, y = rows(seed, 120)
    x, y = 2000 + 10 * x, 1e5 + 300 * y
    model = DeepGP(x, 1 + seed % 2, width=1, standardizer=Standardizer.fit(x, y))
    return Case(trained(model, (x, y)), x, y)


def nuts(seed: int) -> Case:
    """One layer with priors, by NUTS."""
    x, y = rows(seed, 20)
    kernel = WhitenedNUTS(with_priors(DeepGP(x, 1)), max_tree_depth=4)
    return Case(_chains(kernel, x, y, seed, warmup=60), x, y)


def ess(seed: int) -> Case:
    """One or two layers with fixed hyperparameters, by elliptical slices."""
    x, y = rows(seed, 15, noise=1.0)
    model = DeepGP(x, 1 + seed % 2, width=1)
    model.likelihood = Gaussian(variance=0.7)
    if seed % 2 == 0:  # what is left to sample of one layer
        model.likelihood.variance = PyroSample(torch.distributions.LogNormal(-0.5, 0.5))
    return Case(_chains(EllipticalSlice(model.requires_grad_(False)), x, y, seed, warmup=40), x, y)


def _chains(
    kernel: Any, x: Tensor, y: Tensor, seed: int, *, chains: int = 2, warmup: int = 30, draws: int = 100
) -> Any:
    return run_chains(kernel, (x, y), num_samples=draws, warmup_steps=warmup, num_chains=chains, seed=seed, processes=1)


#: Pitfalls with what makes them; their names are those of the pages, with dashes.
PLANTED = (
    flat_hidden_layers,
    collapsed_noise,
    exploding_predictive_losses,
    divergences,
    mirror_images,
    float32_long_ranges,
    amortised_extrapolation,
    unscaled_targets,
    coinciding_points,
)
SOUND = (svgp, dsvi, dspp, amortised, single_precision, in_units, nuts, ess)
