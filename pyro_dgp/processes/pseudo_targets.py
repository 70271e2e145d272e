"""Gaussians over coefficients that are the prior times pseudo-observations, for models whose hyperparameters have a posterior."""

from __future__ import annotations

import math

import torch
from pyro.nn import PyroParam
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.processes.basis import Basis
from pyro_dgp.processes.coefficients import Coefficients
from pyro_dgp.processes.whitened_gaussian import WhitenedGaussian


class PseudoTargets(Coefficients):
    """Distribution with ``q(u given theta) ∝ p(u given theta) N(t; u, Lambda^-1)``, theta the hyperparameters.

    t are pseudo-targets of the functionals u of a basis, such as function values at inducing points, and Lambda is their precision. Neither
    depends on theta, as the data do not: whichever hyperparameters are drawn, q is the posterior of the function *under them*. A q(v) that
    is one and the same for all hyperparameters fits a narrow range of them, which makes their posterior overconfident (Adam et al. 2021,
    "Dual parameterization of sparse variational Gaussian processes", Eq. 8 and section 4).

    With ``u = R v`` and ``Lambda = s^2 B B'`` it is ``q(v) = N(S R' Lambda t, S)``, ``S = (I + R' Lambda R)^-1``.

    | attribute | shape |
    |---|---|
    | ``targets`` | t ``(*groups, D_out, M)``, less the mean function |
    | ``log_scales``, ``factor`` | of B: ``diag(exp(log_scales)) (I + strictly lower factor)``, ``(*groups, D_out, M)`` and ``(*groups, D_out, M, M)`` |
    | ``latent_weights``, ``scale_weights`` | ``(*groups, D_out, M, P)`` and ``(*groups, D_out, P)``: t and ``log s`` move linearly with the standardised deviations of the P numbers of the hyperparameters |
    """

    kind = "full"

    def __init__(self, like: Tensor, shape: Size, deviations: int, scale: float, variance: float) -> None:
        """Create q.

        :param like: a tensor of the dtype and on the device that are wanted.
        :param shape: ``(*groups, D_out, M)``.
        :param deviations: number of deviations, P.
        :param scale: initial standard deviation of u, relative to the prior's.
        :param variance: the prior's variance of u.
        """
        super().__init__(shape)
        zeros, axes = like.new_zeros, len(shape)
        precision = (1 / scale**2 - 1 + 0.25) / max(variance, 1e-6)
        self.num_deviations = deviations
        self.targets = PyroParam(zeros(shape), event_dim=axes)
        self.log_scales = PyroParam(zeros(shape) + 0.5 * math.log(precision), event_dim=axes)
        self.factor = PyroParam(zeros(*shape, shape[-1]), event_dim=axes + 1)
        self.latent_weights = PyroParam(zeros(*shape, deviations), event_dim=axes + 1)
        self.scale_weights = PyroParam(zeros(*shape[:-1], deviations), event_dim=axes)

    def read(self, basis: Basis, prior: FunctionPrior, deviations: Tensor | None = None) -> WhitenedGaussian:
        """Return q(v) under the hyperparameters of the prior."""
        targets = self.of_groups("targets")
        log_scales = self.of_groups("log_scales")
        identity = torch.eye(targets.shape[-1]).to(targets)
        precision_root = identity + self.of_groups("factor").tril(-1)
        if deviations is not None:
            eps = self.known(deviations).to(targets)[..., None, :, None]
            targets = targets + (self.of_groups("latent_weights") @ eps).squeeze(-1)
            log_scales = log_scales + (self.of_groups("scale_weights").unsqueeze(-2) @ eps).squeeze(-1)
        precision_root = log_scales.exp().unsqueeze(-1) * precision_root
        w = basis.root(prior).mT @ precision_root
        c = torch.linalg.cholesky(identity + w @ w.mT)
        mean = torch.cholesky_solve(w @ (precision_root.mT @ targets.unsqueeze(-1)), c).squeeze(-1)
        scale = linalg.solve_triangular(c.mT, identity.expand_as(c), upper=True)
        return WhitenedGaussian(mean, scale, "full")
