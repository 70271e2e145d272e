"""Warnings of inputs, targets and counts far from the scale at which a model starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import constraints

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.sites import is_random, shown_values
from pyro_dgp.internal.distributions import elementwise
from pyro_dgp.internal.site_names import site_of
from pyro_dgp.internal.spreads import spread_along
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.kernels.covariance import CombinedCovariance
from pyro_dgp.kernels.stationary import Scaling
from pyro_dgp.likelihoods import Observation
from pyro_dgp.likelihoods.observation import join

#: Ratio of the scale of inputs or targets to 1 beyond which a warning is given: kernels and likelihoods start near 1.
FAR = 10.0
#: Standard deviation of targets below which the floor of the noise variance, 1e-4, is a tenth of their variance or more.
SMALL = 0.03


def check_scales(gps: Sequence[tuple[str, FunctionPrior]], observed: Mapping[str, Tensor]) -> None:
    """Warn of inputs that are many lengthscales wide, or next to none, and of targets in raw units; raise for inputs whose squared distances overflow.

    :param gps: names and priors of the Gaussian processes, of which the inputs ``(..., N, D)`` of the first are looked at.
    :param observed: real values by the name of the observed site.
    """
    name, prior = gps[0]
    _require_squares(name, prior.x)
    _check_inputs(prior)
    deviations = _standard_deviations(gps)
    for name, value in observed.items():
        left = beside_mean(name, value.detach(), gps)
        found = out_of_scale(name, left, gps, far=FAR * max(deviations), small=SMALL * min(deviations))
        if found is not None:
            target, mean, scale = found
            warn_user(
                f"{target} has mean {mean:.3g} and standard deviation {scale:.3g} beside the mean function, and the prior starts near mean 0 and "
                "variance 1: standardise targets by a Standardizer.fit(x, y) that the model carries, as in DeepGP(x, standardizer=...)"
            )


@torch.no_grad()
def _standard_deviations(gps: Sequence[tuple[str, FunctionPrior]]) -> list[float]:
    """Return the standard deviation of each output of each Gaussian process at the rows where it is a number, and 1."""
    variances = [prior.variance.double().reshape(-1, prior.variance.shape[-1]).mean(0) for _, prior in gps]
    found = torch.cat(variances).sqrt().tolist()
    return [1.0, *(each for each in found if math.isfinite(each))]


def beside_mean(name: str, value: Tensor, gps: Sequence[tuple[str, FunctionPrior]]) -> Tensor:
    """Return the observed values of a site less the mean function of its Gaussian process, where the two have one shape; else the values.

    :param gps: priors by process key.
    """
    left = value = value if value.is_floating_point() else value.double()
    for prior in (prior for key, prior in gps if site_of(key) == name):
        mean = prior.mean.detach().reshape(-1, *prior.mean.shape[-2:]).mean(0).squeeze(-1)
        left = value - mean if mean.shape == value.shape else value
    return left


def out_of_scale(
    name: str, value: Tensor, gps: Sequence[tuple[str, FunctionPrior]], *, far: float, small: float
) -> tuple[str, float, float] | None:
    """Return an output of the observed values of a site that is in raw units: what it is called, its mean and its standard deviation; nothing if none is.

    One of many outputs may vary little in the unit of the others, as a pixel at the border of an image: half of those that vary have to.

    :param gps: priors by process key, which know how many rows there are.
    :param far: the mean, or the standard deviation, above which an output is.
    :param small: the standard deviation below which it is.
    """
    has_outputs = value.dim() > 1 and value.shape[-2] == gps[0][1].x.shape[-2] and value.shape[-1] > 1
    columns = value.reshape(-1, value.shape[-1] if has_outputs else 1)
    scales, known = spread_along(columns, 0)[0], ~columns.isnan().all(0)
    means = columns.nanmean(0)
    is_small, varies = (scales > 0) & (scales < small), scales > 0
    beyond = known & (torch.maximum(means.abs(), scales) > far)
    if 2 * int(is_small.sum()) >= int(varies.sum()):
        beyond = beyond | is_small
    if not bool(beyond.any()):
        return None
    number = int(beyond.nonzero()[0])
    what = f"output {number} of the target" if has_outputs else "the target"
    return f"{what} of the site {name!r}", float(means[number]), float(scales[number])


def _require_squares(name: str, x: Tensor) -> None:
    """Raise for inputs ``(..., N, D)`` of the Gaussian process ``name`` that are so large that squared distances overflow."""
    x = x.detach()
    if not x.numel() or bool(torch.isfinite(x.shape[-1] * (2 * x.abs().amax()) ** 2)):
        return
    place = tuple(torch.nonzero(x.abs() == x.abs().amax())[0].tolist())
    raise ValueError(
        f"an input of {name!r} is {float(x[place]):.3g} at {place}, whose square is too large for {str(x.dtype).removeprefix('torch.')}: mend or drop such "
        "rows, or rescale that input"
    )


def _check_inputs(prior: FunctionPrior) -> None:
    """Warn of a column of inputs that is many lengthscales wide, or next to none, where the kernel starts."""
    x = prior.x
    spread = x.detach().reshape(-1, x.shape[-1]).std(0, correction=0)
    lengthscales = _lengthscales(prior)
    scaled = spread / lengthscales
    wide, narrow = torch.minimum(spread, scaled), torch.maximum(spread, scaled)
    if lengthscales.numel() == 1:  # one for all inputs looks at all of them together
        narrow = narrow.square().sum().sqrt()
    far = torch.nonzero((wide > FAR) | ((narrow < 1 / FAR**2) & (spread > 0)))
    if len(far):
        column = int(far[0])
        warn_user(
            f"input column {column} has a standard deviation of {float(spread[column]):.3g}, and its lengthscale starts at "
            f"{float(lengthscales.expand_as(spread)[column]):.3g}: standardise "
            "inputs by a Standardizer.fit(x, y) that the model carries, as in DeepGP(x, standardizer=...), or start the lengthscales at the scale "
            "of the inputs"
        )


@torch.no_grad()
def _lengthscales(prior: FunctionPrior) -> Tensor:
    """Return the lengthscales of a stationary kernel, or of the first one in a sum or product: ``(D,)``, or ``(1,)`` for one; ones for other kernels."""
    x, covariance = prior.x, prior.covariance
    parts: Sequence[Any] = covariance.parts if isinstance(covariance, CombinedCovariance) else [covariance]
    warps = [warp for part in parts if isinstance(warp := getattr(part, "warp", None), Scaling)]
    found = [warp.reciprocal.reciprocal() for warp in warps if warp.reciprocal.shape[-1] in (1, x.shape[-1])]
    return found[0].reshape(-1, found[0].shape[-1]).amax(0) if found else x.new_ones(x.shape[-1])


#: Ratio of the mean of counts to that of the untrained model beyond which a warning is given: its functions have a standard deviation near 1.
FAR_COUNTS = math.exp(3.0)


def warn_of_far_counts(trace: Trace) -> None:
    """Warn of observed counts whose mean is far from that of the untrained model, as where neither a mean function nor exposures carry their level."""
    for site in trace.nodes.values():
        if not is_random(site) or not site["is_observed"]:
            continue
        start, value = _mean_of_counts(site["fn"]), shown_values(site).detach().double()
        value = value[~value.isnan()]
        if start is None or not value.numel() or not float(value.mean()) > 0:
            continue
        ratio = float(value.mean()) / start
        if not 1 / FAR_COUNTS < ratio < FAR_COUNTS:
            warn_user(
                f"the counts of the site {site['name']!r} have mean {float(value.mean()):.3g}, and the untrained model has counts of mean {start:.3g}: a "
                f"fit may not get from there to the data. Add {math.log(ratio):.3g}, the logarithm of the ratio, to the mean function of the Gaussian "
                f"process that they observe, as mean=ConstantMean(value={math.log(ratio):.3g}) adds it to zero; or pass exposures"
            )


@torch.no_grad()
def _mean_of_counts(fn: Any) -> float | None:
    """Return the mean of the counts that a distribution of counts has where functions are at their means; nothing for other distributions."""
    if isinstance(fn, Observation):
        fn = fn.conditional.given(join({name: prior.mean for name, prior in fn.priors.items()}))
    fn = elementwise(fn)
    if fn.support is not constraints.nonnegative_integer:
        return None
    try:
        mean = float(fn.mean.double().mean())
    except NotImplementedError:
        return None
    return mean if 0 < mean < math.inf else None
