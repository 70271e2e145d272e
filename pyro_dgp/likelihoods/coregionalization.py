"""Several outputs that are linear mixtures of latent functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro import distributions as dist
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import Distribution, LowRankMultivariateNormal

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.factorised import noisy_factorised
from pyro_dgp.internal.parameters import require_number, require_shape
from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation
from pyro_dgp.likelihoods.gamma_score import log_normal_power_integral
from pyro_dgp.likelihoods.gaussian import NOISE_FLOOR
from pyro_dgp.likelihoods.moments import Moments


@dataclass(frozen=True)
class CoregionalizedConditional(Conditional):
    """``y_n ~ N(mixing f_n + bias, diag(variance))``; ``mixing`` ``(D_out, L)``, the others ``(D_out,)``."""

    mixing: Tensor
    bias: Tensor
    variance: Tensor
    integration = "closed form"

    def _mean(self, f: Tensor) -> Tensor:
        return f @ self.mixing.mT + self.bias.unsqueeze(-2)

    def _targets(self, y: Tensor) -> Tensor:
        """Targets with an axis for outputs, which those of a single one lack."""
        return y if self.variance.shape[-1] > 1 else y.unsqueeze(-1)

    @property
    def _noise(self) -> Tensor:
        """Noise variances with an axis for the rows: ``(..., 1, D_out)``."""
        return self.variance.unsqueeze(-2)

    def _correlated(self, f: Moments, noise: Tensor) -> LowRankMultivariateNormal:
        """``N(mixing m + bias, mixing diag(v) mixing' + diag(noise))`` for each row."""
        root = self.mixing.unsqueeze(-3) * f.variance.sqrt().unsqueeze(-2)
        mean = self._mean(f.mean)
        return LowRankMultivariateNormal(mean, root, noise.expand(mean.shape), validate_args=False)

    def location(self, f: Tensor) -> Tensor:
        """The mixed functions, ``mixing f_n + bias``."""
        return self._mean(f)

    def given(self, f: Tensor) -> RowObservation:
        """Independent normals around the mixed functions."""
        mean = self._mean(f)
        return RowObservation(dist.Normal(mean, self._noise.sqrt().expand(mean.shape), validate_args=False), 2)

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """``sum_d log N(y_d | mean_d, variance_d) - (mixing^2 v)_d / (2 variance_d)``."""
        squared = (self._targets(y) - self._mean(f.mean)).square() + f.variance @ self.mixing.square().mT
        return -0.5 * (squared / self._noise + self._noise.log() + math.log(2 * math.pi)).sum(-1)

    def components(self, f: Moments) -> Distribution:
        """Correlated normals over the outputs of each row: batch shape ``(..., N)``, event shape ``(D_out,)``."""
        return self._correlated(f, self._noise)

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """Log density of the correlated normal of each row."""
        log_prob: Tensor = self.components(f).log_prob(self._targets(y))
        return log_prob

    def log_expected_power(self, y: Tensor, f: Moments, power: float) -> Tensor:
        """Up to a constant, a normal to the power c is a normal of variance ``variance / c``."""
        count, log_determinant = self.variance.shape[-1], self._noise.log().sum(-1)
        density: Tensor = self._correlated(f, self._noise / power).log_prob(self._targets(y))
        log_two_pi = count * math.log(2 * math.pi)
        return density + 0.5 * ((1 - power) * (log_two_pi + log_determinant) - count * math.log(power))

    def log_power_integral(self, f: Moments, power: float) -> Tensor:
        """``sum_d log int N(y_d | mean_d, variance_d)^power dy_d``."""
        return log_normal_power_integral(self._noise, power).sum(-1)

    def joint_log_prob(self, y: Tensor, prior: FunctionPrior) -> Tensor:
        """Normal with covariance ``sum_l K_l x w_l w_l' + I x diag(variance)`` over all rows and outputs: a dense factor."""
        kernels = prior.covariance_matrix
        kernels = kernels.expand(*kernels.shape[:-3], self.mixing.shape[-1], *kernels.shape[-2:])
        joint = torch.einsum("...lab,dl,el->...adbe", kernels, self.mixing, self.mixing)
        size = y.shape[-2] * y.shape[-1]
        covariance = joint.reshape(*joint.shape[:-4], size, size) + torch.diag(self.variance.repeat(y.shape[-2]))
        difference = (y - self._mean(prior.mean)).flatten(-2).unsqueeze(-1)
        return noisy_factorised(covariance.unsqueeze(-3), prior.jitter, prior.name).log_density(difference)

    def of_outputs(self, chosen: Sequence[int]) -> tuple[Conditional, list[int]]:
        """The mixtures of these outputs, each of all functions. One output alone is a target ``(..., N)``."""
        rows = list(chosen)
        mixed = CoregionalizedConditional(self.mixing[..., rows, :], self.bias[..., rows], self.variance[..., rows])
        return mixed, list(range(self.mixing.shape[-1]))


class LinearCoregionalization(Likelihood):
    """Linear model of coregionalisation: ``y_nd = sum_l mixing_dl f_nl + bias_d + e_nd``, ``e_nd ~ N(0, variance_d)``.

    The semiparametric latent factor model (Seeger, Teh and Jordan 2005; [DSPP] 5.3): L independent functions, D_out outputs
    that share them. Put it over a Gaussian process of ``num_outputs=L``; ``y`` is ``(N, D_out)``. Predictions are
    mixtures of correlated normals. Under MCMC the latent functions become the site ``y_f_whitened``.

    >>> from pyro_dgp import LinearCoregionalization
    >>> LinearCoregionalization(outputs=3, latents=2).given(torch.zeros(5, 2)).event_shape
    torch.Size([5, 3])

    :param outputs: D_out, 2 or more.
    :param latents: number of latent functions, L.
    :param variance: initial noise variance of each output, squared units of y.
    :param floor: smallest noise variance.
    """

    def __init__(self, outputs: int, latents: int, *, variance: float = 0.1, floor: float = NOISE_FLOOR) -> None:
        super().__init__()
        if outputs < 2 or latents < 1:
            raise ValueError(f"coregionalisation mixes functions into 2 or more outputs, got {latents} into {outputs}")
        require_number(variance)
        if not variance > floor:
            raise ValueError(f"the initial noise variance {variance} must exceed its floor {floor}")
        self.outputs, self.latents = outputs, latents
        self.mixing: Any = PyroParam(torch.randn(outputs, latents) / latents**0.5, event_dim=2)
        self.bias: Any = PyroParam(torch.zeros(outputs), event_dim=1)
        start = torch.full((outputs,), float(variance))
        self.variance: Any = PyroParam(start, constraint=constraints.greater_than(floor), event_dim=1)

    @classmethod
    def fit(cls, y: Tensor, latents: int) -> LinearCoregionalization:
        """Start from the principal directions of targets ``y`` ``(N, D_out)``, each function of unit variance.

        Rows with a missing output, NaN, are left out of this start.
        """
        if y.dim() != 2 or latents > min(y.shape):
            raise ValueError(
                f"{latents} latent functions need targets (N, D_out) of as many outputs, got {tuple(y.shape)}"
            )
        y = y[~y.isnan().any(-1)]
        if latents > len(y):
            raise ValueError(
                f"{len(y)} rows of the targets have no output missing, too few for {latents} directions: give fewer latents"
            )
        model = cls(y.shape[-1], latents).to(y)
        mean = y.mean(0)
        _, spread, directions = torch.linalg.svd(y - mean, full_matrices=False)
        model.mixing = (directions[:latents].mT * spread[:latents] / len(y) ** 0.5).contiguous()
        model.bias = mean
        return model

    def require_outputs(self, outputs: int) -> None:
        """Raise unless there are as many functions as the mixing has columns."""
        if outputs != self.latents:
            raise ValueError(
                f"LinearCoregionalization(latents={self.latents}) stands over a Gaussian process of {outputs} outputs: "
                "make them equal"
            )

    def target_outputs(self, outputs: int) -> int:
        """Number of outputs of y, D_out."""
        return self.outputs

    def conditional(self) -> CoregionalizedConditional:
        """Read every parameter."""
        read = {"mixing": self.mixing, "bias": self.bias, "variance": self.variance}
        for name, value in read.items():
            shape = (self.outputs, self.latents) if name == "mixing" else (self.outputs,)
            require_shape(value, shape, f"LinearCoregionalization.{name}")
        return CoregionalizedConditional(**read)
