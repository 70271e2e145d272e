"""The gamma divergence."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dgp.guides.guide_pass import WeightedTrace
from pyro_dgp.likelihoods import log_gamma_score
from pyro_dgp.losses.base import Loss, Site
from pyro_dgp.losses.row_terms import row_terms


class GammaDivergence(Loss):
    """Robust variational inference: the ELBO with a gamma score in the place of ``log p(y | f)``.

    The term of an observation is ::

        gamma / (gamma - 1) E_q [ p(y_n | f_n)^(gamma - 1) / (int p(y | f_n)^gamma dy)^((gamma - 1) / gamma) - 1 ]

    (Knoblauch, Jewson and Damoulas 2019; gamma-DGP of [DSPP] 5.2, whose footnote 6 gives half of it). An outlier, whose
    density is nearly zero, costs a bounded amount. As gamma falls to 1 the term becomes ``E_q log p(y_n | f_n)`` and the
    loss becomes the ELBO. The constant -1 serves this limit and has no gradient. At any other gamma the objective is no
    bound on ``log p(y)``. Targets with a :class:`~pyro_dgp.Standardizer` are scored as standardised: in units of their own, the score
    would weigh the data by ``scale^(-(gamma - 1) / gamma)``.

    :param num_data: size N of the whole training set when mini-batches are passed. The sum over the rows of a batch is
        scaled by ``N / N_batch``, so that its balance with the KL stays that of all data. ``None`` if all data are passed
        each time.
    :param gamma: above 1; 1.03 is usual.

    >>> import torch
    >>> from pyro_dgp import DeepGP, GammaDivergence, InducingPoints, MonteCarlo, Variational, fit
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> y[3] = 40.0  # an outlier
    >>> guide = Variational(DeepGP(x, width=1), InducingPoints(20), MonteCarlo(10))
    >>> guide.initialize(x, y)
    >>> fit(GammaDivergence(num_data=20)(guide.model, guide), x, y, steps=1).losses[0] < 100  # nats per observation
    True
    """

    def __init__(self, num_data: int | None = None, gamma: float = 1.03) -> None:
        super().__init__(num_data)
        if not gamma > 1:
            raise ValueError(f"gamma must be above 1, got {gamma}: for gamma = 1 use pyro_dgp.ELBO")
        self.gamma = gamma

    def figures(self) -> dict[str, float]:
        """Return ``gamma`` by its name."""
        return {"gamma": self.gamma}

    def observed(self, site: Site, weighted: WeightedTrace) -> Tensor:
        """Return ``sum_n sum_s w_s`` times the gamma score of row n in component s."""
        terms, log_weights = row_terms(
            site,
            weighted,
            lambda fn, y: fn.log_expected_gamma_score(y, self.gamma),
            lambda fn, y: log_gamma_score(fn, y, self.gamma),
        )
        return self.gamma / (self.gamma - 1) * (log_weights.exp() @ torch.expm1(terms)).sum()
