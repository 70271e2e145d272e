"""Settings of a validation: the held-out rows, and what is tried on the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from torch import Tensor

#: Rows that are held out in all, at least, and folds at most, where the number of folds is not given.
HELD_OUT_ROWS, MOST_FOLDS = 200, 3


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Settings of a validation, which keeps a predictive loss from overfitting.

    1. Rows are held out: a share of the training rows, drawn with the number of the split as its seed. Few rows tell little
       apart, so that several such folds are held out in turn where the training rows are few, each row in one fold at most.
    2. Search: each beta, and the fallback if there is one, is trained from the same start on the rows of each fold that are
       not held out, for a share ``search`` of the steps. Held-out rows are scored at ``checks`` equally spaced steps. The
       merit of a beta is that of its best check over the held-out rows of all folds, and that of a fallback that does not stop is that of its last
       check: NLL plus the logarithm of the CRPS, so that the mean is not paid for the density. The largest beta within one
       standard error of the best (of the differences between rows) wins: more regularisation is the safer error. It must be
       better than the fallback by three standard errors in NLL, and worse by no more than one in CRPS. Where the targets take few values, less than one for
       50 rows, a density can put a spike on each, and the CRPS alone decides, by three standard errors; the NLL counts between checks where it is above that of a
       calibrated normal of the same CRPS. The folds are held out one after
       another. A beta that is behind the best one by more than three standard errors is left out of those that come next. The remaining folds are skipped where no beta
       is ahead of the fallback so far, and the fallback is left out where one is ahead by five standard errors.
    3. Runs: where the best check of the search lies in its last quarter, or where nothing was to be searched for, the chosen
       beta is trained from the same start for each share of the steps that ``runs`` lists, and judged in the same way. A short
       run can win because its learning rate falls before it overfits. A run stops after ``patience`` checks without
       improvement, once it is clearly worse than its best check: one that has come to rest may gain where the learning rate falls.
    4. Where a beta was chosen, the fallback is trained for all steps too, fold by fold beside it, and must be beaten once more. The next folds
       are spared where the beta is not ahead so far, or ahead by five standard errors.
    5. With one fold the model gets the best checkpoint and has not been trained on the held-out rows. With several it is
       trained once more, on all rows, to the step of the best check. A fallback that does not stop is trained on all rows for all steps.

    6. A fit by a beta is dropped for the fallback where it has next to no noise and scores its training rows better than the held-out ones, by 0.3
       nats a row and three standard errors, and the fallback has noise and is behind it at held-out rows by less than twice the gap between
       both. Such a fit follows the noise. It loses much at a few rows, and the held-out rows may hold none of these.

    A guide that is initialised here does not see the held-out rows of a single fold. (A model that was built on all inputs,
    such as one with projections, has seen these.) A candidate whose training breaks down loses the search. The cost is
    ``folds * (candidates * search + runs)`` of a run at most, one more for each fold with the fallback, one more with several folds, and one more
    where a fit is dropped.

    :ivar share: share of the training rows that is held out. By default it is one ninth: where nine tenths of the data
        are training rows, eight remain.
    :ivar betas: the betas to try, each 0 or more.
    :ivar search: length of each run of the search, as a share of the steps.
    :ivar runs: lengths of the runs at the chosen beta, as shares of the steps. A run that the search has made is not
        repeated.
    :ivar checks: number of times that held-out rows are scored in each run.
    :ivar patience: number of checks without improvement after which a run stops, if it is worse than its best check by more than a standard error.
    :ivar folds: number of folds; if not given, as many as hold out 200 rows in all, three at most.

    >>> from pyro_dgp import Validation
    >>> validation = Validation(betas=(0.05, 1.0), share=0.25)
    >>> int(validation.held_out(rows=100, split=0).sum())
    25
    >>> validation.num_folds(rows=300), validation.num_folds(rows=3000)
    (3, 1)
    """

    share: float = 1 / 9
    betas: tuple[float, ...] = (0.05, 1.0)
    search: float = 0.25
    runs: tuple[float, ...] = (1.0,)
    checks: int = 20
    patience: int = 10
    folds: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.betas, str) or not isinstance(self.betas, Sequence):
            raise TypeError(f"betas is a tuple of numbers, got {self.betas!r}: for a single one write betas=(0.05,)")
        for beta in self.betas:
            if not isinstance(beta, Real) or not 0 <= beta < math.inf:
                raise ValueError(f"a beta is a finite number, 0 or more, got {beta!r} in betas={self.betas}")
        if not 0 < self.share < 1:
            raise ValueError(f"the share of validation rows lies between 0 and 1, got {self.share}")
        if not self.betas or self.checks < 1 or self.patience < 1 or not 0 < self.search <= 1:
            raise ValueError(
                "a validation needs at least one beta, one check, a patience of one, and a search above 0 and at most 1"
            )
        if isinstance(self.runs, str) or not isinstance(self.runs, Sequence):
            raise TypeError(f"runs is a tuple of shares, got {self.runs!r}: for a single one write runs=(1.0,)")
        if not self.runs or not all(0 < share <= 1 for share in self.runs):
            raise ValueError(f"runs lists shares of the steps, each above 0 and at most 1, got {self.runs!r}")

        if self.folds is not None and not 1 <= self.folds <= 1 / self.share:
            raise ValueError(
                f"folds of a share of {self.share:.3g} of the rows are 1 to {int(1 / self.share)} in number, got {self.folds}"
            )

    def num_folds(self, rows: int) -> int:
        """Return the number of folds for a number of training rows."""
        count = self._count(rows)
        if self.folds is not None:
            return min(self.folds, max(1, rows // count))
        wanted = min(MOST_FOLDS, -(-HELD_OUT_ROWS // count))
        return max(1, min(wanted, int(1 / self.share + 1e-9), rows // count))

    def held_out(self, rows: int, split: int, fold: int = 0) -> Tensor:
        """Return the mask of the validation rows of a fold, ``(rows,)``."""
        mask = torch.zeros(rows, dtype=torch.bool)
        count = self._count(rows)
        if count >= rows:
            raise ValueError(f"{rows} training rows leave none besides {count} validation rows: give more data")
        order = np.random.RandomState(split).permutation(rows)
        mask[torch.as_tensor(order[fold * count : (fold + 1) * count])] = True
        return mask

    def lengths(self, steps: int) -> list[int]:
        """Return the numbers of steps of the runs that come after the search."""
        return sorted({max(1, round(share * steps)) for share in self.runs})

    def _count(self, rows: int) -> int:
        """Rows of a fold: the share of all, or the most that as many folds as are asked for can have where rounding would leave too few."""
        count = round(rows * self.share)
        return max(1, count if self.folds is None else min(count, rows // self.folds))
