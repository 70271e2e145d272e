"""Symptoms of chains: divergences, chains that disagree, chains that are mirror images of each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from pyro import poutine
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from pyro_dgp.diagnosis.guide_checks import GuideSubject
from pyro_dgp.diagnosis.prediction_checks import PREDICTION_CHECKS
from pyro_dgp.diagnosis.subject import Noise, Rows, Subject, subject_of
from pyro_dgp.diagnosis.symptoms import Finding, found
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.parameters import modules_of
from pyro_dgp.internal.site_names import process_key, whitened_site
from pyro_dgp.likelihoods import Gaussian, Observation
from pyro_dgp.mcmc.chains import Chains
from pyro_dgp.mcmc.conditioning import KeptConditions
from pyro_dgp.mcmc.diagnostics import LARGEST_R_HAT, convergence, doubts
from pyro_dgp.mcmc.from_draws import PosteriorDraws
from pyro_dgp.mcmc.sghmc import InducingDraws
from pyro_dgp.mcmc.whitening import without_whitening
from pyro_dgp.prediction.predict import predict
from pyro_dgp.prediction.target_kinds import means_of

#: Share of the excess of R-hat over 1 that is left where mirror images are what is wrong.
EXCESS_LEFT = 0.5
#: Number of steps of a draw times their size, in units of the metric, below which a chain of HMC or NUTS hardly moves.
SHORTEST_PATH = 0.05
#: Draws of all chains whose functions are looked at, at most.
MOST_DRAWS = 400


class ChainSubject(Subject):
    """Chains at some rows.

    :ivar chains: the chains; of draws without chains one.
    """

    def __init__(self, chains: Chains, posterior: PosteriorDraws, rows: Rows) -> None:
        super().__init__(replace(posterior, conditions=KeptConditions()), rows)
        self.chains, self.model = chains, without_whitening(chains.model)

    @property
    def modules(self) -> Sequence[nn.Module]:
        """See :class:`~pyro_dgp.diagnosis.subject.Subject`."""
        return modules_of(self.model)

    @cached_property
    def trace(self) -> Trace:
        """See :class:`~pyro_dgp.diagnosis.subject.Subject`; hyperparameters are those of the last draw."""

        def traced(model: Any) -> Trace:
            return poutine.trace(model).get_trace(self.x, self.y, **self.arguments)

        last, drawn = {name: values[0, -1] for name, values in self.chains.draws.items()}, Trace()
        for name, site in traced(self.model).nodes.items():
            if name in last and site["type"] == "sample" and last[name].shape == site["value"].shape:
                drawn.add_node(name, **(site | {"value": last[name]}))
        return traced(poutine.replay(self.model, trace=drawn))

    def priors(self) -> Iterator[tuple[str, FunctionPrior]]:
        """See :class:`~pyro_dgp.diagnosis.subject.Subject`."""
        for name, site in self.trace.nodes.items():
            if isinstance(site.get("fn"), Observation):
                yield from ((process_key(name, own), each) for own, each in site["fn"].priors.items())
            elif isinstance(site.get("fn"), FunctionPrior):
                yield name, site["fn"]

    def noises(self) -> Iterator[Noise]:
        """Iterate over noise variances: point estimates, and medians of those that were sampled."""
        yield from super().noises()
        for name, module in (pair for each in self.modules for pair in each.named_modules()):
            values = self.chains.draws.get(f"{name}.variance")
            if isinstance(module, Gaussian) and values is not None:
                yield Noise(name, values.flatten(0, 1).median(0).values.reshape(-1), 0.0)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of chains, and of draws of each."""
        chains, draws = next(iter(self.chains.draws.values())).shape[:2] if self.chains.draws else (1, 1)
        return chains, draws

    def by_chain(self, site: str | None) -> Tensor:
        """Return the means of a site given each draw, or probabilities of classes, ``(chains, draws, N, ...)``.

        :param site: the observation, or a hidden function.
        """
        chains, draws = self.shape
        kept = chains * min(draws, max(1, MOST_DRAWS // chains))
        components: Any = predict(self.fit, self.x, kept, site=site, **self.arguments).mixture().components
        return means_of(components).unflatten(0, (chains, -1))

    def hidden_functions(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over the sampled values of hidden functions by site, ``(chains, draws, N, D_out)``."""
        for name, site in self.trace.nodes.items():
            if isinstance(site.get("fn"), FunctionPrior) and whitened_site(name) in self.chains.draws:
                values = self.by_chain(name)
                yield name, values if values.dim() > 3 else values.unsqueeze(-1)


def disagreement(subject: ChainSubject) -> Iterator[Finding]:
    """Look for chains that hardly move, count divergences, and take R-hat of predictions and of the log density."""
    if not subject.chains.draws:
        return
    quantities = {"f": subject.by_chain(subject.site)}
    stats = subject.chains.stats
    if "lp" in stats:
        quantities["lp"] = quantities["f"].new_tensor(stats["lp"])
    if {"step_size", "n_steps"} <= set(stats):
        paths = np.median(stats["step_size"] * stats["n_steps"], axis=1)
        if paths.min() < SHORTEST_PATH:
            yield found("frozen chains", step=float(stats["step_size"][paths.argmin()].min()), path=float(paths.min()))
    chains, draws = subject.shape
    yield from doubts(convergence(quantities, stats.get("diverging")), chains * draws)


def mirror_images(subject: ChainSubject) -> Iterator[Finding]:
    """Look for hidden functions whose R-hat falls once each chain has the sign of the first."""
    for name, values in subject.hidden_functions():
        if values.shape[0] < 2 or values.shape[1] < 4:
            continue
        means = values.mean(1)
        signs = (means * means[:1]).sum(-2).sign()
        signs[signs == 0] = 1.0
        before, after = _r_hat(values), _r_hat(values * signs[:, None, None])
        if before > 2 * LARGEST_R_HAT - 1 and after - 1 < EXCESS_LEFT * (before - 1):
            yield found("mirror images", name=name, before=before, after=after)


def _r_hat(values: Tensor) -> float:
    """Return the median over rows, of the worst output, of Gelman and Rubin's R-hat of ``(chains, draws, N, D_out)``."""
    draws = values.shape[1]
    within, between = values.var(1).mean(0), values.mean(1).var(0)
    ratio = ((draws - 1) / draws + between / within.clamp_min(1e-300)).sqrt()
    return float(ratio.median(0).values.max())


ChainSubject.checks = (disagreement, mirror_images, *PREDICTION_CHECKS)


@subject_of.register
def subject_of_chains(fit: Chains, rows: Rows) -> Subject:
    """Return what is looked at of chains."""
    return ChainSubject(fit, fit.posterior, rows)


@subject_of.register
def subject_of_draws(fit: PosteriorDraws, rows: Rows) -> Subject:
    """Return what is looked at of draws, as of one chain."""
    draws = {name: values.unsqueeze(0) for name, values in fit.draws.items()}
    return ChainSubject(Chains(draws, model=fit.model, args=fit.args), fit, rows)


@subject_of.register
def subject_of_inducing_draws(fit: InducingDraws, rows: Rows) -> Subject:
    """Return what is looked at of draws of a guide's inducing variables: the guide, and the predictions of the draws."""
    return GuideSubject(fit.guide, rows, fit)
