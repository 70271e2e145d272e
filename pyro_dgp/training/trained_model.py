"""A model that is trained by its marginal likelihood, and what there is to say of the fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from pyro import poutine

from pyro_dgp.diagnosis.symptoms import Finding, found
from pyro_dgp.guides.sites import is_random
from pyro_dgp.internal.parameters import evaluating, module_local_parameters
from pyro_dgp.internal.rows import RowArguments
from pyro_dgp.internal.spreads import spread_along
from pyro_dgp.losses.marginal import MarginalLikelihood

#: Probability of a gain by chance above which it is said that chance may have made it.
CHANCE = 0.05


class TrainedModel:
    """A model without latent sites, and what it is trained on.

    :param objective: the marginal likelihood of the model.
    :param rows: x, y and further arguments of the model.
    :param on_losses: what is found of the losses.
    """

    def __init__(
        self,
        objective: MarginalLikelihood,
        rows: RowArguments,
        *,
        on_losses: Callable[[Sequence[float]], Iterable[Finding]],
    ) -> None:
        self.objective, self.rows, self.on_losses = objective, rows, on_losses

    def remarks(self, losses: Sequence[float], site: str | None = None) -> list[str]:
        """Return sentences on the fit and on its training run. There is one observation, so that ``site`` says nothing."""
        return KnownFindings(self._beside_constant(), self.on_losses).remarks(losses)

    def __reduce__(self) -> tuple[type[KnownFindings], tuple[Any, ...]]:
        """Travel as what is found now: a model that is a function does not pickle."""
        return KnownFindings, (self._beside_constant(), self.on_losses)

    @torch.no_grad()
    def _beside_constant(self) -> list[Finding]:
        """Compare the marginal likelihood with a normal of the targets, which looks at no input, by the likelihood-ratio test (Wilks 1938).

        Residuals at the training rows would tell nothing: with short lengthscales a Gaussian process goes through any targets. Where there is nothing to be
        found, twice the gain of k hyperparameters more than the normal has is a draw of a chi-square distribution with k degrees of freedom, or less. With as
        many hyperparameters as targets, such as the weights of a network, this tells nothing.
        """
        _, y = self.rows.args
        log_prob, axis = self._log_prob(), self.rows.axis_of(y)
        if log_prob is None or axis is None or not bool(((spread := spread_along(y, axis)) > 0).all()):
            return []
        constant = -len(self.rows) * float((0.5 * math.log(2 * math.pi * math.e) + spread.log()).sum())
        count = sum(each.numel() for each in self.objective.parameters() if each.requires_grad)
        gain, of_constant = log_prob - constant, 2 * spread.numel()
        if gain < -of_constant:
            return [found("worse than a constant", own=log_prob, constant=constant)]
        more = max(1, count - of_constant)
        chance = float(torch.special.gammaincc(torch.tensor(more / 2.0), torch.tensor(max(0.0, gain))))
        if gain <= 0 or (count < y.numel() and chance > CHANCE):
            return [found("no better than a constant", ahead=max(0.0, gain), count=count)]
        return []

    def _log_prob(self) -> float | None:
        """Return the log marginal likelihood, nats in total; nothing where y is not all that is observed, or is observed in other units."""
        modules, y = [self.objective, *self.objective.model_modules], self.rows.args[1]
        with torch.random.fork_rng(), module_local_parameters(*modules), evaluating(*modules):
            trace = poutine.trace(self.objective.model).get_trace(*self.rows.args, **self.rows.kwargs)
            sites = [site for site in trace.nodes.values() if is_random(site) and site["is_observed"]]
            values = [site["value"] for site in sites]
            if len(sites) != 1 or values[0].shape != y.shape or not torch.equal(values[0], y):
                return None
            return float(trace.log_prob_sum())


class KnownFindings:
    """Findings on a model beside a constant, without the model, and what looks at the losses of its training.

    :param findings: those beside a constant.
    :param on_losses: what is found of the losses.
    """

    def __init__(self, findings: list[Finding], on_losses: Callable[[Sequence[float]], Iterable[Finding]]) -> None:
        self.findings, self.on_losses = findings, on_losses

    def remarks(self, losses: Sequence[float], site: str | None = None) -> list[str]:
        """Return a sentence for each finding, as :meth:`TrainedModel.remarks` does."""
        return [finding.sentence for finding in (*self.findings, *self.on_losses(losses))]
