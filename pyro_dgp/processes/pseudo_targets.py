"""Inducing points whose q is the prior times pseudo-observations, for models whose hyperparameters have a posterior."""

from __future__ import annotations

import math

import torch
from pyro.nn import PyroParam
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.processes.inducing_process import InducingPointProcess
from pyro_dgp.processes.whitened import WhitenedGaussian


class PseudoTargetProcess(InducingPointProcess):
    """Process with ``q(u given theta) ∝ p(u given theta) N(t; u, Lambda^-1)``, theta the hyperparameters.

    t are pseudo-targets at the inducing points and Lambda is their precision. Neither depends on theta, as the data do
    not: whichever hyperparameters are drawn, q is the posterior of the function *under them*. A q(v) that is one and the same for
    all hyperparameters fits a narrow range of them, which makes their posterior overconfident (Adam et al. 2021, "Dual
    parameterization of sparse variational Gaussian processes", Eq. 8 and section 4).

    With ``u = m(Z) + L v`` and ``Lambda = s^2 R R'`` it is ``q(v) = N(S L' Lambda t, S)``, ``S = (I + L' Lambda L)^-1``.

    | attribute | shape |
    |---|---|
    | ``pseudo_targets`` | t ``(*groups, D_out, M)``, less the mean function |
    | ``log_scales``, ``pseudo_factor`` | of R: ``diag(exp(log_scales)) (I + strictly lower pseudo_factor)``, ``(*groups, D_out, M)`` and ``(*groups, D_out, M, M)`` |
    | ``latent_weights``, ``scale_weights`` | ``(*groups, D_out, M, P)`` and ``(*groups, D_out, P)``: t and ``log s`` move linearly with the standardised deviations of the P numbers of the hyperparameters |
    """

    def __init__(self, inducing_points: Tensor, shape: Size, deviations: int, scale: float, variance: float) -> None:
        """Create q.

        :param inducing_points: as in :class:`~pyro_dgp.processes.InducingPointProcess`.
        :param shape: ``(*groups, D_out, M)``.
        :param deviations: P.
        :param scale: initial standard deviation of the function values at the points, relative to the prior's.
        :param variance: the prior's variance.
        """
        super().__init__(inducing_points, shape, "prior", scale)
        zeros, axes = inducing_points.new_zeros, len(shape)
        precision = (1 / scale**2 - 1 + 0.25) / max(variance, 1e-6)
        self.num_deviations = deviations
        self.pseudo_targets = PyroParam(zeros(shape), event_dim=axes)
        self.log_scales = PyroParam(zeros(shape) + 0.5 * math.log(precision), event_dim=axes)
        self.pseudo_factor = PyroParam(zeros(*shape, shape[-1]), event_dim=axes + 1)
        self.latent_weights = PyroParam(zeros(*shape, deviations), event_dim=axes + 1)
        self.scale_weights = PyroParam(zeros(*shape[:-1], deviations), event_dim=axes)

    def gaussian(self, prior: FunctionPrior, deviations: Tensor | None = None) -> WhitenedGaussian:
        """Return q(v) under the hyperparameters of the prior."""
        targets = self.of_groups("pseudo_targets")
        log_scales = self.of_groups("log_scales")
        root = torch.eye(targets.shape[-1]).to(targets) + self.of_groups("pseudo_factor").tril(-1)
        if deviations is not None:
            eps = self.known(deviations)[..., None, :, None]
            targets = targets + (self.of_groups("latent_weights") @ eps).squeeze(-1)
            log_scales = log_scales + (self.of_groups("scale_weights").unsqueeze(-2) @ eps).squeeze(-1)
        root = log_scales.exp().unsqueeze(-1) * root
        factor = linalg.cholesky(prior.covariance.matrix(self._points(prior)), prior.jitter, prior.name)
        w = factor.mT @ root
        c = torch.linalg.cholesky(torch.eye(targets.shape[-1]).to(targets) + w @ w.mT)
        mean = torch.cholesky_solve(w @ (root.mT @ targets.unsqueeze(-1)), c).squeeze(-1)
        scale = torch.linalg.solve_triangular(c.mT, torch.eye(targets.shape[-1]).to(c).expand_as(c), upper=True)
        return WhitenedGaussian(mean, scale)
