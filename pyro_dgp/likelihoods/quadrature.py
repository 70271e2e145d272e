"""Integrals over one function by Gauss-Hermite quadrature."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dgp.internal.quadrature import gauss_hermite
from pyro_dgp.likelihoods.conditional import Conditional, one_output
from pyro_dgp.likelihoods.gamma_score import log_gamma_score
from pyro_dgp.likelihoods.moments import Moments


class GaussHermite(Conditional):
    """Base of likelihoods of one function, integrated by Gauss-Hermite quadrature with ``NODES`` nodes."""

    NODES = 20
    integration = "Gauss-Hermite, 20 nodes"

    def _nodes(self, f: Moments) -> tuple[Tensor, Tensor]:
        """Function values at the nodes ``(..., N, K)`` and log weights ``(K,)``."""
        mean, scale = one_output(f.mean), one_output(f.variance).sqrt()
        nodes, log_weights = (values.to(mean) for values in gauss_hermite(self.NODES))
        return mean[..., None] + scale[..., None] * nodes, log_weights

    def _quadrature(self, y: Tensor, f: Moments) -> tuple[Tensor, Tensor]:
        """``log p(y | f_k)`` at the nodes ``(..., N, K)`` and log weights ``(K,)``."""
        at, log_weights = self._nodes(f)
        log_prob: Tensor = self.given(at.unsqueeze(-1)).base_dist.log_prob(y[..., None].expand(at.shape))
        return log_prob, log_weights

    def expected_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """See :class:`Conditional`."""
        log_prob, log_weights = self._quadrature(y, f)
        return (log_weights.exp() * log_prob).sum(-1)

    def predictive_log_prob(self, y: Tensor, f: Moments) -> Tensor:
        """See :class:`Conditional`."""
        log_prob, log_weights = self._quadrature(y, f)
        return torch.logsumexp(log_weights + log_prob, -1)

    def log_expected_gamma_score(self, y: Tensor, f: Moments, gamma: float) -> Tensor:
        """See :class:`Conditional`."""
        at, log_weights = self._nodes(f)
        score = log_gamma_score(self.given(at.unsqueeze(-1)).base_dist, y[..., None].expand(at.shape), gamma)
        return torch.logsumexp(log_weights + score, -1)
