"""Scores of held-out rows during training: the curve of each candidate over the steps, and the choice between candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyro_dgp.internal.spreads import scale_along
from pyro_dgp.prediction.prediction import Prediction

#: Rows whose CRPS is computed, at most: that of a mixture costs the square of its components.
MOST_CRPS_ROWS = 500
#: Standard errors of the NLL by which a predictive loss must be better than the fallback. A predictive loss has heavy tails: on 455 rows of
#: Boston housing one was better by two to three of them at 153 held-out rows, and worse by 5.9 nats a row at 51 others.
FALLBACK_ERRORS = 3.0
#: Mean NLL of normals at targets that are drawn from them, less the logarithm of their mean CRPS: ``log(2 pi e) / 2 + log(pi) / 2``.
CALIBRATED = 0.5 * math.log(2 * math.pi**2 * math.e)
#: Share of the rows below which the number of different targets is few.
FEW_VALUES = 0.02


def takes_few_values(y: Tensor) -> bool:
    """Tell whether targets take few values, on each of which a density can put a spike, so that its logarithm says little."""
    values = y[~y.isnan()]
    return len(values.unique()) < FEW_VALUES * len(values)


class Targets:
    """All targets of a data set.

    :param y: ``(*groups, N)`` or ``(*groups, N, D_out)``; NaN is an output that was not observed.
    """

    def __init__(self, y: Tensor) -> None:
        self.y = y

    @cached_property
    def take_few_values(self) -> bool:
        """See :func:`takes_few_values`."""
        return takes_few_values(self.y)

    def scales(self, event_dim: int) -> Tensor:
        """Return the standard deviation of each output of each group, in which their scores are compared, ``(*groups, 1)`` and ``D_out``.

        It is 1 for a single one, for targets that are all the same, and for booleans and whole numbers.

        :param event_dim: number of axes of outputs.
        """
        rows = self.y.dim() - event_dim - 1
        single = torch.ones_like(self.y.narrow(rows, 0, 1), dtype=torch.get_default_dtype())
        if single.numel() == 1 or not self.y.is_floating_point():
            return single
        return scale_along(self.y, rows)


def row_nll(prediction: Prediction, y: Tensor) -> Tensor:
    """Return the negative log density of each row, nats. A row without any observed output, NaN in all, is left out."""
    nll = -prediction.log_prob(y)
    seen = (~y.isnan()).reshape(*nll.shape, -1).any(-1)
    return nll[seen]


@dataclass(frozen=True)
class RowScores:
    """Scores of held-out rows, of those with an observed output, in the memory of the processor, from where they are saved and read.

    :ivar nll: negative log density of each row, nats.
    :ivar crps: continuous ranked probability score of some of them, in units of y, or with several outputs the mean of theirs in standard deviations of each;
        nothing where the observation has none.
    :ivar by_crps: whether the CRPS decides, as of a density of targets that :func:`takes_few_values`: a low NLL counts for nothing.
    :ivar is_single: whether both scores are of a single output, in units of y.
    """

    nll: Tensor
    crps: Tensor | None
    by_crps: bool = False
    is_single: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "nll", self.nll.cpu())
        object.__setattr__(self, "crps", None if self.crps is None else self.crps.cpu())

    @classmethod
    def of(
        cls, prediction: Prediction, y: Tensor, few: tuple[Prediction, Tensor], *, targets: Targets | None = None
    ) -> RowScores:
        """Score a prediction at its targets.

        :param few: the prediction of at most :data:`MOST_CRPS_ROWS` of these rows, and their targets.
        :param targets: all targets of the data set; if not given, outputs are standardised already.
        """
        nll = row_nll(prediction, y)
        try:
            crps = few[0].crps(few[1])
        except (ValueError, NotImplementedError):
            return cls(nll, None)  # classes, and distributions without a distribution function
        scales = crps.new_ones(1) if targets is None else targets.scales(len(prediction.event_shape)).to(crps)
        crps = crps / scales
        observed = ~few[1].isnan()  # the shape of the scores; NaN is an output that was not observed
        crps, count = crps.where(observed, 0.0).reshape(len(crps), -1), observed.reshape(len(crps), -1).sum(-1)
        seen = count > 0
        by_crps = targets is not None and targets.take_few_values and not prediction.is_discrete
        return cls(
            nll, crps.sum(-1)[seen] / count[seen], by_crps, scales.numel() == 1 == prediction.event_shape.numel()
        )

    @classmethod
    def joined(cls, parts: Sequence[RowScores]) -> RowScores:
        """Scores of the rows of several folds together."""
        crps = [part.crps for part in parts if part.crps is not None]
        joined = torch.cat(crps) if len(crps) == len(parts) else None
        by_crps = all(part.by_crps for part in parts)
        return cls(torch.cat([part.nll for part in parts]), joined, by_crps, parts[0].is_single)

    @property
    def merit(self) -> float:
        """Mean NLL plus the logarithm of the mean CRPS, lower is better; infinity where a score is no number.

        Both terms grow by log c where errors and predicted standard deviations grow c times, so that they weigh alike. Where targets take few values an
        NLL below that of a calibrated normal of the same CRPS, as spikes have it, counts as that one; one above it, as of predictions that are too sure, counts.
        """
        value = float(self.nll.mean())
        if self.crps is not None and math.isfinite(value):
            log_crps = math.log(max(float(self.crps.mean()), torch.finfo(self.crps.dtype).tiny))
            if self.by_crps:
                value = max(value, log_crps + CALIBRATED) if self.is_single else log_crps + CALIBRATED
            value += log_crps
        return value if math.isfinite(value) else math.inf

    def is_close_to(self, best: RowScores, errors: float = 1.0) -> bool:
        """Whether the scores that decide, NLL and CRPS or the CRPS alone, are within some standard errors of the best one's, by the differences of each row."""
        if not math.isfinite(self.merit):
            return False
        means, variances = zip(*map(_mean_and_its_variance, self._differences(best)), strict=True)
        return sum(means) <= errors * math.sqrt(sum(variances))

    def is_clearly_better_than(self, fallback: RowScores, errors: float = FALLBACK_ERRORS) -> bool:
        """Whether the NLL is lower by some standard errors, and the CRPS not higher by one, by the differences of each row.

        Where the CRPS alone decides it is lower by so many standard errors.
        """
        (first, variance), *crps = map(_mean_and_its_variance, self._differences(fallback))
        is_lower = first < -errors * math.sqrt(variance)
        return math.isfinite(self.merit) and is_lower and all(mean <= math.sqrt(own) for mean, own in crps)

    def is_ahead_of(self, other: RowScores) -> bool:
        """Whether the mean of the score that decides, the NLL if it has a say, is lower."""
        return float(self._differences(other)[0].mean()) < 0

    def _differences(self, other: RowScores) -> list[Tensor]:
        """The differences of each row in the scores that decide: NLL, and CRPS as a share of the other's mean."""
        differences = [] if self.by_crps and self.crps is not None else [self.nll - other.nll]
        if self.crps is not None and other.crps is not None:
            differences.append((self.crps - other.crps) / other.crps.mean())
        return differences


def _mean_and_its_variance(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.var(correction=0)) / len(values)


@dataclass
class Curve:
    """The scores of one candidate over the steps of runs of one length, one run for each fold."""

    beta: float | None
    steps: int
    scores: dict[int, RowScores]

    @classmethod
    def of(cls, beta: float | None, steps: int, folds: Sequence[Mapping[int, RowScores]]) -> Curve:
        """Join the scores of all folds, by step, at the steps that all of them reached."""
        shared = set.intersection(*({*scores} for scores in folds))
        joined = {step: RowScores.joined([scores[step] for scores in folds]) for step in sorted(shared)}
        return cls(beta, steps, {step: scores for step, scores in joined.items() if scores.merit < math.inf})

    def at_end(self) -> Curve:
        """Return the curve with its last step alone, or without any where not all folds reached it."""
        return Curve(
            self.beta, self.steps, {step: scores for step, scores in self.scores.items() if step == self.steps}
        )

    @property
    def best_step(self) -> int | None:
        """The step of lowest merit; nothing if no step has a finite one."""
        return min(self.scores, key=lambda step: self.scores[step].merit, default=None)

    @property
    def best(self) -> RowScores | None:
        """The scores at that step."""
        return None if self.best_step is None else self.scores[self.best_step]

    @property
    def merit(self) -> float:
        """The lowest merit."""
        return math.inf if self.best is None else self.best.merit

    @property
    def nll(self) -> float:
        """The NLL at that step, nats a row; infinity if there is none."""
        return math.inf if self.best is None else float(self.best.nll.mean())

    @property
    def error(self) -> float:
        """The standard error of the NLL."""
        return 0.0 if self.best is None else float(self.best.nll.std(correction=0)) / math.sqrt(self.best.nll.numel())


def simplest_of_the_best(curves: Sequence[Curve]) -> Curve:
    """Return the largest beta whose merit is within one standard error of the lowest: the rule of Breiman et al. 1984.

    More regularisation is the safer error. The fallback, whose beta is ``None``, is returned where that one is not clearly better.
    """
    found = {curve.beta: (curve.best, curve) for curve in curves if curve.best is not None}
    fallback = found.pop(None, None)
    betas = {beta: pair for beta, pair in found.items() if beta is not None}
    if not betas:
        return curves[0] if fallback is None else fallback[1]
    lowest = min(betas.values(), key=lambda pair: pair[0].merit)[0]
    best, chosen = betas[max(beta for beta, (scores, _) in betas.items() if scores.is_close_to(lowest))]
    return chosen if fallback is None or best.is_clearly_better_than(fallback[0]) else fallback[1]
