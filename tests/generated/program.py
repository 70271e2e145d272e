"""A program: a model of the choices, fitted in the way of the choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.infer import MCMC
from pyro.nn import PyroModule
from torch import Tensor

import pyro_dgp as dgp
from tests.generated.data import Data
from tests.generated.parts import (
    Kernels,
    family_of,
    likelihood_of,
    loss_of,
    mean_of,
    propagation_of,
    put_prior,
)
from tests.generated.spec import LAYER_MEANS, Spec

STEPS = 5


class Program(PyroModule):
    """Layers, a top layer and a likelihood, in the units of the data if there is a standardiser."""

    def __init__(self, spec: Spec, data: Data) -> None:
        super().__init__()
        self.spec = spec
        self.units = units_of(spec, data)
        x = data.x.reshape(-1, spec.inputs).to(torch.get_default_dtype())
        x = x if self.units is None else self.units.inputs(x)
        self.hidden = PyroModule[torch.nn.ModuleList]([])
        for text in spec.kernels[:-1]:
            name = spec.mean if spec.mean in LAYER_MEANS else "projection"
            kernel = Kernels(spec, x.shape[-1], spec.width).build(text)
            self.hidden.append(dgp.GaussianProcess(kernel, mean_of(name, x, spec.width), spec.width))
            x = torch.cat(
                [torch.randn(len(x), spec.width), x] if spec.has_skip else [torch.randn(len(x), spec.width)], -1
            )
        likelihood, functions = likelihood_of(spec)
        names = ("top", "noise") if spec.likelihood == "two functions" else ("top",)
        for name in names:
            kernel = Kernels(spec, x.shape[-1], functions).build(spec.kernels[-1])
            setattr(self, name, dgp.GaussianProcess(kernel, mean_of(spec.mean, x, functions), functions))
        if spec.has_prior:
            put_prior(likelihood, self.top.kernel, data.x.dtype)
        self.likelihood = likelihood if self.units is None else self.units.likelihood(likelihood)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        h = x if self.units is None else self.units.inputs(x)
        for number, layer in enumerate(self.hidden, 1):
            below = h
            h = pyro.sample(f"h{number}", layer(below))
            h = dgp.concatenate_inputs(h, below) if self.spec.has_skip else h
        priors = [self.top(h), self.noise(h)] if self.spec.likelihood == "two functions" else [self.top(h)]
        if self.spec.has_two_sites and len(priors) == 1:
            f = pyro.sample("f", priors[0])
            return pyro.sample("y", self.likelihood.given(f), obs=y)
        return pyro.sample("y", self.likelihood(*priors), obs=y)


def units_of(spec: Spec, data: Data) -> Any:
    """Make the standardiser of a program, if it has one."""
    if not spec.is_standardized:
        return None
    lead = len(spec.batch)
    y = data.y.flatten(0, lead) if spec.is_real else None
    return dgp.Standardizer.fit(data.x.flatten(0, lead), y)


@dataclass
class Fit:
    """A fitted program.

    :ivar posterior: what ``predict`` takes.
    :ivar modules: hold all that was trained.
    :ivar objective: the loss as a module, if a guide was trained by one.
    """

    model: Program
    posterior: Any
    modules: list[Any]
    losses: list[float]
    objective: Any = None


def fitted(spec: Spec, data: Data) -> Fit:
    """Make and fit a program; the seed of the program makes it the same again."""
    torch.manual_seed(spec.seed)
    model = Program(spec, data).to(getattr(torch, spec.dtype))
    if spec.way in ("slices", "nuts", "sparse nuts"):
        return by_chain(spec, data, model)
    if spec.way == "exact":
        result = dgp.fit(dgp.MarginalLikelihood(model), data.x, data.y, steps=STEPS)
        return Fit(model, dgp.PosteriorDraws(model, {}, (data.x, data.y)), [model], result.losses)
    guide = dgp.Variational(model, family_of(spec), propagation_of(spec))
    guide.initialize(data.x, data.y)
    if spec.way == "collapsed":
        result = dgp.fit_collapsed(guide, (data.x, data.y), steps=STEPS)
        return Fit(model, guide, [guide], result.losses)
    if spec.way == "sghmc":
        sampler = dgp.StochasticGradientHMC(burn_in=5, thin=1, window=2)
        draws = sampler.run(guide, data.x, data.y, num_samples=3, batch_size=spec.batch_size)
        return Fit(model, draws, [guide], [])
    objective = loss_of(spec)(guide.model, guide)
    result = dgp.fit(objective, data.x, data.y, steps=STEPS, batch_size=spec.batch_size)
    return Fit(model, guide, [guide], result.losses, objective)


def by_chain(spec: Spec, data: Data, model: Program) -> Fit:
    """Draw three values from the posterior by a chain."""
    sampled: Any = model
    if spec.way == "sparse nuts":
        sampled = dgp.whitened(model, dgp.inducing_inputs(model, data.x, data.y, num_inducing=spec.size))
    nuts = spec.way != "slices"
    kernel = dgp.WhitenedNUTS(sampled, max_tree_depth=2) if nuts else dgp.EllipticalSlice(sampled)
    chain = MCMC(kernel, num_samples=3, warmup_steps=2, disable_progbar=True)
    chain.run(data.x, data.y)
    draws = chain.get_samples()
    for name, value in draws.items():
        assert bool(torch.isfinite(value).all()), f"draws of {name} are not finite"
    return Fit(model, dgp.PosteriorDraws(sampled, draws, (data.x, data.y)), [], [])
