"""A model that is trained by its marginal likelihood, and what there is to say of the fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from pyro import poutine

from pyro_dgp.diagnosis.symptoms import Finding, found
from pyro_dgp.guides.sites import is_random
from pyro_dgp.internal.parameters import evaluating, module_local_parameters
from pyro_dgp.internal.rows import RowArguments
from pyro_dgp.internal.spreads import spread_along
from pyro_dgp.losses.marginal import MarginalLikelihood


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

    @torch.no_grad()
    def findings(self, losses: Sequence[float] = ()) -> list[Finding]:
        """Return what is found of the fit and of its training run."""
        return [*self._beside_constant(), *self.on_losses(losses)]

    def remarks(self, losses: Sequence[float], site: str | None = None) -> list[str]:
        """Return a sentence for each of them. There is one observation, so that ``site`` says nothing."""
        return [finding.sentence for finding in self.findings(losses)]

    def _beside_constant(self) -> Iterator[Finding]:
        """Compare the marginal likelihood with a normal of the targets, which looks at no input.

        Residuals at the training rows would tell nothing: with short lengthscales a Gaussian process goes through any targets. Where there is
        nothing to be found, fitted hyperparameters gain less than a nat each, which is what Akaike's criterion counts (Akaike 1974). With as many
        parameters as rows, such as the weights of a network, such a count tells nothing.
        """
        _, y = self.rows.args
        log_prob, axis = self._log_prob(), self.rows.axis_of(y)
        if log_prob is None or axis is None or not bool(((spread := spread_along(y, axis)) > 0).all()):
            return
        constant = -len(self.rows) * float((0.5 * math.log(2 * math.pi * math.e) + spread.log()).sum())
        count = sum(each.numel() for each in self.objective.parameters() if each.requires_grad)
        if count < len(self.rows) and log_prob - constant <= count:
            yield found("no better than a constant", own=log_prob, constant=constant, count=count)

    def _log_prob(self) -> float | None:
        """Return the log marginal likelihood, nats in total; nothing where y is not all that is observed."""
        modules = [self.objective, *self.objective.model_modules]
        with module_local_parameters(*modules), evaluating(*modules):
            trace = poutine.trace(self.objective.model).get_trace(*self.rows.args, **self.rows.kwargs)
            sites = [site for site in trace.nodes.values() if is_random(site) and site["is_observed"]]
            if len(sites) != 1 or sites[0]["value"] is not self.rows.args[1]:
                return None
            return float(trace.log_prob_sum())
