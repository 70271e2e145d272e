"""Symptoms that predictions and data show, whatever made the fit."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pyro_dgp.diagnosis.subject import Subject
from pyro_dgp.diagnosis.symptoms import Finding, found
from pyro_dgp.guides.data_scales import FAR, beside_mean, out_of_scale
from pyro_dgp.internal.spreads import spread_along
from pyro_dgp.kernels.stationary import StationaryCovariance

#: Share of the variance of the targets below which a fit explains nothing. Of N rows M inducing points explain some M / N by chance: twice
#: that share is nothing too, if it is not above the second number.
EXPLAINED, BY_CHANCE = 0.02, 0.1
#: Share of the variance of the targets below which noise has collapsed: a fit would leave less than a thousandth, which measured targets
#: do not allow. Noise within a tenth of its floor has collapsed too.
COLLAPSED, AT_FLOOR = 1e-3, 1.1
#: Predictive variance at the rows, in noise variances, up to which the noise is what makes it. The posterior variance of f at an observed row is at
#: most the noise variance, so that this is 2 at most where nothing stands in for the noise; the rest is for the layers below.
BY_NOISE = 3.0
#: Nats a row by which held-out rows may be worse than a constant normal: a density that is too low by e.
EXPLODING = 1.0
#: Nats a row by which what lies beside the training rows may be worse than these: as far as held-out rows of a validated fit may be.
APART = 0.3
#: Neighbours of each row, whose residuals are compared.
NEIGHBOURS = 3
#: Rounding of inputs, as a share of a lengthscale or of their standard deviation, that shows: it moves f by a millionth of its variance, the
#: size of the jitter.
COARSE = 1e-3
#: Standard deviation of targets below which the floor of the noise, 1e-4, is more than a hundredth of their variance.
SMALL = 0.1


def shares_left(subject: Subject) -> Tensor | None:
    """Return the share of the variance of the observed targets that a fit leaves, of each output ``(D_out,)``.

    The variance is that within groups. It is NaN for an output whose targets are all the same; there is nothing for classes.
    """
    y, mean = subject.y, subject.mean
    if mean is None:
        return None
    event = subject.prediction.event_shape
    rows, seen = y.dim() - len(event) - 1, ~y.isnan()
    spreads = spread_along(y, rows).square() * seen.sum(rows, keepdim=True)
    left, whole = (each.reshape(-1, event.numel()).sum(0) for each in ((y - mean).square().nan_to_num(), spreads))
    return left / torch.where(whole > 0, whole, math.nan)


def is_of_no_use(subject: Subject, left: Tensor) -> Tensor:
    """Tell of each output whether what a fit leaves of it is all that there is."""
    return left > 1 - max(EXPLAINED, min(BY_CHANCE, 2 * subject.fewest / subject.total))


def are_all_of_no_use(subject: Subject, left: Tensor) -> bool:
    """Tell whether that holds for every output whose targets vary, and for one at least."""
    known = left[~left.isnan()]
    return bool(len(known) and is_of_no_use(subject, known).all())


def unexplained_targets(subject: Subject) -> Iterator[Finding]:
    """Compare the predictive mean with the mean of the targets of each output."""
    left = shares_left(subject)
    if left is None or not bool((useless := is_of_no_use(subject, left)).any()):
        return
    names = [str(number) for number in useless.nonzero().flatten().tolist()]
    some = f"output{'s' if len(names) > 1 else ''} {', '.join(names)} of the targets"
    targets = "the targets" if are_all_of_no_use(subject, left) else some
    yield found("explains nothing", targets=targets, error=float(left[useless].mean().sqrt()))


def collapsed_noise(subject: Subject) -> Iterator[Finding]:
    """Compare noise variances with their floor and with the targets, where predictions are as narrow as the noise; each output by itself."""
    noises = [*subject.noises()]
    standardised = subject.standardised
    if not noises or subject.mean is None or standardised is None:
        return
    outputs = subject.prediction.event_shape.numel()
    whole, given = (_variances(values, outputs) for values in (standardised, subject.y))
    is_seen = given > 0  # not NaN either, the variance of an output that was not observed
    width = whole * subject.prediction.variance.reshape(-1, outputs).median(0).values / given
    for name, variances, floor in noises:
        is_own = len(variances) == outputs  # otherwise one variance of all outputs
        variance = variances if is_own else variances.min().expand(outputs)
        is_least = variance < AT_FLOOR * floor
        is_narrow = width < BY_NOISE * variance.clamp_min(floor)
        collapsed = (is_least | (variance < COLLAPSED * whole)) & is_narrow & is_seen
        if not bool(collapsed.any() and (is_own or collapsed[is_seen].all())):
            continue
        first = int(collapsed.nonzero()[0])
        own, of_targets = float(variance[first]), float(whole[first])
        at = (
            f"at its floor, {floor:g}"
            if own < AT_FLOOR * floor
            else f"{own:.2g}, for targets of variance {of_targets:.2g}"
        )
        yield found("collapsed noise", name=name, at=at)


def _variances(values: Tensor, outputs: int) -> Tensor:
    """Return the variance of the observed values of each output, ``(outputs,)``."""
    columns = values.reshape(-1, outputs).unbind(-1)
    seen = [column[~column.isnan()] for column in columns]
    return torch.stack([each.var(correction=0) if len(each) else each.new_tensor(math.nan) for each in seen])


def exploding_loss(subject: Subject) -> Iterator[Finding]:
    """Score the rows, points half way to their neighbours, and the residuals of their neighbours.

    The first is worse than a constant normal where the rows were held out. The others tell at training rows what held-out rows would: half
    way between two rows the mean of both targets is at least as likely as the targets are; and a row's neighbours have residuals of its size.
    This holds for real targets, the residuals for those of any sign; outputs that are missing somewhere, or the same in all rows, cannot be compared so.
    """
    x, y, mean = subject.x, subject.y, subject.mean
    if (
        mean is None
        or x.dim() != 2
        or mean.shape != y.shape
        or len(y) < 2 * NEIGHBOURS
        or subject.prediction.is_discrete
    ):
        return
    spread = y.reshape(len(y), -1).std(0, correction=0)
    if not bool((spread > 0).all()):
        return
    own = -float(subject.prediction.log_prob(y).mean())
    constant = float((0.5 * math.log(2 * math.pi * math.e) + spread.log()).sum())
    if own > constant + EXPLODING:
        what = f"the rows score {own:.3g} nats each, and a constant normal {constant:.3g}"
        yield found("exploding predictive loss", what=what)
        return
    near = _neighbours(x)
    between = -math.inf
    if not subject.arguments:  # which belong to the rows themselves
        half_way = subject.predict((x + x[near[:, 0]]) / 2)
        between = -float(half_way.log_prob((y + y[near[:, 0]]) / 2).mean())
    exchanged = -math.inf
    if subject.standardised is not None:
        residuals = y - mean
        moved = [-subject.prediction.log_prob(mean + residuals[near[:, k]]).mean() for k in range(NEIGHBOURS)]
        exchanged = float(torch.stack(moved).mean())
    worst, where = max((between, "half way between them"), (exchanged, "with the residuals of their neighbours"))
    if worst > own + APART:
        what = f"the rows score {own:.3g} nats each, and {worst:.3g} {where}"
        yield found("exploding predictive loss", what=what)


def _neighbours(x: Tensor) -> Tensor:
    """Return the rows nearest to each row, in standard deviations of the columns, ``(N, NEIGHBOURS)``."""
    scaled = x.double() / x.double().std(0, correction=0).clamp_min(torch.finfo(torch.float64).tiny)
    distance = torch.cdist(scaled, scaled)
    distance.fill_diagonal_(torch.inf)
    return distance.topk(NEIGHBOURS, largest=False).indices


def unscaled_targets(subject: Subject) -> Iterator[Finding]:
    """Look at targets that the model does not standardise, less its mean function."""
    priors = list(subject.priors())
    for name, value in subject.observed.items():
        beyond = out_of_scale(name, beside_mean(name, value, priors), priors, far=FAR, small=SMALL)
        if beyond is not None:
            target, mean, scale = beyond
            yield found("unscaled targets", target=target, mean=mean, scale=scale)


def coarse_inputs(subject: Subject) -> Iterator[Finding]:
    """Compare the rounding of inputs with their standard deviation and with lengthscales."""
    x = subject.x.reshape(-1, subject.x.shape[-1])
    if not x.is_floating_point():
        return
    precision, dtype = torch.finfo(x.dtype).eps, str(x.dtype).removeprefix("torch.")
    steps, spreads = precision * x.double().abs().amax(0), x.double().std(0, correction=0)
    coarse = torch.nonzero((steps > COARSE * spreads) & (spreads > 0))
    if len(coarse):
        column = int(coarse[0])
        step, size = float(steps[column]), float(spreads[column])
        what, unit = f"input column {column}", "its standard deviation"
        yield found("coarse inputs", dtype=dtype, what=what, step=step, unit=unit, size=size)
        return
    for name, prior in subject.priors():
        if isinstance(prior.covariance, StationaryCovariance):
            furthest, reach = (
                float(prior.x.abs().max()),
                float(prior.covariance.warp(prior.x.unsqueeze(-3)).abs().max()),
            )
            if torch.finfo(prior.x.dtype).eps * reach > COARSE:
                step, size = torch.finfo(prior.x.dtype).eps * furthest, furthest / reach
                what, unit = f"the inputs of {name!r}", "the lengthscale"
                yield found("coarse inputs", dtype=dtype, what=what, step=step, unit=unit, size=size)


#: Checks of any fit.
PREDICTION_CHECKS = (unexplained_targets, collapsed_noise, unscaled_targets, coarse_inputs)
