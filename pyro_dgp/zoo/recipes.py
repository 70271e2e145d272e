"""What named methods are made of: models, variational families, propagations, losses and samplers, each from the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dgp.kernels import White
from pyro_dgp.likelihoods import (
    Bernoulli,
    LinearCoregionalization,
    NegativeBinomial,
    RobustMax,
    Softmax,
)
from pyro_dgp.losses import ELBO, ApproximateEP, GammaDivergence, PredictiveLogLikelihood
from pyro_dgp.mcmc import EllipticalSlice, GuideMean, WhitenedNUTS, inducing_inputs, whitened
from pyro_dgp.means import ConstantMean, LinearMean
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.models.deep_kernel import DeepKernel, FeatureExtractor
from pyro_dgp.models.priors import with_priors
from pyro_dgp.processes import (
    ActivationFeatures,
    AmortizedInducingPoints,
    BasisFamily,
    FourierFeatures,
    InducingPoints,
    OneNetwork,
    Orthogonal,
    SphericalHarmonics,
)
from pyro_dgp.propagation import MomentMatching, MonteCarlo, SigmaPoints, WithMean
from pyro_dgp.zoo.by_layer import ByLayer
from pyro_dgp.zoo.inference import Fitted
from pyro_dgp.zoo.predictors import GuidePredictor
from pyro_dgp.zoo.settings import Settings

#: Kernels where the settings leave the choice to the method: one, and a sum of a smooth one and a rougher one, each with its own lengthscales.
ONE_KERNEL, TWO_KERNELS = "matern52", "rbf+matern52"
#: Variance of the noise between layers at the start, where a model has it.
NOISE_BETWEEN_LAYERS = 1e-5


class LogRate(ConstantMean):
    """Constant mean of functions whose exponential is the mean of counts: it starts at the logarithm of that of the training targets."""

    def start_at(self, y: Tensor) -> None:
        """Set ``constant``; where all counts are zero, to the logarithm of 1 / N."""
        self.constant = y.to(self.constant).mean().clamp_min(1 / len(y)).log().expand_as(self.constant).clone()


def observed(settings: Settings) -> dict[str, Any]:
    """Return the likelihood of ``settings.task``, and the functions that it takes, as options of a model."""
    if settings.outputs > 1:
        likelihood = LinearCoregionalization(settings.outputs, settings.outputs)
        likelihood.mixing = torch.eye(settings.outputs)  # an output for each function, until it learns how they mix
        return {"likelihood": likelihood, "outputs": settings.outputs}
    if settings.task == "binary":
        return {"likelihood": Bernoulli()}
    if settings.task == "multiclass":
        return {"likelihood": Softmax(settings.classes), "outputs": settings.classes}
    if settings.task == "counts":
        return {"likelihood": NegativeBinomial(), "top_mean": LogRate()}
    return {}


def shallow(x: Tensor, settings: Settings, kernel: str = ONE_KERNEL) -> DeepGP:
    """One GP.

    :param kernel: name of its kernel, where the settings leave that open.
    """
    return DeepGP(x, 1, settings.width, kernel=settings.kernel or kernel, **observed(settings)).to(x)


def deep(x: Tensor, settings: Settings) -> DeepGP:
    """``settings.layers`` GPs."""
    kernel = settings.kernel or ONE_KERNEL
    return DeepGP(x, settings.layers, settings.width, kernel=kernel, **observed(settings)).to(x)


def deep_learned(x: Tensor, settings: Settings, kernel: str = ONE_KERNEL) -> DeepGP:
    """``settings.layers`` GPs; hidden layers have linear means that are learned, and a kernel for each output.

    :param kernel: name of the kernel of every layer, where the settings leave that open.
    """
    options = observed(settings) | {"kernel": settings.kernel or kernel}
    return DeepGP(x, settings.layers, settings.width, mean=LinearMean.fit, per_output=True, **options).to(x)


def deep_for_powers(x: Tensor, settings: Settings) -> DeepGP:
    """Deep GP with learned means, and a robust-max likelihood in the place of a softmax, which has no powers."""
    model = deep_learned(x, settings)
    if settings.task == "multiclass":
        model.likelihood = RobustMax(settings.classes)
    return model


def deep_noisy(x: Tensor, settings: Settings) -> DeepGP:
    """Deep GP with noise between its layers: ``k(x, z) + sigma^2 delta`` in the hidden ones (Rudner and Sejdinovic 2018, section 2)."""
    model = deep_learned(x, settings)
    for layer in model.hidden:
        layer.kernel = layer.kernel + White(settings.width, variance=NOISE_BETWEEN_LAYERS)
    return model.to(x)


@dataclass(frozen=True)
class InForm:
    """A model whose kernel has the form that its features need.

    :ivar form: from the name of a kernel to that of its form, such as :func:`~pyro_dgp.kernels.named.additive_form`.
    """

    build: Callable[[Tensor, Settings], DeepGP]
    form: Callable[[str], str]

    def __call__(self, x: Tensor, settings: Settings) -> DeepGP:
        """Return the model."""
        return self.build(x, replace(settings, kernel=self.form(settings.kernel or ONE_KERNEL)))

    def check(self, settings: Settings) -> None:
        """Raise ``ValueError`` for a kernel without that form."""
        self.form(settings.kernel or ONE_KERNEL)


def deep_with_priors(x: Tensor, settings: Settings) -> DeepGP:
    """``settings.layers`` GPs with priors on every hyperparameter; the hidden means are fixed."""
    return with_priors(deep(x, settings))


def shallow_with_priors(x: Tensor, settings: Settings) -> DeepGP:
    """One GP with priors on every hyperparameter."""
    return with_priors(shallow(x, settings))


def nuts(model: Callable[..., Any], x: Tensor, y: Tensor, settings: Settings) -> WhitenedNUTS:
    """The No-U-Turn sampler of the whitened model, trees of at most 31 steps."""
    return WhitenedNUTS(model, max_tree_depth=5, target_accept_prob=0.9)


def short_nuts(model: nn.Module, x: Tensor, y: Tensor, settings: Settings) -> WhitenedNUTS:
    """The No-U-Turn sampler of a few hyperparameters, trees of at most 7 steps."""
    return WhitenedNUTS(model, max_tree_depth=3, target_accept_prob=0.8)


def sparse_nuts(model: nn.Module, x: Tensor, y: Tensor, settings: Settings) -> WhitenedNUTS:
    """NUTS on the sparse prior, with inducing inputs by k-means in every layer."""
    inputs = inducing_inputs(model, x, y, num_inducing=min(settings.inducing, len(x)))
    return WhitenedNUTS(whitened(model, inputs), max_tree_depth=5, target_accept_prob=0.9)


def slices(model: Callable[..., Any], x: Tensor, y: Tensor, settings: Settings) -> EllipticalSlice:
    """Elliptical slices, and slices of hyperparameters."""
    return EllipticalSlice(model)


def at_learner(learned: Fitted) -> GuideMean:
    """Start chains at the means of the functions that the learner of the hyperparameters has found."""
    predictor = learned.predict
    if not isinstance(predictor, GuidePredictor):
        raise TypeError(f"chains start at a guide, and the learner gave a {type(predictor).__name__}")
    return GuideMean(predictor.guide)


def all_rows(settings: Settings) -> None:
    """No limit."""


@dataclass(frozen=True)
class WithFeatures:
    """A model on the features of a network: ``settings.width`` of them."""

    build: Callable[[Tensor, Settings], DeepGP]

    def __call__(self, x: Tensor, settings: Settings) -> DeepKernel:
        """The network, and the model built on what it makes of ``x`` untrained."""
        extractor = FeatureExtractor(x, settings.width)
        with torch.no_grad():
            features = extractor(x)
        return DeepKernel(extractor, self.build(features, settings))


def inducing_points(settings: Settings) -> InducingPoints:
    """M whitened inducing points with full covariance."""
    return InducingPoints(settings.inducing)


def points_of_outputs(settings: Settings) -> InducingPoints:
    """M whitened inducing points with full covariance for each output of a layer."""
    return InducingPoints(settings.inducing, per_output=True)


def sampled_points(settings: Settings) -> InducingPoints:
    """M inducing points whose values are a point, to be sampled."""
    return InducingPoints(settings.inducing, covariance="delta")


def mean_field(settings: Settings) -> InducingPoints:
    """M whitened inducing points with diagonal covariance, v standard normal at the start in every layer: sigma points that start
    apart overfit less than those that start merged.
    """
    return InducingPoints(settings.inducing, covariance="diagonal", hidden_scale=1.0)


def mean_field_of_outputs(settings: Settings) -> InducingPoints:
    """Inducing points for each output of a layer, with diagonal covariances of q(v)."""
    return replace(mean_field(settings), per_output=True)


def fourier(settings: Settings) -> FourierFeatures:
    """Fourier features, of ``settings.frequencies`` of each input."""
    return FourierFeatures(settings.frequencies)


def harmonics(settings: Settings) -> SphericalHarmonics:
    """Whole levels of spherical harmonics, M at most."""
    return SphericalHarmonics(settings.inducing)


def units(settings: Settings) -> ActivationFeatures:
    """M units of a network with rectified linear activations."""
    return ActivationFeatures(settings.inducing, "relu")


@dataclass(frozen=True)
class WithOrthogonal:
    """A first family, and points for what it leaves of the prior: ``settings.orthogonal`` of them.

    :ivar covariance: form of the covariance of their q(v): ``prior`` has them serve the mean alone.
    """

    first: Callable[[Settings], BasisFamily]
    covariance: str = "full"

    def __call__(self, settings: Settings) -> Orthogonal:
        """The family. Where the first one is of points for each output, the second is too."""
        first = self.first(settings)
        of_outputs = isinstance(first, InducingPoints) and first.per_output
        points = InducingPoints(settings.orthogonal_points, self.covariance, per_output=of_outputs)
        return Orthogonal(first, points)


def row_points(settings: Settings) -> ByLayer:
    """Amortised inducing points: M in the first layer, half of that in the others ([AVDGP] C.1)."""
    above = AmortizedInducingPoints(max(1, settings.row_inducing // 2))
    return ByLayer(AmortizedInducingPoints(settings.row_inducing), above)


def full_row_points(settings: Settings) -> AmortizedInducingPoints:
    """Amortised inducing points for one layer, with full covariance."""
    return AmortizedInducingPoints(settings.row_inducing, covariance="full")


def one_network(settings: Settings) -> AmortizedInducingPoints:
    """One layer, one network for points, means and full covariance."""
    return AmortizedInducingPoints(settings.row_inducing, OneNetwork(), "full")


def one_sample(settings: Settings) -> MonteCarlo:
    """One sample in training, whatever S is: each sample costs as much as a row ([AVDGP] Appendix B)."""
    return MonteCarlo(1)


def monte_carlo_with_mean(settings: Settings) -> WithMean:
    """S samples, and the mean for inference functions to look at."""
    return WithMean(monte_carlo(settings))


def sigma_points_with_mean(settings: Settings) -> WithMean:
    """S sigma points of rule QR3, and the mean for inference functions to look at."""
    return WithMean(sigma_points(settings))


def monte_carlo(settings: Settings) -> MonteCarlo:
    """S samples."""
    return MonteCarlo(settings.num_samples)


def sigma_points(settings: Settings) -> SigmaPoints:
    """S sigma points of rule QR3."""
    return SigmaPoints("qr3", settings.num_samples)


@dataclass(frozen=True)
class Grid:
    """A grid of sigma points: S of them in each dimension, or as many as ``largest`` components in all allow."""

    rule: str
    largest: int = 256

    def __call__(self, settings: Settings) -> SigmaPoints:
        """The propagation."""
        if settings.layers > 2:
            raise ValueError(
                f"rule {self.rule!r} is a grid over one hidden layer and layers is {settings.layers}: take 2, or method dspp"
            )
        points = self.points(settings)
        if points < min(2, settings.num_samples):
            raise ValueError(
                f"rule {self.rule!r} with 2 points in each of {settings.width} dimensions has more than {self.largest} "
                "components: lower the width, or take method dspp"
            )
        return SigmaPoints(self.rule, points, self.largest)

    def points(self, settings: Settings) -> int:
        """Points in each dimension."""
        if settings.layers == 1:
            return settings.num_samples
        return max(s for s in range(1, settings.num_samples + 1) if s**settings.width <= self.largest)

    def remarks(self, settings: Settings) -> list[str]:
        """Tell the number of sigma points S, where it differs from the samples that are asked for."""
        points = self.points(settings)
        if points == settings.num_samples:
            return []
        return [
            f"{points} points in each of {settings.width} dimensions, {points**settings.width} components, not {settings.num_samples}"
        ]


def elbo(settings: Settings, rows: int) -> ELBO:
    """The evidence lower bound."""
    return ELBO(rows)


def matched(settings: Settings) -> MomentMatching:
    """Normals with matched moments, without draws."""
    return MomentMatching()


def approximate_ep(settings: Settings, rows: int) -> ApproximateEP:
    """The energy of approximate expectation propagation with ``settings.alpha``."""
    return ApproximateEP(rows, settings.alpha)


def predictive(settings: Settings, rows: int) -> PredictiveLogLikelihood:
    """The predictive log-likelihood with ``settings.beta``."""
    return PredictiveLogLikelihood(rows) if settings.beta is None else PredictiveLogLikelihood(rows, settings.beta)


def gamma_divergence(settings: Settings, rows: int) -> GammaDivergence:
    """The gamma divergence, gamma 1.03."""
    return GammaDivergence(rows)
