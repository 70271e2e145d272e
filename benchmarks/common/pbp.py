"""Probabilistic back-propagation: a Bayesian network with one hidden layer, fitted one row after another.

Hernandez-Lobato and Adams 2015, Probabilistic Backpropagation for Scalable Learning of Bayesian Neural Networks; the baseline of [2020-ashman].
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.common.baselines import mixture_of_normals
from pyro_dgp import Fitted, Inference, Prediction, Settings
from pyro_dgp.internal.progress import Progress

#: Shape and rate of the gamma priors on the noise's precision and on that of the weights, for targets of unit variance.
PRIOR = (6.0, 6.0)


def linear_moments(mean: Tensor, variance: Tensor, weights: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of ``W z / sqrt(K)`` for independent weights and inputs (section 3.1).

    :param mean: of the inputs ``(*, K)``, with their ``variance``.
    :param weights: means of W ``(J, K)``, with their variances ``spread``.
    """
    count = mean.shape[-1]
    varied = variance @ (weights.square() + spread).mT + mean.square() @ spread.mT
    return mean @ weights.mT / math.sqrt(count), varied / count


def rectified_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of ``max(0, a)`` for normal a."""
    sd = variance.sqrt()
    ratio = mean / sd
    above, density = torch.special.ndtr(ratio), torch.exp(-0.5 * ratio.square()) / math.sqrt(2 * math.pi)
    first = mean * above + sd * density
    second = (mean.square() + variance) * above + mean * sd * density
    return first, (second - first.square()).clamp_min(1e-12)


def gamma_update(log_z: Callable[[float], float], shape: float, rate: float) -> tuple[float, float]:
    """Return shape and rate of the gamma distribution that has the first two moments of a gamma times a factor.

    :param log_z: logarithm of the factor's mean, by the shape that takes the place of ``shape``.
    """
    zero, one, two = (log_z(shape + step) for step in range(3))
    mean = math.exp(one - zero) * shape / rate
    ratio = math.exp(two - one) * (shape + 1) / rate  # E[g^2] / E[g]
    return mean / (ratio - mean), 1 / (ratio - mean)


def normal_log_z(residual: float, variance: float, rate: float) -> Callable[[float], float]:
    """Return log N(residual; 0, variance + rate / (shape - 1)), a Student-t with a normal of its variance in its place, by the shape."""

    def log_z(shape: float) -> float:
        total = variance + rate / (shape - 1)
        return -0.5 * (math.log(2 * math.pi * total) + residual**2 / total)

    return log_z


@dataclass
class Layer:
    """Weights of a layer: means and variances ``(J, K)``, bias last, and the normal factors that stand for their priors.

    :ivar of_prior: precision, precision times mean, and what each adds to shape and rate of the weights' precision.
    """

    mean: Tensor
    variance: Tensor
    of_prior: list[list[float]]

    @classmethod
    def start(cls, outputs: int, inputs: int, like: Tensor) -> Layer:
        """Weights with the variance of their prior, and means that break the symmetry of the units."""
        variance = PRIOR[1] / (PRIOR[0] - 1)
        mean = torch.randn(outputs, inputs + 1).to(like) / math.sqrt(inputs + 1)
        factors = [[1 / variance, 0.0, 0.0, 0.0] for _ in range(mean.numel())]
        return cls(mean, torch.full_like(mean, variance), factors)


class Network:
    """A network with one hidden layer of rectifiers, its weights normal, precisions of weights and noise gamma."""

    def __init__(self, inputs: int, hidden: int, like: Tensor) -> None:
        self.layers = [Layer.start(hidden, inputs, like), Layer.start(1, hidden, like)]
        self.noise, self.precision = PRIOR, PRIOR

    @property
    def noise_variance(self) -> float:
        """Mean of the noise variance."""
        shape, rate = self.noise
        return rate / (shape - 1)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance ``(N,)`` of the function at inputs ``(N, D)``."""
        mean, variance = x, torch.zeros_like(x)
        for number, layer in enumerate(self.layers):
            one = mean.new_ones(len(mean), 1)
            mean, variance = torch.cat([mean, one], -1), torch.cat([variance, 0 * one], -1)
            mean, variance = linear_moments(mean, variance, layer.mean, layer.variance)
            if number + 1 < len(self.layers):
                mean, variance = rectified_moments(mean, variance)
        return mean.squeeze(-1), variance.squeeze(-1)

    def take_in(self, x: Tensor, y: float) -> None:
        """Take in one row ``(D,)`` by assumed-density filtering: Eqs. 6 and 7 for the weights, 8 and 9 for the noise."""
        free = [part.requires_grad_() for layer in self.layers for part in (layer.mean, layer.variance)]
        mean, variance = self.moments(x[None])
        total = variance + self.noise_variance
        log_z = -0.5 * (total.log() + (y - mean).square() / total).sum()
        slopes = torch.autograd.grad(log_z, free)
        residual, spread = y - float(mean.detach()), float(variance.detach())
        with torch.no_grad():
            for layer, by_mean, by_variance in zip(self.layers, slopes[::2], slopes[1::2], strict=True):
                old_mean, old = layer.mean.detach(), layer.variance.detach()
                new = old - old.square() * (by_mean.square() - 2 * by_variance)
                kept = (new > 0) & new.isfinite()
                layer.mean = torch.where(kept, old_mean + old * by_mean, old_mean)
                layer.variance = torch.where(kept, new, old)
        shape, rate = gamma_update(normal_log_z(residual, spread, self.noise[1]), *self.noise)
        if shape > 1 and rate > 0:
            self.noise = shape, rate

    def refine_priors(self) -> None:
        """Refine the factor of each weight's prior by expectation propagation, one after another."""
        for layer in self.layers:
            means, variances = layer.mean.flatten().tolist(), layer.variance.flatten().tolist()
            for index, factor in enumerate(layer.of_prior):
                means[index], variances[index] = self._refined(means[index], variances[index], factor)
            layer.mean = layer.mean.new_tensor(means).reshape(layer.mean.shape)
            layer.variance = layer.mean.new_tensor(variances).reshape(layer.mean.shape)

    def _refined(self, mean: float, variance: float, factor: list[float]) -> tuple[float, float]:
        """Return mean and variance of a weight after its factor was refined, in place; as they are where the cavity is none."""
        precision, shape, rate = 1 / variance - factor[0], self.precision[0] - factor[2], self.precision[1] - factor[3]
        if precision <= 0 or shape <= 1 or rate <= 0:
            return mean, variance
        without = 1 / precision
        centre = without * (mean / variance - factor[1])
        total = without + rate / (shape - 1)
        new_mean = centre - without * centre / total
        new = without - without**2 / total
        new_shape, new_rate = gamma_update(normal_log_z(centre, without, rate), shape, rate)
        if not (new > 0 and new_shape > 1 and new_rate > 0):
            return mean, variance
        factor[:] = 1 / new - precision, new_mean / new - centre * precision, new_shape - shape, new_rate - rate
        self.precision = new_shape, new_rate
        return new_mean, new


@dataclass(frozen=True)
class ProbabilisticBackpropagation(Inference):
    """A Bayesian network by probabilistic back-propagation: ``pbp``.

    :param hidden: width of the hidden layer.
    :param passes: passes over the rows, one row at a time; the priors' factors are refined after each.
    """

    hidden: int = 50
    passes: int = 40

    def run(self, model: nn.Module, x: Tensor, y: Tensor, *, settings: Settings, progress: Progress) -> Fitted:
        """See :class:`Inference`."""
        if settings.task != "regression" or y.dim() != 1:
            raise ValueError("probabilistic back-propagation is of one real number a row: leave it out for others")
        start, targets = time.perf_counter(), y.tolist()
        torch.manual_seed(settings.seed)
        network = Network(x.shape[-1], self.hidden, x)
        for number in range(self.passes):
            for row in torch.randperm(len(x)).tolist():
                network.take_in(x[row], targets[row])
            network.refine_priors()
            progress(number + 1, self.passes, {"loss": network.noise_variance})

        @torch.no_grad()
        def predict(new: Tensor) -> Prediction:
            mean, variance = network.moments(new)
            return mixture_of_normals(mean[None], (variance + network.noise_variance).sqrt()[None])

        return Fitted(predict, len(x), self.passes * len(x), seconds=time.perf_counter() - start)
