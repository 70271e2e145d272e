"""Search for parts of a model that join rows of a Gaussian process: its values there are drawn jointly, not row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import Independent

from pyro_dgp.guides.guide_pass import GuidePass
from pyro_dgp.guides.sites import is_random
from pyro_dgp.internal.differentiation import join_rows
from pyro_dgp.internal.distributions import is_real
from pyro_dgp.likelihoods import Observation
from pyro_dgp.propagation import MonteCarlo, Propagation

#: Standard deviations around their mean that function values are put at: at the mean a square has no slope.
SPREAD = 0.5
#: Passes at most, each at other function values.
PASSES = 4


def joins_rows(run: GuidePass, trace: Trace) -> bool:
    """Tell whether one element of a plain site, or one row of a GP's inputs, depends on function values at two rows or more.

    Differences, means of bins and noise that is correlated over rows do. The expectation of such an element under q(f) needs the
    joint distribution of these rows, where all others need its marginals alone.

    :param run: an initialising pass, whose function values autograd follows.
    :param trace: its trace.
    """
    means = list(run.means.values())
    sites = [s for s in trace.nodes.values() if is_random(s) and not _is_collapsed(s) and s["name"] not in run.means]
    numbers = [*run.mixed, *(found for site in sites if (found := _elements(site)) is not None)]
    return bool(means) and any(join_rows(each, means) for each in numbers)


def _is_collapsed(site: Mapping[str, Any]) -> bool:
    """Tell whether the Gaussian process of a site is integrated out row by row, and has no values here."""
    return isinstance(site["infer"].get("prior", site["fn"]), Observation)


def require_drawn(propagation: Propagation) -> None:
    """Raise for a propagation that does not draw function values, where the model joins rows of them."""
    if not isinstance(propagation, MonteCarlo):
        raise ValueError(
            "the model joins rows of function values (differences, sums, correlated noise), which are then drawn jointly: carry them by "
            "MonteCarlo(10), since points and means of single rows have no joint distribution"
        )


def _elements(site: Mapping[str, Any]) -> Tensor | None:
    """Return the log densities of the elements of a plain site."""
    fn = site["fn"]
    while isinstance(fn, Independent):
        fn = fn.base_dist
    try:
        value = site["value"].detach()
        if is_real(fn):  # away from the mode, where the slope is zero
            value = value + 0.3 + 0.1 * torch.arange(value.numel()).to(value).reshape(value.shape) / value.numel()
        with torch.enable_grad():
            log_prob: Tensor = fn.log_prob(value)
    except (ValueError, NotImplementedError, RuntimeError):
        return None  # the value is outside the support: training says so
    return log_prob
