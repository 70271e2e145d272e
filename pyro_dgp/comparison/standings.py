"""Standings: what the pilots of each method say of a full fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from statistics import mean

import torch
from torch import Tensor

from pyro_dgp.comparison.carrying_out import Workers
from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.pilots import pilots
from pyro_dgp.comparison.request import Say, for_task
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.training.held_out import RowScores, takes_few_values
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.settings import Settings


@dataclass(frozen=True)
class Standing:
    """Estimate of a full fit of one method, from its pilots.

    :ivar nll: negative log density of each held-out row that is expected of a full fit, nats.
    :ivar crps: continuous ranked probability score of each held-out row, in standard deviations of the target; nothing for classes.
    :ivar left: share of the variance of the targets that a full fit leaves, the mean over folds; nothing for classes.
    :ivar seconds: expected time of a full fit.
    :ivar may_fall_back: whether a full fit is likely to fall back on the ELBO, so that it may not have these scores.
    :ivar by_crps: whether the CRPS alone tells methods apart, as where targets take few values, see
        :func:`~pyro_dgp.training.held_out.takes_few_values`.
    """

    method: str
    nll: Tensor
    _: KW_ONLY
    crps: Tensor | None
    left: float | None
    seconds: float
    may_fall_back: bool = False
    by_crps: bool = False

    @property
    def scores(self) -> RowScores:
        """NLL and CRPS."""
        return RowScores(self.nll, self.crps, self.by_crps)

    @property
    def expected(self) -> float:
        """The mean of ``nll``."""
        return float(self.nll.mean())

    def behind(self, other: Standing) -> tuple[float, float]:
        """Return the expected NLL minus that of another method, and its standard error over rows."""
        difference = self.nll - other.nll
        return float(difference.mean()), float(difference.std()) / math.sqrt(len(difference))


@dataclass
class Trial:
    """Pilots on one data set.

    :ivar data: training rows with folds, see :func:`~pyro_dgp.comparison.pilots.pilot_data`.
    :ivar settings: of all fits.
    :ivar say: gets a sentence after each pilot.
    :ivar failures: the first error of each method that failed.
    """

    data: Dataset
    settings: Settings
    _: KW_ONLY
    workers: Workers
    dtype: str
    say: Say
    failures: dict[str, str] = field(default_factory=dict)

    def standings(self, methods: Sequence[str]) -> dict[str, Standing]:
        """Make the pilots of methods, and return the standing of each that did not fail."""
        planned = pilots(self.data, methods, self.settings, dtype=self.dtype)
        work = {pilot.name: pilot.work for pilot in planned}
        rows: dict[str, list[Row]] = {}
        for row in self.workers.carry_out(planned):
            rows.setdefault(row["name"], []).append(row)
            self.say(_sentence(row))
        found = {}
        for name in methods:
            own = sorted(rows[name], key=lambda row: int(row["fold"]))
            errors = [row.get("error", _NOT_FINITE) for row in own if not _is_sound(row)]
            if errors:
                self.failures[name] = errors[0]
            else:
                found[name] = self._standing(name, own, work[name])
        return found

    def work(self, method: str) -> float:
        """Return the number of steps that a fit to all rows makes in all."""
        rows, settings = len(self.data.x), for_task(self.settings, self.data.task)
        inference = METHODS[method].inference
        return inference.cost(settings, rows) * settings.num_steps(rows, inference.settled(settings).rows_of_step)

    def _standing(self, method: str, rows: Sequence[Row], work: float) -> Standing:
        left, crps = ([row[name] for row in rows] for name in ("left", "crps"))
        return Standing(
            method,
            torch.cat([row["nll"] for row in rows]),
            crps=None if any(each is None for each in crps) else torch.cat(crps),
            left=None if None in left else mean(left),
            seconds=mean(row["seconds"] for row in rows) * self.work(method) / work,
            by_crps=self.data.task.is_standardized and takes_few_values(torch.as_tensor(self.data.y)),
        )


_NOT_FINITE = "its density at held-out rows is not finite"


def _is_sound(row: Row) -> bool:
    return "error" not in row and bool(torch.isfinite(row["nll"]).all())


def _sentence(row: Row) -> str:
    """Return what is said after a pilot."""
    outcome = f"failed ({row['error']})" if "error" in row else f"NLL {float(row['nll'].mean()):.3f}"
    return f"{row['name']}, fold {row['fold']}: {outcome} in {row['seconds']:.0f} s"
