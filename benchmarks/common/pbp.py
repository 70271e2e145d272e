"""Probabilistic back-propagation: a Bayesian network with one hidden layer, fitted one row after another.

Hernandez-Lobato and Adams 2015, Probabilistic Backpropagation for Scalable Learning of Bayesian Neural Networks; the baseline of [2020-ashman].
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr
from torch import Tensor, nn

from benchmarks.common.baselines import mixture_of_normals
from pyro_dgp import Fitted, Inference, Prediction, Settings
from pyro_dgp.internal.progress import Progress

Array = npt.NDArray[np.float64]
#: Means and variances.
Moments = tuple[Array, Array]

#: Shape and rate of the gamma priors on the noise's precision and on that of the weights, for targets of unit variance.
PRIOR = (6.0, 6.0)


def linear_moments(mean: Array, variance: Array, weights: Array, spread: Array) -> tuple[Array, Array]:
    """Return mean and variance of ``W z / sqrt(K)`` for independent weights and inputs (section 3.1).

    :param mean: of the inputs ``(*, K)``, with their ``variance``.
    :param weights: means of W ``(J, K)``, with their variances ``spread``.
    """
    count = mean.shape[-1]
    varied = variance @ (weights**2 + spread).T + mean**2 @ spread.T
    return mean @ weights.T / math.sqrt(count), varied / count


def rectified_moments(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return mean and variance of ``max(0, a)`` for normal a."""
    sd = np.sqrt(variance)
    ratio = mean / sd
    above, density = ndtr(ratio), _density(ratio)
    first = mean * above + sd * density
    second = (mean**2 + variance) * above + mean * sd * density
    return first, np.maximum(second - first**2, 1e-12)


def _density(ratio: Array) -> Array:
    """The standard normal density."""
    return np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)


def linear_slopes(inputs: Moments, weights: Array, spread: Array, slopes: Moments) -> tuple[Moments, Moments]:
    """Return slopes by means and variances of the weights, and by those of the inputs ``(K,)``, of a scalar with ``slopes`` by :func:`linear_moments`."""
    (mean, variance), (by_mean, by_variance) = inputs, slopes
    by_mean, by_variance = by_mean / math.sqrt(len(mean)), by_variance / len(mean)
    of_weights = np.outer(by_mean, mean) + 2 * weights * np.outer(by_variance, variance)
    of_mean = by_mean @ weights + 2 * mean * (by_variance @ spread)
    of_variance = by_variance @ (weights**2 + spread)
    return (of_weights, np.outer(by_variance, variance + mean**2)), (of_mean, of_variance)


def rectified_slopes(mean: Array, variance: Array, slopes: Moments) -> Moments:
    """Return slopes by mean and variance before the rectifier of a scalar with ``slopes`` by :func:`rectified_moments`."""
    sd = np.sqrt(variance)
    ratio = mean / sd
    above, density = ndtr(ratio), _density(ratio)
    first = mean * above + sd * density
    by_mean = slopes[0] * above + slopes[1] * 2 * first * (1 - above)
    return by_mean, slopes[0] * density / (2 * sd) + slopes[1] * (above - first * density / sd)


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

    mean: Array
    variance: Array
    of_prior: list[list[float]]

    @classmethod
    def start(cls, outputs: int, inputs: int) -> Layer:
        """Weights with the variance of their prior, and means that break the symmetry of the units."""
        variance = PRIOR[1] / (PRIOR[0] - 1)
        mean = torch.randn(outputs, inputs + 1).double().numpy() / math.sqrt(inputs + 1)
        factors = [[1 / variance, 0.0, 0.0, 0.0] for _ in range(mean.size)]
        return cls(mean, np.full_like(mean, variance), factors)


class Network:
    """A network with one hidden layer of rectifiers, its weights normal, precisions of weights and noise gamma."""

    def __init__(self, inputs: int, hidden: int) -> None:
        self.layers = [Layer.start(hidden, inputs), Layer.start(1, hidden)]
        self.noise, self.precision = PRIOR, PRIOR

    @property
    def noise_variance(self) -> float:
        """Mean of the noise variance."""
        shape, rate = self.noise
        return rate / (shape - 1)

    def moments(self, x: Array) -> Moments:
        """Return mean and variance ``(N,)`` of the function at inputs ``(N, D)``."""
        _, (mean, variance) = self._carried(x)
        return mean[..., 0], variance[..., 0]

    def _carried(self, x: Array) -> tuple[list[tuple[Moments, Moments]], Moments]:
        """Return what goes into each layer and what its linear map makes of it, and the moments of the output."""
        moments, steps, one = (x, np.zeros_like(x)), [], np.ones((*x.shape[:-1], 1))
        for number, layer in enumerate(self.layers):
            inputs = np.concatenate([moments[0], one], -1), np.concatenate([moments[1], 0 * one], -1)
            sums = linear_moments(*inputs, layer.mean, layer.variance)
            steps.append((inputs, sums))
            moments = sums if number + 1 == len(self.layers) else rectified_moments(*sums)
        return steps, moments

    def slopes(self, x: Array, y: float) -> tuple[list[Moments], float, float]:
        """Return slopes of log Z of a row ``(D,)`` by means and variances of the weights, layer by layer; its residual; the function's variance.

        The slopes are written out: automatic differentiation takes seven times as long for a row, and far longer where threads fight for a processor.
        """
        steps, (mean, variance) = self._carried(x)
        total, residual = float(variance[0]) + self.noise_variance, y - float(mean[0])
        by = np.array([residual / total]), np.array([0.5 * (residual**2 / total - 1) / total])
        found: list[Moments] = []
        for layer, (inputs, sums) in zip(reversed(self.layers), reversed(steps), strict=True):
            if found:
                by = rectified_slopes(*sums, by)
            of_weights, of_inputs = linear_slopes(inputs, layer.mean, layer.variance, by)
            found.append(of_weights)
            by = of_inputs[0][:-1], of_inputs[1][:-1]  # the last input is the bias
        return found[::-1], residual, float(variance[0])

    def take_in(self, x: Array, y: float) -> None:
        """Take in one row ``(D,)`` by assumed-density filtering: Eqs. 6 and 7 for the weights, 8 and 9 for the noise."""
        slopes, residual, spread = self.slopes(x, y)
        for layer, (by_mean, by_variance) in zip(self.layers, slopes, strict=True):
            old = layer.variance
            new = old - old**2 * (by_mean**2 - 2 * by_variance)
            kept = (new > 0) & np.isfinite(new)
            layer.mean = np.where(kept, layer.mean + old * by_mean, layer.mean)
            layer.variance = np.where(kept, new, old)
        shape, rate = gamma_update(normal_log_z(residual, spread, self.noise[1]), *self.noise)
        if shape > 1 and rate > 0:
            self.noise = shape, rate

    def refine_priors(self) -> None:
        """Refine the factor of each weight's prior by expectation propagation, one after another."""
        for layer in self.layers:
            means, variances = layer.mean.ravel().tolist(), layer.variance.ravel().tolist()
            for index, factor in enumerate(layer.of_prior):
                means[index], variances[index] = self._refined(means[index], variances[index], factor)
            layer.mean = np.reshape(means, layer.mean.shape)
            layer.variance = np.reshape(variances, layer.mean.shape)

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
        network, rows = Network(x.shape[-1], self.hidden), x.double().cpu().numpy()
        for number in range(self.passes):
            for row in torch.randperm(len(x)).tolist():
                network.take_in(rows[row], targets[row])
            network.refine_priors()
            progress(number + 1, self.passes, {"loss": network.noise_variance})

        def predict(new: Tensor) -> Prediction:
            mean, variance = network.moments(new.double().cpu().numpy())
            sd = np.sqrt(variance + network.noise_variance)
            return mixture_of_normals(torch.as_tensor(mean).to(new)[None], torch.as_tensor(sd).to(new)[None])

        return Fitted(predict, len(x), self.passes * len(x), seconds=time.perf_counter() - start)
