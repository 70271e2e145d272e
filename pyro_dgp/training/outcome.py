"""The outcome of a validation: the run that is kept, of its best candidate or of the fallback, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pyro_dgp.internal.attributes import restore, snapshot
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.training.checkpoints import CheckpointError
from pyro_dgp.training.plan import Plan
from pyro_dgp.training.trials import Candidate, Last, Training, Verdict

_NOISE_FOR_FUNCTION = "the fit with beta {beta:g} had next to no noise and overfitted, where the fallback has noise and is not far behind: the fallback is kept"


@dataclass(frozen=True)
class Outcome:
    """End of a validation: the candidate that was kept, and what was tried.

    :ivar best: candidate that was kept, and ``last`` its last run.
    :ivar tried: candidates of the search.
    :ivar search_steps: number of optimiser steps in the search.
    :ivar remarks: sentences on how the fit went.
    :ivar failure: error that ended a run after the search, if one did.
    """

    best: Candidate
    last: Last
    tried: Sequence[Candidate]
    search_steps: int
    remarks: list[str]
    failure: Exception | None


def carried_out(plan: Plan, training: Training) -> Outcome:
    """Carry out a plan, and keep the best run in the guide and its model.

    An error leaves the parameters as :meth:`Training.leave` says.
    """
    try:
        with module_local_parameters(*training.states), torch.random.fork_rng():
            search, left_out = plan.search(training)
            search_steps = training.done
            best, fallback, failure = plan.best(training, search)
            fallback = fallback or next((run for run in left_out if _is_whole_fallback(run, training)), None)
            end = _keep(training, best, fallback)
            tried = [*search, *left_out]
            remarks = end.remarks or _on_fallback(end.best, tried)
            remarks += [finding.sentence for finding in end.verdict.findings]
    except BaseException:
        training.leave()
        raise
    return Outcome(end.best, end.last, tried, search_steps, remarks, failure or end.failure)


def _is_whole_fallback(run: Candidate, training: Training) -> bool:
    """Whether a candidate is the fallback, trained for all steps."""
    return run.beta is None and run.steps == training.steps


@dataclass(frozen=True)
class _Kept:
    """Candidate that is kept, its last run, what is found of it, a remark where it is kept in the place of another, and the error of a run in its place."""

    best: Candidate
    last: Last
    verdict: Verdict
    remarks: list[str] = field(default_factory=list)
    failure: Exception | None = None


def _keep(training: Training, best: Candidate, fallback: Candidate | None) -> _Kept:
    """Keep the best candidate, or the fallback where the best has taken noise for its function (step 6 of :class:`Validation`)."""
    last = training.keep(best)
    verdict = training.verdict(best.curve, last)
    if fallback is None or not verdict.takes_noise_for_function(best, fallback):
        return _Kept(best, last, verdict)
    state = training.start_of(best.beta).state
    before = snapshot(state)
    try:
        other = training.keep_after_all(fallback)
    except CheckpointError:
        raise
    except (ValueError, NotPositiveDefiniteError) as error:
        restore(state, before)
        return _Kept(best, last, verdict, failure=error)
    return _Kept(fallback, other, training.verdict(fallback.curve, other), [_NOISE_FOR_FUNCTION.format(beta=best.beta)])


def _on_fallback(fallback: Candidate, tried: Sequence[Candidate]) -> list[str]:
    """Return the sentence on a fallback that was kept, where a beta was ahead of it at the held-out rows that both had; nothing of a beta."""
    if fallback.beta is not None:
        return []
    betas = [
        run for run in tried if run.beta is not None and run.curve.best is not None and run.steps == fallback.steps
    ]
    best = min(betas, key=lambda run: run.curve.nll, default=None)
    if best is None:
        return []
    folds = min(len(best.trials), len(fallback.trials))
    ours, theirs = best.curve_on(folds).best, fallback.curve_on(folds).best
    if ours is not None and theirs is not None and ours.by_crps and ours.crps is not None and theirs.crps is not None:
        share = float(ours.crps.mean() / theirs.crps.mean())
        return [
            f"the fallback is kept: the targets take few values, on which a density puts spikes, so that the CRPS of held-out rows decides, and that of "
            f"beta {best.beta:g} is {share:.3f} times the fallback's"
        ]
    if ours is None or theirs is None or not float((ours.nll - theirs.nll).mean()) < 0:
        return []
    lead = theirs.nll - ours.nll
    error = float(lead.std(correction=0)) / math.sqrt(len(lead))
    crps = ""
    if ours.crps is not None and theirs.crps is not None:
        crps = f", with {float(ours.crps.mean() / theirs.crps.mean()):.3f} times its CRPS"
    return [
        f"the fallback is kept: beta {best.beta:g} is ahead of it by {float(lead.mean()):.2f} nats a row (+- {error:.2f}) at {len(lead)} held-out rows{crps}; it must be ahead "
        "by three standard errors in NLL, and behind by one at most in CRPS, in the search and once more after all steps"
    ]
