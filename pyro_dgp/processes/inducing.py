"""Inducing points: q(u) over function values at M learned inputs, whitened."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.internal.blocks import column_blocks
from pyro_dgp.processes.base import KnownValues, Process
from pyro_dgp.processes.conditional_moments import conditional_moments
from pyro_dgp.processes.families import ProcessFamily, require_scales, saved
from pyro_dgp.processes.initial_points import initial_points
from pyro_dgp.processes.marginal import FunctionMarginal

#: Floor of the variance of function values. The root of 0 has no derivative.
SMALLEST_VARIANCE = 1e-12


class InducingPointProcess(Process):
    """Process ``q(f) = int p(f | u) q(u) du`` with ``u = m(Z) + L_z v``, ``q(v_d) = N(whitened_mean_d, S_d)``.

    The marginal at x has mean ``m(x) + a' whitened_mean_d`` and variance ``k(x,x) - a'a + a' S_d a`` with
    ``a = L_z^-1 k(Z, x)`` ([DSPP] 7 and 8 in whitened coordinates). The regulariser is
    ``sum_d KL(N(whitened_mean_d, S_d) || N(0, I))`` in nats. For ``delta`` (S = 0), where this KL is infinite, the
    regulariser is ``-log N(whitened_mean; 0, I)``, and the objective is no bound.

    | attribute | shape |
    |---|---|
    | ``inducing_points`` | ``(M, D)``, or ``(D_out, M, D)`` for a set per output |
    | ``whitened_mean`` | ``(D_out, M)`` |
    | ``whitened_scale`` | full: ``(D_out, M, M)``, lower triangle used, ``S = T T'``; diagonal: ``(D_out, M)``, standard deviations |
    """

    def __init__(self, inducing_points: Tensor, num_outputs: int, covariance: str, scale: float) -> None:
        super().__init__()
        size = inducing_points.shape[-2]
        self.covariance = covariance
        self.inducing_points = PyroParam(inducing_points.clone(), event_dim=inducing_points.dim())
        self.whitened_mean = PyroParam(inducing_points.new_zeros(num_outputs, size), event_dim=2)
        if covariance == "full":
            tril = scale * torch.eye(size).to(inducing_points).repeat(num_outputs, 1, 1)
            self.whitened_scale = PyroParam(tril, event_dim=3)
        elif covariance == "diagonal":
            diagonal = inducing_points.new_full((num_outputs, size), scale)
            self.whitened_scale = PyroParam(diagonal, constraint=constraints.positive, event_dim=2)

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """Return the marginal at ``prior.x``; batch and particle axes are folded into the columns of one product."""
        z, mean, scale = self._read(prior)
        k_zz = prior.covariance.matrix(z)
        # Unless hyperparameters are batched, all rows of all particles are columns of one product.
        folded = k_zz.dim() == 3
        x = prior.x.reshape(1, -1, prior.x.shape[-1]) if folded else prior.x.unsqueeze(-3)
        blocks = column_blocks(x, *mean.shape) if folded else (x,)
        k_zx = [prior.covariance.matrix(z, block) for block in blocks]
        loc, change = conditional_moments(k_zz, k_zx, mean, scale, prior.jitter, prior.name)
        variance = prior.covariance.diagonal(x) + change
        loc, variance = torch.broadcast_tensors(loc, variance.clamp_min(SMALLEST_VARIANCE))
        if folded:
            shape = (prior.num_outputs, *prior.x.shape[:-1])
            loc, variance = loc.reshape(shape).movedim(0, -1), variance.reshape(shape).movedim(0, -1)
        else:
            loc, variance = loc.mT, variance.mT

        def joint() -> Tensor:
            columns = prior.x.unsqueeze(-3)
            factor = linalg.cholesky(k_zz, prior.jitter, prior.name)
            a = linalg.solve_columns(factor, prior.covariance.matrix(z, columns))
            base = prior.covariance.matrix(columns) - a.mT @ a
            if scale is None:
                return base.expand(*base.shape[:-3], prior.num_outputs, *base.shape[-2:])
            b = scale.mT @ a if self.covariance == "full" else scale.unsqueeze(-1) * a
            return base + b.mT @ b

        return FunctionMarginal(prior.mean + loc, variance, self._regularizer(mean, scale), joint)

    def known_values(self, prior: FunctionPrior, num_draws: int) -> KnownValues:
        """Draw v from q(v)."""
        z, mean, scale = self._read(prior)
        white = mean.expand(num_draws, *mean.shape)
        if scale is not None:
            noise = torch.randn_like(white)
            white = white + (scale @ noise.unsqueeze(-1)).squeeze(-1) if scale.dim() == 3 else white + scale * noise
        return KnownValues(z, linalg.cholesky(prior.covariance.matrix(z), prior.jitter, prior.name), white)

    def _read(self, prior: FunctionPrior) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return Z ``(1 or D_out, M, D)``, mean and scale of q(v); raise where they do not fit the prior."""
        z = self.inducing_points
        z = z if z.dim() == 3 else z.unsqueeze(0)
        if z.shape[-1] != prior.x.shape[-1]:
            raise ValueError(
                f"the inducing points of {prior.name!r} have {z.shape[-1]} dimensions and its inputs {prior.x.shape[-1]}: "
                "pass inputs of as many columns as guide.initialize got"
            )
        mean = self.whitened_mean
        if prior.num_outputs != len(mean):
            raise ValueError(
                f"the inducing points of {prior.name!r} have {len(mean)} outputs and the GP has {prior.num_outputs}: "
                "initialise the guide on this model"
            )
        return z, mean, self._scale()

    def _scale(self) -> Tensor | None:
        """Return T with ``S = T T'`` (full), standard deviations (diagonal), or ``None`` (delta)."""
        if self.covariance == "delta":
            return None
        return self.whitened_scale.tril() if self.covariance == "full" else self.whitened_scale

    def _regularizer(self, mean: Tensor, scale: Tensor | None) -> Tensor:
        if scale is None:
            return 0.5 * mean.square().sum() + 0.5 * mean.numel() * math.log(2 * math.pi)
        diagonal = scale.diagonal(dim1=-2, dim2=-1) if self.covariance == "full" else scale
        return 0.5 * (mean.square().sum() + scale.square().sum() - mean.numel()) - diagonal.abs().log().sum()


@dataclass(frozen=True)
class InducingPoints(ProcessFamily):
    """Whitened inducing points for every GP of a model ([DSVI] 3.7; Hensman et al. 2013).

    :param num_inducing: M. If it exceeds the number of distinct training inputs, it is reduced to that number, with a
        warning.
    :param covariance: form of the covariance of q(v) for each output: ``full``, ``diagonal``, or ``delta`` (a point
        estimate).
    :param per_output: whether each output of a layer has an inducing set of its own or all share one.
    :param hidden_scale: initial standard deviation of v in layers below the top. It is small so that training by samples
        starts from the mean functions. Sigma points would start almost merged, and stay so where data are few: give them
        1.0.
    :param scale: initial standard deviation of v in the top layer.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, MonteCarlo, Variational
    >>> x, y = torch.randn(20, 3), torch.randn(20)
    >>> guide = Variational(DeepGP(x, layers=1), InducingPoints(20, covariance="diagonal"), MonteCarlo(1))
    >>> guide.initialize(x, y)
    >>> process = getattr(guide.processes, "y/f")
    >>> process.inducing_points.shape, process.whitened_scale.shape
    (torch.Size([20, 3]), torch.Size([1, 20]))
    """

    num_inducing: int = 128
    covariance: str = "full"
    per_output: bool = False
    _: KW_ONLY
    hidden_scale: float = 1e-2
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.covariance not in ("full", "diagonal", "delta"):
            raise ValueError(f"covariance is 'full', 'diagonal' or 'delta', not {self.covariance!r}")
        if self.num_inducing < 1:
            raise ValueError(f"num_inducing must be at least 1, got {self.num_inducing}")
        require_scales(self.scale, self.hidden_scale)

    def create(self, prior: FunctionPrior, hidden: bool) -> InducingPointProcess:
        """Create a process at k-means centres of the prior's inputs.

        The guide has carried these inputs through the means of the layers below.
        """
        x = prior.x.detach().reshape(-1, prior.x.shape[-1])
        points = initial_points(x, self.num_inducing, prior.name)
        if self.per_output:
            points = points.repeat(prior.num_outputs, 1, 1)
        scale = self.hidden_scale if hidden else self.scale
        return InducingPointProcess(points, prior.num_outputs, self.covariance, scale)

    def restore(self, state: dict[str, Tensor]) -> InducingPointProcess:
        """Create a process in the shapes of ``inducing_points`` and ``whitened_mean`` of the state."""
        points, mean = saved(state, "inducing_points", "whitened_mean")
        return InducingPointProcess(torch.zeros_like(points), mean.shape[0], self.covariance, 1.0)
