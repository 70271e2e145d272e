"""The parts of a program by name."""

from __future__ import annotations

from typing import Any

import gpytorch
import pyro.contrib.gp.kernels as contrib
import torch
from pyro import distributions as dist
from pyro.nn import PyroSample
from torch import Tensor

import pyro_dgp as dgp
from tests.generated.spec import Spec


def squared_exponential(x: Tensor, z: Tensor) -> Tensor:
    """A covariance function of the user."""
    return (-0.5 * (x.unsqueeze(-2) - z.unsqueeze(-3)).square().sum(-1)).exp()


class Kernels:
    """Builds kernels of a layer.

    :ivar inputs: number of inputs of the layer.
    :ivar ard: that number, where each input has a lengthscale of its own.
    :ivar outputs: number of outputs, where each has parameters of its own.
    """

    def __init__(self, spec: Spec, inputs: int, outputs: int) -> None:
        self.inputs = inputs
        self.ard = inputs if spec.ard else None
        self.outputs = outputs if spec.per_output else None

    def build(self, text: str) -> Any:
        """Make the kernel of an expression."""
        form, _, rest = text.partition("(")
        if rest:
            parts = [self.build(part.strip()) for part in rest.removesuffix(")").split(",")]
            return self.combined(form, parts)
        if form.startswith("additive"):
            kind = dgp.Matern12 if form.endswith("12") else dgp.Matern32
            terms = [dgp.ActiveDims(kind(outputs=self.outputs), [d]) for d in range(self.inputs)]
            terms += [dgp.Constant(self.outputs)] if form.endswith("constant") else []
            return dgp.Sum(*terms) if len(terms) > 1 else terms[0]
        if form == "rbf with white":
            return dgp.RBF(self.inputs, self.outputs) + dgp.White(self.outputs, variance=0.1)
        return self.single(form)

    def combined(self, form: str, parts: list[Any]) -> Any:
        first, *others = parts
        made = {
            "sum": lambda: dgp.Sum(first, *others),
            "product": lambda: dgp.Product(first, *others),
            "scaled": lambda: dgp.Scaled(first, self.outputs, variance=2.0),
            "some inputs": lambda: dgp.Sum(first, dgp.ActiveDims(dgp.RBF(1, self.outputs), [self.inputs - 1])),
            "with white": lambda: dgp.Sum(first, dgp.White(self.outputs, variance=0.1)),
            "with constant": lambda: dgp.Sum(first, dgp.Constant(self.outputs)),
        }
        return made[form]()

    def single(self, name: str) -> Any:
        ard, outputs = self.ard, self.outputs
        if name == "gpytorch":
            return dgp.FromGPyTorch(gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5)))
        if name == "pyro contrib":
            return dgp.FromPyroContrib(contrib.Matern32(self.inputs))
        if name == "function":
            return dgp.FromFunction(squared_exponential)
        if name == "spherical":
            return dgp.Spherical(dgp.Matern52(None, outputs), ard, outputs)
        if name.startswith("arc-cosine"):
            return dgp.ArcCosine(int(name[-1]), ard, outputs)
        kinds = {
            "rbf": dgp.RBF,
            "matern12": dgp.Matern12,
            "matern32": dgp.Matern32,
            "matern52": dgp.Matern52,
            "rational quadratic": dgp.RationalQuadratic,
            "periodic": dgp.Periodic,
            "linear": dgp.Linear,
        }
        return kinds[name](ard, outputs)


def mean_of(name: str, x: Tensor, outputs: int) -> Any:
    """Make a mean for inputs ``(N, D)``."""
    if name == "function":
        return lambda x: torch.sin(x[..., :1])
    made = {
        "zero": lambda: dgp.Zero(),
        "constant": lambda: dgp.ConstantMean(outputs, 0.5),
        "linear": lambda: dgp.LinearMean.fit(x, outputs),
        "projection": lambda: dgp.Projection.fit(x, outputs),
        "network": lambda: torch.nn.Linear(x.shape[-1], outputs),
    }
    return made[name]()


CLASSES = 3


def likelihood_of(spec: Spec) -> tuple[Any, int]:
    """Make a likelihood; with it, the number of functions that it takes."""
    outputs = spec.outputs
    made: dict[str, tuple[Any, int]] = {
        "gaussian": (lambda: dgp.Gaussian(outputs), outputs),
        "student": (dgp.StudentT, 1),
        "heteroscedastic": (lambda: dgp.HeteroscedasticGaussian(outputs), 2 * outputs),
        "two functions": (lambda: dgp.HeteroscedasticGaussian(outputs), outputs),
        "coregionalization": (lambda: dgp.LinearCoregionalization(outputs, min(2, outputs)), min(2, outputs)),
        "missing": (lambda: dgp.MissingOutputs(dgp.Gaussian(outputs)), outputs),
        "probit": (dgp.Bernoulli, 1),
        "logit": (lambda: dgp.Bernoulli("logit"), 1),
        "robust max": (lambda: dgp.RobustMax(CLASSES), CLASSES),
        "softmax": (lambda: dgp.Softmax(CLASSES), CLASSES),
        "ordinal": (lambda: dgp.Ordinal(CLASSES), 1),
        "poisson": (dgp.Poisson, 1),
        "negative binomial": (dgp.NegativeBinomial, 1),
    }
    make, functions = made[spec.likelihood]
    return make(), functions


def family_of(spec: Spec) -> Any:
    """Make a family of processes."""
    name, size = spec.family, spec.size
    if name.startswith("points"):
        kind = name.split()[-1]
        per_output = kind == "outputs"
        return dgp.InducingPoints(size, "full" if per_output else kind, per_output)
    made = {
        "amortised": lambda: dgp.AmortizedInducingPoints(size),
        "one network": lambda: dgp.AmortizedInducingPoints(size, dgp.OneNetwork(), "full"),
        "fourier": lambda: dgp.FourierFeatures(size),
        "spherical": lambda: dgp.SphericalHarmonics(size),
        "activations": lambda: dgp.ActivationFeatures(size),
        "published activations": lambda: dgp.PublishedActivationFeatures(size, "softplus"),
        "orthogonal": lambda: dgp.Orthogonal(dgp.InducingPoints(size), dgp.InducingPoints(2)),
    }
    return made[name]()


def propagation_of(spec: Spec) -> Any:
    """Make a propagation."""
    name = spec.propagation
    if name == "samples":
        return dgp.MonteCarlo(spec.samples)
    if name == "with mean":
        return dgp.WithMean(dgp.MonteCarlo(spec.samples))
    return dgp.MomentMatching() if name == "moments" else dgp.SigmaPoints(name, 1 + spec.samples, max_components=64)


def loss_of(spec: Spec) -> Any:
    """Make a loss."""
    made = {
        "elbo": lambda: dgp.ELBO(spec.rows),
        "predictive": lambda: dgp.PredictiveLogLikelihood(spec.rows),
        "gamma": lambda: dgp.GammaDivergence(spec.rows),
        "ep": lambda: dgp.ApproximateEP(spec.rows),
    }
    return made[spec.loss]()


def put_prior(likelihood: Any, kernel: Any, dtype: torch.dtype) -> None:
    """Give a lengthscale, where the kernel has one, and the noise a prior.

    That of the lengthscale has PyTorch's default dtype, as one of plain numbers has.
    """
    for module, name in ((kernel, "lengthscale"), (likelihood, "variance")):
        value = getattr(module, name, None)
        if isinstance(value, Tensor):
            one = torch.ones_like(value.detach(), dtype=dtype if module is likelihood else None)
            setattr(module, name, PyroSample(dist.LogNormal(0.0 * one, 0.5 * one).to_event(one.dim())))
