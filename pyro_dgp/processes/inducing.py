"""Inducing points: q(u) over function values at M learned inputs, whitened."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from pyro.nn import PyroParam
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.internal.blocks import column_blocks
from pyro_dgp.processes.conditional_moments import conditional_moments
from pyro_dgp.processes.families import ProcessFamily, require_scales, saved
from pyro_dgp.processes.initial_points import initial_points_of_groups
from pyro_dgp.processes.whitened import KINDS, SMALLEST_VARIANCE, WhitenedGaussian, WhitenedProcess


class InducingPointProcess(WhitenedProcess):
    """Process ``q(f) = int p(f | u) q(u) du`` with ``u = m(Z) + L_z v``, ``q(v_d) = N(whitened_mean_d, S_d)``.

    The basis is ``a = L_z^-1 k(Z, x)``: the marginal at x has mean ``m(x) + a' whitened_mean_d`` and variance
    ``k(x,x) - a'a + a' S_d a`` ([DSPP] 7 and 8 in whitened coordinates). The regulariser is
    ``sum_d KL(N(whitened_mean_d, S_d) || N(0, I))`` in nats. For ``delta`` (S = 0), where this KL is infinite, the
    regulariser is ``-log N(whitened_mean; 0, I)``, and the objective is no bound.

    Its parameters besides those of :class:`~pyro_dgp.processes.whitened.WhitenedProcess`:

    | attribute | shape |
    |---|---|
    | ``inducing_points`` | ``(*groups, M, D)``, or ``(*groups, D_out, M, D)`` for a set per output |
    """

    def __init__(self, inducing_points: Tensor, shape: Size, covariance: str, scale: float) -> None:
        super().__init__(inducing_points, shape, covariance, scale)
        self.inducing_points = PyroParam(inducing_points.clone(), event_dim=inducing_points.dim())

    def _points(self, prior: FunctionPrior) -> Tensor:
        """Return the inducing points with an axis for the outputs, ``(*groups, E, M, D)``."""
        z: Tensor = self.inducing_points
        if z.shape[-1] != prior.x.shape[-1]:
            raise ValueError(
                f"the inducing points of {prior.name!r} have {z.shape[-1]} dimensions and its inputs {prior.x.shape[-1]}: "
                "pass inputs of as many columns as guide.initialize got"
            )
        return z if z.dim() == len(self.groups) + 3 else z.unsqueeze(-3)

    def columns(self, prior: FunctionPrior) -> Tensor:
        """See :class:`~pyro_dgp.processes.whitened.WhitenedProcess`."""
        z = self._points(prior)
        factor = linalg.cholesky(prior.covariance.matrix(z), prior.jitter, prior.name)
        return linalg.solve_columns(factor, prior.covariance.matrix(z, prior.x.unsqueeze(-3)))

    def moments(self, prior: FunctionPrior, q: WhitenedGaussian) -> tuple[Tensor, Tensor]:
        """Return both moments; batch and particle axes are folded into the columns of one product.

        Where hyperparameters are batched, or groups have points of their own, nothing is folded.
        """
        z = self._points(prior)
        k_zz = prior.covariance.matrix(z)
        folded = k_zz.dim() == 3
        x = prior.x.reshape(1, -1, prior.x.shape[-1]) if folded else prior.x.unsqueeze(-3)
        blocks = column_blocks(x, *q.mean.shape) if folded else (x,)
        k_zx = [prior.covariance.matrix(z, block) for block in blocks]
        loc, change = conditional_moments(k_zz, k_zx, q, prior.jitter, prior.name)
        variance = prior.covariance.diagonal(x) + change
        loc, variance = torch.broadcast_tensors(loc, variance.clamp_min(SMALLEST_VARIANCE))
        if not folded:
            return loc.mT, variance.mT
        shape = (prior.num_outputs, *prior.x.shape[:-1])
        return loc.reshape(shape).movedim(0, -1), variance.reshape(shape).movedim(0, -1)


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
        if self.covariance not in KINDS:
            raise ValueError(f"covariance is 'full', 'diagonal' or 'delta', not {self.covariance!r}")
        if self.num_inducing < 1:
            raise ValueError(f"num_inducing must be at least 1, got {self.num_inducing}")
        require_scales(self.scale, self.hidden_scale)

    def create(self, prior: FunctionPrior, hidden: bool) -> InducingPointProcess:
        """Create a process at k-means centres of the prior's inputs.

        The guide has carried these inputs through the means of the layers below. Each group has centres of its own.
        """
        points = initial_points_of_groups(prior.x.detach(), self.num_inducing, prior.name)
        shape = Size((*prior.batch_shape, prior.num_outputs, points.shape[-2]))
        if self.per_output:
            points = points.unsqueeze(-3).repeat_interleave(prior.num_outputs, -3)
        scale = self.hidden_scale if hidden else self.scale
        return InducingPointProcess(points, shape, self.covariance, scale)

    def restore(self, state: dict[str, Tensor]) -> InducingPointProcess:
        """Create a process in the shapes of ``inducing_points`` and ``whitened_mean`` of the state."""
        points, mean = saved(state, "inducing_points", "whitened_mean")
        return InducingPointProcess(torch.zeros_like(points), mean.shape, self.covariance, 1.0)
