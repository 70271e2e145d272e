"""Symptoms of a trained guide: its layers, its inducing points, its inference functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from pyro_dgp.diagnosis.prediction_checks import PREDICTION_CHECKS, exploding_loss
from pyro_dgp.diagnosis.subject import Rows, Subject, subject_of
from pyro_dgp.diagnosis.symptoms import Finding, found
from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import SiteRecord
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.internal.spreads import scale_along
from pyro_dgp.kernels.stationary import StationaryCovariance
from pyro_dgp.likelihoods import Observation
from pyro_dgp.processes import AmortizedProcess, WhitenedProcess

#: Spread of a hidden layer below which it is flat, and share of its spread below which it is its mean.
FLAT = 0.01
#: Standard deviations by which a prediction is missed, which a normal does at one row of 16,000, and share of rows that miss by as much.
MISSED, SHARE_MISSED = 4.0, 0.05
#: Distance between two of M points, as a share of their spread over M, below which they coincide: a hundredth of the distance of M points
#: that are evenly spaced on a line. And share of the points that have to coincide.
COINCIDING, SHARE_COINCIDING = 0.01, 0.1


class GuideSubject(Subject):
    """A guide at some rows.

    :param fit: what predicts, if it is not the guide itself.
    """

    def __init__(self, guide: Variational, rows: Rows, fit: Any = None) -> None:
        guide.require_initialized()
        super().__init__(guide if fit is None else fit, rows, guide.groups)
        self.guide = guide

    @property
    def modules(self) -> Sequence[nn.Module]:
        """See :class:`~pyro_dgp.diagnosis.subject.Subject`."""
        return [*self.guide.model_modules, self.guide]

    @cached_property
    def trace(self) -> Trace:
        """See :class:`~pyro_dgp.diagnosis.subject.Subject`."""
        return self.guide.components(self.x, self.y, new_rows=True, **self.arguments).trace

    @property
    def fewest(self) -> int:
        """See :class:`~pyro_dgp.diagnosis.subject.Subject`."""
        processes = self.guide.processes.children()
        return max((each.basis.size for each in processes if isinstance(each, WhitenedProcess)), default=10)

    def priors(self) -> Iterator[tuple[str, FunctionPrior]]:
        """See :class:`~pyro_dgp.diagnosis.subject.Subject`."""
        for name, site in self.trace.nodes.items():
            record = SiteRecord.of(site) if "infer" in site else None
            prior = None if record is None else record.prior
            if isinstance(prior, Observation):
                yield from ((process_key(name, own), each) for own, each in prior.priors.items())
            elif isinstance(prior, FunctionPrior):
                yield name, prior


def flat_layers(subject: GuideSubject) -> Iterator[Finding]:
    """Look for hidden layers that hardly move."""
    for name, spread, _ in _hidden_layers(subject):
        if spread < FLAT:
            yield found("flat hidden layer", name=name, spread=spread)


def idle_layers(subject: GuideSubject) -> Iterator[Finding]:
    """Look for hidden layers that move, and are no more than their mean function."""
    for name, spread, own in _hidden_layers(subject):
        if spread >= FLAT and own < FLAT * spread:
            yield found("idle hidden layer", name=name)


def _hidden_layers(subject: GuideSubject) -> Iterator[tuple[str, float, float]]:
    """Iterate over hidden layers: site, spread of the layer over the rows, and spread of what it adds to its mean function."""
    for name in list(subject.guide.processes._modules)[:-1]:
        record = SiteRecord.of(subject.trace.nodes[name]) if name in subject.trace.nodes else None
        if record is None or record.marginal is None or not isinstance(record.prior, FunctionPrior):
            continue
        value, mean = (
            each.flatten(0, -3).mean(0) if each.dim() > 2 else each
            for each in (record.marginal.mean, record.prior.mean)
        )
        yield name, float(value.std(0).max()), float((value - mean).std(0).max())


def unserved_inputs(subject: GuideSubject) -> Iterator[Finding]:
    """Ask the basis of each process about the inputs of its Gaussian process."""
    for key, prior in subject.priors():
        process = getattr(subject.guide.processes, key, None)
        if isinstance(process, WhitenedProcess):
            for sentence in process.basis.remarks(prior):
                yield found("basis", sentence=sentence)


def coinciding_points(subject: GuideSubject) -> Iterator[Finding]:
    """Look for inducing points that are nearer to each other than any spacing of as many points."""
    for key, prior in subject.priors():
        process = getattr(subject.guide.processes, key, None)
        points = process.basis.points(prior) if isinstance(process, WhitenedProcess) else None
        if points is None or points.shape[-2] < 2:
            continue
        points = _in_lengthscales(points, prior)
        size, left = points.shape[-2], min(map(num_distinct, points.reshape(-1, *points.shape[-2:])))
        if size - left >= max(1.0, SHARE_COINCIDING * size):
            yield found("coinciding points", name=key, count=size - left, size=size, left=left)


def _in_lengthscales(points: Tensor, prior: FunctionPrior) -> Tensor:
    """Return points in lengthscales of the kernel, those of all outputs side by side; for other kernels in standard deviations of the inputs."""
    if isinstance(prior.covariance, StationaryCovariance):
        return prior.covariance.warp(points.unsqueeze(-3)).movedim(-3, -2).flatten(-2)
    return points / scale_along(prior.x.reshape(-1, prior.x.shape[-1]), 0)


def num_distinct(points: Tensor) -> int:
    """Return how many points are left if those that coincide with an earlier one are dropped."""
    distance = torch.cdist(points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist")
    spread = points.double().var(0, correction=0).sum().sqrt()
    same = (distance <= COINCIDING * spread / len(points)).tril(-1)
    return int((~same.any(-1)).sum())


def missed_far_out(subject: GuideSubject) -> Iterator[Finding]:
    """Look for rows that an amortised guide misses, where these lie farther from the middle of the rows than the others."""
    amortised = any(isinstance(each, AmortizedProcess) for each in subject.guide.processes.children())
    if not amortised or subject.mean is None or subject.x.dim() != 2 or subject.mean.shape != subject.y.shape:
        return
    off = (subject.y - subject.mean).abs() / subject.prediction.variance.sqrt()
    missed = (off > MISSED).reshape(len(off), -1).any(-1)
    distance = (subject.x - subject.x.median(0).values).norm(dim=-1)
    share = float(missed.double().mean())
    if share >= SHARE_MISSED and (missed.all() or distance[missed].mean() > distance[~missed].mean()):
        yield found("amortised extrapolation", share=share, far=MISSED)


GuideSubject.checks = (
    *PREDICTION_CHECKS,
    exploding_loss,
    flat_layers,
    unserved_inputs,
    coinciding_points,
    missed_far_out,
)


@subject_of.register
def subject_of_guide(fit: Variational, rows: Rows) -> Subject:
    """Return what is looked at of a guide."""
    return GuideSubject(fit, rows)
