"""The energy of approximate expectation propagation."""

from __future__ import annotations

from numbers import Real

import torch
from torch import Tensor

from pyro_dgp.guides.guide_pass import WeightedTrace
from pyro_dgp.guides.structure import ModelStructure
from pyro_dgp.internal.distributions import ObservedPart
from pyro_dgp.likelihoods import CollapsedObservation, RowObservation
from pyro_dgp.likelihoods.missing import MissingConditional
from pyro_dgp.losses.base import Loss, Site
from pyro_dgp.losses.row_terms import row_terms, rows_observed
from pyro_dgp.processes.reading import Cavity

#: Least power in double precision and in single: with lower ones the energy is rounding.
_LEAST = {torch.float64: 1e-11, torch.float32: 2e-3}


class ApproximateEP(Loss):
    """Minus the energy of approximate expectation propagation with tied factors and power alpha.

    Each of the N rows has the same factor, the N-th root of q(v) / p(v). The cavity is q without a share ``beta = alpha / N`` of
    all of them. The objective is ::

        (1 / alpha) sum_n log E_cavity [ p(y_n | f_n)^alpha ] - R

    with R of :meth:`~pyro_dgp.processes.whitened_gaussian.WhitenedGaussian.cavity`, which tends to the KL as alpha falls to 0, and
    the objective to the ELBO (Li, Hernandez-Lobato and Turner 2015; Bui, Hernandez-Lobato, Hernandez-Lobato, Li and Turner 2016;
    [Ashman 2020] section 3.1).

    **It is no bound**: it may exceed the log evidence. With alpha = 1 and one layer it is not FITC, since the factors are tied.
    Hyperparameters with priors and other latent sites keep the KL of variational inference.

    Carried by :class:`~pyro_dgp.MomentMatching` nothing is drawn. Carried by samples, the logarithm of their mean is biased
    downwards.

    Every one of the N rows has a factor, so that rows without a target have to be left out: they would make each share smaller. A row of which
    some outputs are missing stays (:class:`~pyro_dgp.MissingOutputs`), and one that ``poutine.mask`` leaves out counts.

    :param num_data: N, the size of the whole training set, which also weights the rows of a mini-batch.
    :param alpha: power, above 0 and at most 1; 1 is expectation propagation, and learns less noise than there is where rows are few. Single precision takes 0.002
        or more, double precision 1e-11.
    :raises ValueError: for a power too near 0, a likelihood without a power alpha (``Softmax`` has alpha = 1 alone), a point estimate, a process that has no cavity, a model
        of two observed sites, and rows of which every output is missing.

    >>> import torch
    >>> from pyro_dgp import ApproximateEP, DeepGP, InducingPoints, MomentMatching, Variational, fit
    >>> x, y = torch.linspace(-1, 1, 20)[:, None], torch.randn(20)
    >>> guide = Variational(DeepGP(x, width=1, kernel="rbf"), InducingPoints(10), MomentMatching())
    >>> guide.initialize(x, y)
    >>> result = fit(ApproximateEP(num_data=20)(guide.model, guide), x, y, steps=20)
    >>> result.losses[-1] < result.losses[0]
    True
    """

    approximates_posterior = True

    def __init__(self, num_data: int, alpha: float = 0.5) -> None:
        super().__init__(num_data)
        if not isinstance(alpha, Real) or not 0 < alpha <= 1:
            raise ValueError(f"alpha is above 0 and at most 1, got {alpha!r}: give 1.0 for expectation propagation")
        self.alpha: float = alpha

    @property
    def reading(self) -> Cavity:
        """The cavity of one row."""
        assert self.num_data is not None  # it is told at the start
        return Cavity(self.alpha / self.num_data)

    def figures(self) -> dict[str, float]:
        """Return ``alpha`` by its name."""
        return {"alpha": self.alpha}

    def observed(self, site: Site, weighted: WeightedTrace) -> Tensor:
        """Return ``(1 / alpha) sum_n log sum_s w_s E p_s(y_n | f_n)^alpha``."""
        alpha, least = self.alpha, _LEAST.get(weighted.log_weights.dtype, 0.0)
        if alpha < least:
            raise ValueError(
                f"alpha = {alpha:g} is so near 0 that 1 / alpha times the logarithm of a mean of powers is rounding: take {least:g} or more, or ELBO, "
                "to which the energy tends"
            )
        _require_targets(site)
        terms, log_weights = row_terms(
            site,
            weighted,
            lambda observation, y: CollapsedObservation.log_expected_power(observation, y, alpha),
            lambda distribution, y: alpha * distribution.log_prob(y),
        )
        return torch.logsumexp(log_weights.unsqueeze(-1) + terms, 0).sum() / alpha

    def _require_one_count(
        self, sites: list[Site], weighted: WeightedTrace, structure: ModelStructure, batch: int | None
    ) -> None:
        super()._require_one_count(sites, weighted, structure, batch)
        observed = [site["name"] for site in sites if site["is_observed"]]
        if len(observed) > 1:
            raise ValueError(
                f"approximate expectation propagation has one factor for each row, and the model observes {len(observed)} sites "
                f"({', '.join(observed)}): observe them as one, or use ELBO"
            )
        for site in (site for site in sites if site["is_observed"]):
            counts = rows_observed(site, weighted)
            if counts is None and batch != 1:
                raise ValueError(
                    f"approximate expectation propagation has one factor for each row, and the distribution of the site {site['name']!r} joins the rows: use ELBO"
                )
            if counts is not None and batch is not None and batch not in counts:
                raise ValueError(
                    f"approximate expectation propagation has one factor for each row, and the site {site['name']!r} observes {counts[0]} values of {batch} "
                    "rows: pass one row for each value, or use ELBO"
                )


def _require_targets(site: Site) -> None:
    """Raise for rows of which every output is missing: their factor would be one, and the others' shares smaller."""
    fn = site["fn"]
    conditional = getattr(fn, "conditional", None)
    if isinstance(conditional, MissingConditional):
        is_vector = conditional.outputs > 1
    elif isinstance(fn, RowObservation) and isinstance(fn.base_dist, ObservedPart):
        # function values are a site of their own
        is_vector = fn.reinterpreted_batch_ndims > 1
    else:
        return
    missing = site["value"].isnan()
    empty = int((missing.all(-1) if is_vector else missing).sum())
    if empty:
        raise ValueError(
            f"approximate expectation propagation has one factor for each row, and {empty} rows of the site {site['name']!r} have no target: "
            "leave these rows out of x, y and num_data, or use ELBO"
        )
