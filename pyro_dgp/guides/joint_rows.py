"""Search for parts of a model that join rows of a Gaussian process: its values there are drawn jointly, not row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import Independent

from pyro_dgp.guides.guide_pass import GuidePass
from pyro_dgp.guides.sites import is_observation, is_random
from pyro_dgp.internal.differentiation import touches_rows
from pyro_dgp.internal.distributions import is_real
from pyro_dgp.propagation import MonteCarlo, Propagation

#: Number of elements of a site that are looked at, about.
_LOOKED_AT = 32


def joins_rows(run: GuidePass, trace: Trace, propagation: Propagation) -> bool:
    """Tell whether one element of a plain site, or one row of a GP's inputs, depends on function values at two rows or more.

    Differences, means of bins and noise that is correlated over rows do. The expectation of such an element under q(f) needs the
    joint distribution of these rows, where all others need its marginals alone.

    :param run: an initialising pass, whose function values autograd follows.
    :param trace: its trace.
    :raises ValueError: for a propagation that does not draw function values.
    """
    means = list(run.means.values())
    sites = [s for s in trace.nodes.values() if is_random(s) and not is_observation(s) and s["name"] not in run.means]
    found = run.joins_rows or (
        bool(means) and any(touches_rows(element, means) for site in sites for element in _elements(site))
    )
    if found and not isinstance(propagation, MonteCarlo):
        raise ValueError(
            "the model joins rows of function values (differences, sums, correlated noise), which are then drawn jointly: carry them by "
            "MonteCarlo(10), since points and means of single rows have no joint distribution"
        )
    return found


def _elements(site: Mapping[str, Any]) -> Iterator[Tensor]:
    """Iterate over the log densities of single elements of a plain site."""
    fn = site["fn"]
    while isinstance(fn, Independent):
        fn = fn.base_dist
    try:
        value = site["value"].detach()
        if is_real(fn):  # away from the mode, where the slope is zero
            value = value + 0.3 + 0.1 * torch.arange(value.numel()).to(value).reshape(value.shape) / value.numel()
        with torch.enable_grad():
            log_prob: Tensor = fn.log_prob(value)
            first = log_prob.reshape(-1, log_prob.shape[-1])[0] if log_prob.dim() else log_prob.reshape(1)
            elements = first[:: max(1, len(first) // _LOOKED_AT)].unbind()
    except (ValueError, NotImplementedError, RuntimeError):
        return  # the value is outside the support: training says so
    yield from elements
