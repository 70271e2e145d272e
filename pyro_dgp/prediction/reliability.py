"""Calibration of predicted classes: confidence beside the share of rows that are right."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_dgp.internal.whole_numbers import whole_number
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.rescaled import of_standardised
from pyro_dgp.prediction.target_kinds import has_few_values


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: rows in bins of equal width by the probability of their most probable class.

    Empty bins are left out.

    :ivar confidence: mean probability of the most probable class in each bin.
    :ivar accuracy: share of the rows of the bin whose most probable class is the true one.
    :ivar count: rows of the bin.
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    @property
    def error(self) -> float:
        """The expected calibration error, ``sum_b n_b / N |accuracy_b - confidence_b|`` (Guo, Pleiss, Sun and Weinberger 2017, Eq. 3); NaN without rows."""
        if not len(self.count):
            return math.nan
        share = self.count / self.count.sum()
        return float((share * (self.accuracy - self.confidence).abs()).sum())


@of_standardised
def reliability(prediction: Prediction, y: Tensor, bins: int = 15) -> Reliability:
    """Return the reliability diagram of predicted classes, of two or more.

    The expected calibration error of even a calibrated model is above 0: :func:`calibration_band` says how far.

    :param y: numbers of the classes, ``(N,)``.
    :raises ValueError: for a target that is no class.

    >>> import pyro.distributions as dist, torch
    >>> from pyro_dgp import Mixture, Prediction, reliability
    >>> def sure(rows):
    ...     return Mixture(dist.Bernoulli(probs=torch.full((1, 4), 0.75)), torch.zeros(1))
    >>> diagram = reliability(Prediction(sure, rows=4), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    >>> diagram.confidence.tolist(), diagram.accuracy.tolist(), diagram.error
    ([0.75], [0.75], 0.0)
    """
    return binned(*confidences(prediction, y), bins)


def confidences(prediction: Prediction, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability of the most probable class of each row, and 1 where this class is the true one, else 0.

    Rows whose class is missing, NaN, are left out.
    """
    mixture, part = next(prediction.mixtures(y))
    components = mixture.components
    if not has_few_values(components):
        raise ValueError(
            f"the target is no class but has the distribution {type(components).__name__}: take pit or coverage, which serve numbers"
        )
    for mixture, part in prediction.mixtures(y):
        mixture.require(part)
    with torch.no_grad():
        probs = prediction.probs
    y = y.to(probs)
    observed = ~y.isnan()
    confidence, chosen = probs.max(-1)
    return confidence[observed].reshape(-1), (chosen == y)[observed].to(confidence).reshape(-1)


def require_levels(levels: Tensor) -> None:
    """Raise for probabilities of intervals that are none."""
    if not bool(((levels >= 0) & (levels <= 1)).all()):
        raise ValueError(f"the level of an interval lies between 0 and 1, got {levels.tolist()}: use 0.9, not 90")


def binned(confidence: Tensor, right: Tensor, bins: int = 15) -> Reliability:
    """Return the diagram of rows by their confidence and whether they are right."""
    whole_number("bins", bins, 1)
    number = (confidence * bins).long().clamp(max=bins - 1)
    count = torch.bincount(number, minlength=bins)
    full = count > 0
    total = count[full].to(confidence)
    sums = [torch.bincount(number, weights=values, minlength=bins)[full] for values in (confidence, right)]
    return Reliability(sums[0] / total, sums[1] / total, count[full])


@of_standardised
def calibration_band(
    prediction: Prediction, y: Tensor, level: float = 0.95, *, bins: int = 15, draws: int = 1000
) -> tuple[float, float]:
    """Return the central interval of the expected calibration error if the predicted probabilities were right, by simulated classes.

    An error above the upper end is one of the model and not of chance.

    >>> import pyro.distributions as dist, torch
    >>> from pyro_dgp import Mixture, Prediction, calibration_band
    >>> def sure(rows):
    ...     return Mixture(dist.Bernoulli(probs=torch.full((1, 400), 0.75)), torch.zeros(1))
    >>> low, high = calibration_band(Prediction(sure, rows=400), torch.ones(400))
    >>> 0.0 <= low < high < 0.06
    True
    """
    require_levels(torch.as_tensor(level))
    whole_number("draws", draws, 1)
    confidence, _ = confidences(prediction, y)
    generator = torch.Generator().manual_seed(prediction.seed)
    errors = []
    for _ in range(draws):
        right = torch.rand(len(confidence), generator=generator).to(confidence) < confidence
        errors.append(binned(confidence, right.to(confidence), bins).error)
    ends = torch.tensor([0.5 - level / 2, 0.5 + level / 2], dtype=torch.float64)
    low, high = torch.tensor(errors, dtype=torch.float64).quantile(ends).tolist()
    return low, high
