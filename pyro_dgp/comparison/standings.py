"""Standings: what the pilots of each candidate say of a full fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from statistics import mean

import torch
from torch import Tensor

from pyro_dgp.comparison.carrying_out import Workers
from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.pilots import Candidate, pilot_name, pilots
from pyro_dgp.comparison.request import Say, for_task
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.training.held_out import RowScores
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class Standing:
    """Estimate of a full fit of one candidate, from its pilots.

    :ivar nll: negative log density of each held-out row that is expected of a full fit, nats.
    :ivar crps: continuous ranked probability score of each held-out row that is expected of it, in standard deviations of the target; nothing for classes.
    :ivar left: share of the variance of the targets that a full fit leaves, the mean over folds; nothing for classes, and where pilots were short.
    :ivar seconds: expected time of a full fit.
    :ivar like: candidate whose gain by the other steps it is expected to have: itself where its pilot had all steps.
    """

    candidate: Candidate
    nll: Tensor
    _: KW_ONLY
    like: Candidate
    crps: Tensor | None
    left: float | None
    seconds: float

    @property
    def is_estimate(self) -> bool:
        """Whether its pilot had a part of the steps."""
        return self.like != self.candidate

    @property
    def scores(self) -> RowScores:
        """NLL and CRPS."""
        return RowScores(self.nll, self.crps)

    @property
    def expected(self) -> float:
        """The mean of ``nll``."""
        return float(self.nll.mean())

    def behind(self, other: Standing) -> tuple[float, float]:
        """Return the expected NLL minus that of another candidate, and its standard error over rows."""
        difference = self.nll - other.nll
        return float(difference.mean()), float(difference.std()) / math.sqrt(len(difference))


@dataclass(frozen=True)
class Pooled:
    """The pilots of one name on all folds.

    :ivar nll: negative log density of each held-out row, fold by fold, nats.
    :ivar crps: continuous ranked probability score of each; nothing for classes.
    :ivar left: share of the variance of the targets that is left, the mean over folds.
    :ivar seconds: mean over folds.
    :ivar work: number of steps that one of them made.
    :ivar beta: weight of the KL that the first of them chose, of a predictive loss.
    """

    nll: Tensor
    _: KW_ONLY
    crps: Tensor | None
    left: float | None
    seconds: float
    work: float
    beta: float | None


@dataclass
class Trial:
    """Pilots on one data set, as they are made.

    :ivar data: training rows with folds, see :func:`~pyro_dgp.comparison.pilots.pilot_data`.
    :ivar settings: of all fits.
    :ivar say: gets a sentence after each pilot.
    :ivar failures: the first error of each pilot that failed, by its name.
    """

    data: Dataset
    settings: Settings
    _: KW_ONLY
    workers: Workers
    dtype: str
    say: Say
    failures: dict[str, str] = field(default_factory=dict)
    _pooled: dict[str, Pooled] = field(default_factory=dict)

    def make(self, candidates: Sequence[Candidate], *, is_short: bool, beta: float | None = None) -> None:
        """Make the pilots of candidates, each once.

        :param beta: weight of the KL of a predictive loss; if not given, each pilot chooses between two.
        """
        missing = [each for each in dict.fromkeys(candidates) if not self.is_made(each, is_short=is_short)]
        settings = replace(self.settings, beta=beta) if beta is not None else self.settings
        planned = pilots(self.data, missing, settings, is_short=is_short, dtype=self.dtype)
        work = {pilot.name: pilot.work for pilot in planned}
        rows: dict[str, list[Row]] = {}
        for row in self.workers.carry_out(planned):
            rows.setdefault(row["name"], []).append(row)
            self.say(_sentence(row))
        for name, own in rows.items():
            errors = [row.get("error", _NOT_FINITE) for row in own if not _is_sound(row)]
            if errors:
                self.failures[name] = errors[0]
            else:
                self._pooled[name] = _pooled(sorted(own, key=lambda row: int(row["fold"])), work[name])

    def is_made(self, candidate: Candidate, *, is_short: bool) -> bool:
        """Whether its pilot of that length has been made, or has failed."""
        name = pilot_name(candidate, is_short=is_short)
        return name in self._pooled or name in self.failures

    def tried(self, candidate: Candidate) -> Pooled | None:
        """Return the pilots of a candidate that had a quarter of the steps, as they are; nothing where one failed."""
        return self._pooled.get(pilot_name(candidate, is_short=True))

    def full(self, candidate: Candidate) -> Standing | None:
        """Return the standing of a candidate whose pilot had all steps; nothing where it failed."""
        found = self._pooled.get(pilot_name(candidate, is_short=False))
        if found is None:
            return None
        seconds = found.seconds * self._work(candidate) / found.work
        return Standing(candidate, found.nll, like=candidate, crps=found.crps, left=found.left, seconds=seconds)

    def short(self, candidate: Candidate, like: Candidate) -> Standing | None:
        """Return the standing of a candidate whose pilot had a quarter of the steps; nothing where it failed, or one of the other candidate.

        :param like: candidate with a pilot of either length. What the other steps bring it is taken for what they will bring this one: in NLL row by
            row, in CRPS by the same factor for all rows.
        """
        found = self.tried(candidate)
        longer, shorter = (self._pooled.get(pilot_name(like, is_short=is_short)) for is_short in (False, True))
        if found is None or longer is None or shorter is None:
            return None
        seconds = found.seconds * self._work(candidate) / found.work
        crps = found.crps
        if crps is not None and longer.crps is not None and shorter.crps is not None:
            crps = crps * (longer.crps.mean() / shorter.crps.mean())
        nll = found.nll + longer.nll - shorter.nll
        return Standing(candidate, nll, like=like, crps=crps, left=None, seconds=seconds)

    def _work(self, candidate: Candidate) -> float:
        """Return the number of steps that a fit to all rows makes in all."""
        rows, full = len(self.data.x), candidate.full(for_task(self.settings, self.data.task))
        inference = METHODS[candidate.method].inference
        return inference.cost(full, rows) * full.steps(rows, inference.settled(full).rows_of_step)


_NOT_FINITE = "its density at held-out rows is not finite"


def _is_sound(row: Row) -> bool:
    return "error" not in row and bool(torch.isfinite(row["nll"]).all())


def _pooled(rows: Sequence[Row], work: float) -> Pooled:
    left, crps = ([row[name] for row in rows] for name in ("left", "crps"))
    return Pooled(
        torch.cat([row["nll"] for row in rows]),
        crps=None if any(each is None for each in crps) else torch.cat(crps),
        left=None if None in left else mean(left),
        seconds=mean(row["seconds"] for row in rows),
        work=work,
        beta=rows[0].get("beta"),
    )


def _sentence(row: Row) -> str:
    """Return what is said after a pilot."""
    outcome = f"failed ({row['error']})" if "error" in row else f"NLL {float(row['nll'].mean()):.3f}"
    return f"{row['name']}, fold {row['fold']}: {outcome} in {row['seconds']:.0f} s"
