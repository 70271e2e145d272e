"""The evidence lower bound."""

from __future__ import annotations

from torch import Tensor

from pyro_dgp.guides.guide_pass import WeightedTrace
from pyro_dgp.likelihoods import CollapsedObservation
from pyro_dgp.losses.base import Loss, Site
from pyro_dgp.losses.row_terms import component_terms, log_prob


class ELBO(Loss):
    """Variational ELBO, ``sum_n E_q log p(y_n | f_n) - sum KL`` ([DSVI] 3.8, [DSPP] 13).

    The likelihood takes the expectation over the last layer (in closed form or by quadrature). The expectation over the
    hidden layers is the weighted mean over the components of the guide's propagation. The objective is a lower bound on
    ``log p(y)`` for inducing points with full or diagonal covariance under Monte Carlo. Other processes say in their own
    docstrings whether it is.

    :param num_data: size N of the whole training set when mini-batches are passed. The sum over the rows of a batch is
        scaled by ``N / N_batch``, so that its balance with the KL stays that of all data. ``None`` if all data are passed
        each time.

    >>> import torch
    >>> from pyro_dgp import ELBO, DeepGP, InducingPoints, MonteCarlo, Variational, fit
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> guide = Variational(DeepGP(x, width=1), InducingPoints(20), MonteCarlo(10))
    >>> guide.initialize(x, y)
    >>> result = fit(ELBO(num_data=20)(guide.model, guide), x, y, steps=20)
    >>> result.losses[-1] < result.losses[0]
    True
    """

    approximates_posterior = True

    def observed(self, site: Site, weighted: WeightedTrace) -> Tensor:
        """Return ``sum_n sum_s w_s E log p(y_n | f_n)``."""
        terms, log_weights = component_terms(site, weighted, CollapsedObservation.expected_log_prob, log_prob)
        return (log_weights.exp() @ terms).sum()
