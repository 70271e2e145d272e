"""The predictive log-likelihood."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dgp.guides.guide_pass import WeightedTrace
from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.losses.base import Loss, Site
from pyro_dgp.losses.row_terms import log_prob, row_terms


class PredictiveLogLikelihood(Loss):
    """Regularised maximum likelihood of the predictive mixture, ``sum_n log p(y_n | x_n) - beta sum KL``.

    ``p(y_n | x_n) = sum_s w_s int p(y_n | f) q_s(f_n) df`` over the components of the propagation ([DSPP] 16 for one
    layer: PPGPR; 21 for several). The objective trains a predictive density and approximates no posterior. With Monte
    Carlo components the logarithm of their mean is biased downwards.

    :param num_data: size N of the whole training set when mini-batches are passed. The sum over the rows of a batch is
        scaled by ``N / N_batch``, so that its balance with the KL stays that of all data. ``None`` if all data are passed
        each time.
    :param beta: factor of the KL terms, beta_reg of the paper.

    >>> import torch
    >>> from pyro_dgp import DeepGP, InducingPoints, PredictiveLogLikelihood, SigmaPoints, Variational, fit
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> guide = Variational(DeepGP(x, width=1), InducingPoints(20, hidden_scale=1.0), SigmaPoints("qr3", 8))
    >>> guide.initialize(x, y)
    >>> result = fit(PredictiveLogLikelihood(num_data=20, beta=0.05)(guide.model, guide), x, y, steps=20)
    >>> result.losses[-1] < result.losses[0]
    True
    """

    trains_density = True

    def __init__(self, num_data: int | None = None, beta: float = 0.05) -> None:
        super().__init__(num_data)
        if not beta >= 0:
            raise ValueError(f"beta must not be negative, got {beta}: give 0 or more")
        self.beta = beta

    def regularizer_weight(self) -> float:
        """Return beta."""
        return self.beta

    def figures(self) -> dict[str, float]:
        """Return ``beta`` by its name."""
        return {"beta": self.beta}

    def observed(self, site: Site, weighted: WeightedTrace) -> Tensor:
        """Return ``sum_n log sum_s w_s p_s(y_n)``."""
        terms, log_weights = row_terms(site, weighted, CollapsedObservation.predictive_log_prob, log_prob)
        return torch.logsumexp(log_weights.unsqueeze(-1) + terms, 0).sum()
