"""Whitened processes: a basis of the function space, and a Gaussian over the coefficients of the basis."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.processes.base import Process
from pyro_dgp.processes.marginal import FunctionMarginal

#: Floor of the variance of function values. The root of 0 has no derivative.
SMALLEST_VARIANCE = 1e-12

#: Forms of the covariance of q(v).
KINDS = ("full", "diagonal", "delta")


@dataclass(frozen=True)
class WhitenedGaussian:
    """The Gaussian ``q(v_d) = N(mean_d, S_d)`` over coefficients whose prior is ``N(0, I)``, with its values read once.

    :ivar mean: means ``(*groups, D_out, M)``.
    :ivar scale: T ``(*groups, D_out, M, M)`` with ``S = T T'`` (full), standard deviations ``(*groups, D_out, M)``
        (diagonal), or ``None`` for S = 0 (delta).
    """

    mean: Tensor
    scale: Tensor | None

    @property
    def is_full(self) -> bool:
        """Whether the scale is a triangular factor."""
        return self.scale is not None and self.scale.dim() > self.mean.dim()

    def regularizer(self) -> Tensor:
        """Return ``sum_d KL(N(mean_d, S_d) || N(0, I))`` in nats, one number for each group.

        For S = 0, where the KL is infinite, it is ``-sum_d log N(mean_d; 0, I)``.
        """
        mean, scale, groups = self.mean, self.scale, self.mean.dim() - 2
        size = mean.shape[-2] * mean.shape[-1]
        squares = _total(mean.square(), groups)
        if scale is None:
            return 0.5 * squares + 0.5 * size * math.log(2 * math.pi)
        diagonal = scale.diagonal(dim1=-2, dim2=-1) if self.is_full else scale
        squares = squares + _total(scale.square(), groups)
        return 0.5 * (squares - size) - _total(diagonal.abs().log(), groups)

    def moments(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``a' mean_d`` and ``a' (S_d - I) a`` for each whitened column a, both ``(..., D_out or E, n)``.

        :param columns: A ``(..., *groups, E, M, n)``.
        """
        loc = (self.mean.unsqueeze(-2) @ columns).squeeze(-2)
        change = -linalg.column_squares(columns)
        if self.scale is None:
            return loc, change
        if self.is_full:
            return loc, change + linalg.column_squares(self.scale.mT @ columns)
        return loc, change + (self.scale.square().unsqueeze(-2) @ columns.square()).squeeze(-2)

    def draw(self, count: int) -> Tensor:
        """Draw v, ``(count, *groups, D_out, M)``."""
        white = self.mean.expand(count, *self.mean.shape)
        if self.scale is None:
            return white
        noise = torch.randn_like(white)
        if self.is_full:
            return white + (self.scale @ noise.unsqueeze(-1)).squeeze(-1)
        return white + self.scale * noise

    def spread(self, columns: Tensor) -> Tensor:
        """Return ``a' S_d b`` for all pairs of whitened columns, ``(..., D_out, n, n)``."""
        if self.scale is None:
            return columns.new_zeros(()).expand(*columns.shape[:-3], self.mean.shape[-2], *[columns.shape[-1]] * 2)
        b = self.scale.mT @ columns if self.is_full else self.scale.unsqueeze(-1) * columns
        return b.mT @ b


def _total(values: Tensor, groups: int) -> Tensor:
    """Return the sum over all axes behind those of the groups."""
    return values.flatten(groups).sum(-1) if groups else values.sum()


class WhitenedProcess(Process):
    """Base of processes ``f(x) = m(x) + a(x)' v + r(x)`` with a Gaussian over the coefficients v of a basis a.

    r is the part of the prior that the basis leaves, with covariance ``k(x, z) - a(x)' a(z)``. Under the prior v is
    ``N(0, I)``. Under q it is a :class:`WhitenedGaussian`. The marginal at x has mean ``m(x) + a' mean_d`` and variance
    ``k(x,x) - a'a + a' S_d a``. The regulariser is the KL from the prior of v.

    A subclass gives the basis, as :meth:`columns`. It may override :meth:`moments` by a faster form.

    **Groups.** The prior's batch axes at ``guide.initialize`` (a plate around the site, or a batch of data sets) are
    independent functions. Each has a q of its own, whose parameters lead with these axes.

    | attribute | shape |
    |---|---|
    | ``whitened_mean`` | ``(*groups, D_out, M)`` |
    | ``latent_weights`` | ``(*groups, D_out, M, P)``, where the model has P numbers of hyperparameters with priors: the mean is ``whitened_mean + latent_weights eps`` at their standardised deviations eps |
    | ``whitened_scale`` | full: ``(*groups, D_out, M, M)``, lower triangle used, ``S = T T'``; diagonal: ``(*groups, D_out, M)``, standard deviations |
    """

    def __init__(self, like: Tensor, shape: Size, covariance: str, scale: float) -> None:
        """Create q(v) at mean zero.

        :param like: a tensor of the dtype and on the device that are wanted.
        :param shape: ``(*groups, D_out, M)``.
        :param covariance: one of :data:`KINDS`, or ``prior`` for a subclass that has parameters of its own.
        :param scale: initial standard deviation.
        """
        super().__init__()
        self.covariance, self.groups, self.num_deviations = covariance, Size(shape[:-2]), 0
        if covariance == "prior":
            return
        self.whitened_mean = PyroParam(like.new_zeros(shape), event_dim=len(shape))
        if covariance == "full":
            tril = scale * torch.eye(shape[-1]).to(like).repeat(*shape[:-1], 1, 1)
            self.whitened_scale = PyroParam(tril, event_dim=len(shape) + 1)
        elif covariance == "diagonal":
            diagonal = like.new_full(shape, scale)
            self.whitened_scale = PyroParam(diagonal, constraint=constraints.positive, event_dim=len(shape))

    def couple(self, deviations: int) -> None:
        """Let the mean of q(v) move with as many standardised deviations of hyperparameters; it does not move at first."""
        mean: Any = self.whitened_mean
        self.num_deviations = deviations
        self.latent_weights = PyroParam(mean.detach().new_zeros(*mean.shape, deviations), event_dim=mean.dim() + 1)

    def known(self, deviations: Tensor) -> Tensor:
        """Return the deviations that the process moves with: those of the hyperparameters that the model reads before its GP."""
        return deviations[..., : self.num_deviations]

    def gaussian(self, prior: FunctionPrior, deviations: Tensor | None = None) -> WhitenedGaussian:
        """Return q(v), with the parameters read now.

        :param prior: the GP, with its hyperparameters.
        :param deviations: of the hyperparameters, ``(*lead, P)``; 0 if not given.
        """
        mean: Any = self.of_groups("whitened_mean")
        if deviations is not None:
            mean = mean + (self.of_groups("latent_weights") @ self.known(deviations)[..., None, :, None]).squeeze(-1)
        if self.covariance == "delta":
            return WhitenedGaussian(mean, None)
        scale: Any = self.of_groups("whitened_scale")
        return WhitenedGaussian(mean, scale.tril() if self.covariance == "full" else scale)

    @abstractmethod
    def columns(self, prior: FunctionPrior) -> Tensor:
        """Return the whitened columns A at ``prior.x``, ``(..., E, M, N)`` with ``A'A <= K(x, x)``."""

    def moments(self, prior: FunctionPrior, q: WhitenedGaussian) -> tuple[Tensor, Tensor]:
        """Return mean, without that of the prior, and variance at ``prior.x``, both ``(..., N, D_out)``."""
        loc, change = q.moments(self.columns(prior))
        loc, variance = torch.broadcast_tensors(loc, prior.covariance.diagonal(prior.x.unsqueeze(-3)) + change)
        return loc.mT, variance.clamp_min(SMALLEST_VARIANCE).mT

    def forward(
        self, prior: FunctionPrior, at: Tensor | None = None, deviations: Tensor | None = None
    ) -> FunctionMarginal:
        """Return the marginal at ``prior.x``, given the deviations of the hyperparameters."""
        q = self.gaussian(prior, deviations)
        if prior.num_outputs != q.mean.shape[-2]:
            raise ValueError(
                f"the process of {prior.name!r} has {q.mean.shape[-2]} outputs and the GP has {prior.num_outputs}: "
                "initialise the guide on this model"
            )
        if self.groups and prior.batch_shape[-len(self.groups) :] != self.present_groups:
            raise ValueError(
                f"the guide holds functions of {prior.name!r} for groups of shape {tuple(self.present_groups)} and the inputs have "
                f"batch shape {tuple(prior.batch_shape)}: pass inputs for the groups of guide.initialize, (*groups, N, D)"
            )
        loc, variance = self.moments(prior, q)
        mean, regularizer = prior.mean + loc, q.regularizer()
        if regularizer.dim():
            regularizer = regularizer.expand(mean.shape[:-2])

        taken = self._taken

        def joint() -> Tensor:
            with self.taking(taken):
                columns, x = self.columns(prior), prior.x.unsqueeze(-3)
            return prior.covariance.matrix(x) - columns.mT @ columns + q.spread(columns)

        return FunctionMarginal(mean, variance, regularizer, joint)
