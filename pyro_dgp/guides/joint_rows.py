"""Search for parts of a model that join rows of a Gaussian process: its values there are drawn jointly, not row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.guide_pass import GuidePass
from pyro_dgp.guides.handler import PassHandler
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.sites import is_random
from pyro_dgp.internal.differentiation import join_rows
from pyro_dgp.internal.distributions import is_real
from pyro_dgp.internal.rows import Call
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.likelihoods import Observation
from pyro_dgp.propagation import MonteCarlo, Propagation

#: Standard deviations around their mean that function values are put at: at the mean a square has no slope.
SPREAD = 0.5
#: Passes at most, each at other function values.
PASSES = 4
#: Rows of a prediction that are looked at.
LOOKED_AT = 32


def guide_joins_rows(guide: PassHandler, call: Call) -> bool:
    """Tell whether a part of a guide's model joins rows of function values, by passes at random ones.

    :param call: arguments of the model.
    :raises ValueError: where it does, for a propagation that cannot carry values jointly.
    """
    trace, (args, kwargs) = guide.trace, call
    try:
        with torch.random.fork_rng():
            for number in range(PASSES):
                torch.manual_seed(number)
                run = GuidePass(initializing=True, spread=SPREAD)
                guide._run_model(run, args, kwargs)
                if joins_rows(run, guide.trace):
                    _require_drawn(guide.propagation)
                    return True
    finally:
        guide.trace = trace
    return False


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


def _require_drawn(propagation: Propagation) -> None:
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


def joined_rows_message(name: str) -> str:
    """Say that a site is not predicted from rows that are drawn one by one."""
    return (
        f"the site {name!r} joins rows of function values (differences, sums, means), and each new row is drawn by itself here: draw whole functions, draw_functions(fit, 100), "
        "and compute it from their values"
    )


class _Probe(SiteHandler, Messenger):
    """Handler that runs a model at random function values, and keeps what a site, and the inputs of Gaussian processes before it, are computed from."""

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self.wanted, self.run, self.is_over = wanted, GuidePass(initializing=True, spread=SPREAD), False
        self.found: list[Tensor] = []

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set function values that autograd follows."""
        self._meet(msg["name"], prior)
        if not msg["is_observed"]:
            msg["value"] = self.run.mean_of(msg["name"], prior)

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Set an observation to zeros."""
        for gp, prior in observation.priors.items():
            self._meet(process_key(msg["name"], gp), prior)
        if msg["value"] is None:
            msg["value"] = next(iter(observation.priors.values())).mean.new_zeros(observation.event_shape)

    def _meet(self, key: str, prior: FunctionPrior) -> None:
        if not self.is_over:
            self.run.meet(key, prior, whole=prior)
        self.is_over |= key == self.wanted

    def _pyro_post_sample(self, msg: Message) -> None:
        if msg["name"] != self.wanted or site_is_subsample(msg):
            return
        self.is_over = True
        if msg["infer"].get("_deterministic"):
            self.found.append(msg["value"])
        elif not isinstance(msg["fn"], Observation | FunctionPrior) and (found := _elements(msg)) is not None:
            self.found.append(found)


def site_joins_rows(model: Callable[..., Any], call: Call, name: str) -> bool:
    """Tell whether one element of a site, or one row of a GP's inputs before it, depends on function values at two rows or more.

    :param call: arguments of the model at some rows.
    :param name: of a site, or the process key of a GP inside an observation.
    """
    args, kwargs = call
    for number in range(2):
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(number)
            probe = _Probe(name)
            try:
                with probe:
                    model(*args, **kwargs)
            except (RuntimeError, ValueError, IndexError):
                return False  # values of the prior that the model cannot take
            means = list(probe.run.means.values())
            if means and any(join_rows(each, means) for each in (*probe.run.mixed, *probe.found)):
                return True
    return False
