"""Inducing points: the recipe for processes of inducing points."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes.base import Process
from pyro_dgp.processes.families import ProcessFamily, require_scales, saved
from pyro_dgp.processes.inducing_process import InducingPointProcess
from pyro_dgp.processes.initial_points import initial_points_of_groups
from pyro_dgp.processes.pseudo_targets import PseudoTargetProcess
from pyro_dgp.processes.whitened import KINDS


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
        if "pseudo_targets" in state:
            points, coupling = saved(state, "inducing_points", "latent_weights")
            return PseudoTargetProcess(torch.zeros_like(points), coupling.shape[:-1], coupling.shape[-1], 1.0, 1.0)
        points, mean = saved(state, "inducing_points", "whitened_mean")
        process = InducingPointProcess(torch.zeros_like(points), mean.shape, self.covariance, 1.0)
        if (weights := state.get("latent_weights")) is not None:
            process.couple(weights.shape[-1])
        return process

    def coupled(self, process: Process, prior: FunctionPrior, *, hidden: bool, deviations: int) -> Process:
        """See :class:`ProcessFamily`: pseudo-targets for a full covariance, else a mean that moves."""
        assert isinstance(process, InducingPointProcess)
        if self.covariance != "full":
            process.couple(deviations)
            return process
        mean, points = process.whitened_mean, process.inducing_points
        assert isinstance(mean, Tensor) and isinstance(points, Tensor)
        scale, variance = self.hidden_scale if hidden else self.scale, float(prior.variance.mean())
        return PseudoTargetProcess(points.detach(), mean.shape, deviations, scale, variance)
