"""Scores of a prediction against held-out targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal.tensors import require_tensor
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.reliability import binned, confidences, require_levels
from pyro_dgp.prediction.rescaled import RescaledPrediction, of_standardised
from pyro_dgp.prediction.target_kinds import has_few_values


def scores(prediction: Prediction | RescaledPrediction, y: Any, target_scale: float | Tensor = 1.0) -> dict[str, float]:
    """Score a prediction by ``nll`` (mean negative log density of the mixture, nats), ``rmse`` and ``crps``.

    Each score is given in the units of training, and as ``nll_original`` and so on in the target's own units. For several
    outputs ``nll`` is that of all outputs of a row together, and ``rmse`` and ``crps`` are averages over the outputs
    (``rmse`` is then the MRMSE of [DSPP] 5.3). There ``nll_per_output`` is the same sum over rows divided by the number of values that were observed, which is
    ``nll`` divided by the number of outputs where none is missing.

    Classes, two or more, have no units and no differences. Their scores are ``nll`` (the log loss), ``accuracy`` (the share of
    rows whose most probable class is the true one), ``brier``, the mean over rows of ``sum_c (p_c - 1[y = c])^2`` (Brier 1950),
    and ``ece``, the expected calibration error in 15 bins (:func:`reliability`).

    With groups they are averages over the rows of all groups.

    :param y: targets in the units that the model was trained on, ``(N,)`` or ``(N, D_out)``; with groups ``(*groups, N)``. NaN, where the
        likelihood takes missing outputs, is left out; rows without any output do not count,
        and neither do outputs without any row.
    :param target_scale: the standard deviation by which the targets were divided, one number or one for each output. A prediction in the
        target's own units, as of a fit of :func:`~pyro_dgp.compare`, knows it, and takes targets in these units.

    >>> import pyro.distributions as dist, torch
    >>> from pyro_dgp import Mixture, Prediction, scores
    >>> def standard_normal(rows):
    ...     return Mixture(dist.Normal(torch.zeros(1, 4), torch.ones(1, 4)), torch.zeros(1))
    >>> figures = scores(Prediction(standard_normal, rows=4), torch.ones(4), target_scale=10.0)
    >>> {name: round(figures[name], 2) for name in ("nll", "rmse", "crps", "rmse_original")}
    {'nll': 1.42, 'rmse': 1.0, 'crps': 0.6, 'rmse_original': 10.0}
    """
    if isinstance(prediction, RescaledPrediction):
        with prediction.in_training_units(y) as (standardised, z):
            return scores(standardised, z, prediction.scale)
    require_tensor(y, "targets are", "y")
    if y.dtype is torch.bool:
        y = y.long()
    if bool(y.isnan().all()):
        raise ValueError("y holds no observed value: scores are averages over one row or more")
    if not prediction.event_shape and has_few_values(next(prediction.mixtures(y))[0].components):
        return _scores_of_classes(prediction, y)
    outputs = prediction.event_shape.numel()
    dtype = y.dtype if y.is_floating_point() else torch.get_default_dtype()
    scale = torch.as_tensor(target_scale, dtype=dtype, device=y.device).expand(outputs)
    observed, rows = (~y.isnan()).reshape(-1, outputs), _rows_observed(y, outputs)
    counted = scale[observed.any(0)]
    with torch.no_grad():
        nll = -float(prediction.log_prob(y).sum() / rows)
        rmse = _average((prediction.mean - y).square(), y, outputs).sqrt()
        crps = _average(prediction.crps(y), y, outputs)
    figures = {
        "nll": nll,
        "rmse": float(rmse.mean()),
        "crps": float(crps.mean()),
        "nll_original": nll + float((observed.sum(0) / rows * scale.log()).sum()),
        "rmse_original": float((rmse * counted).mean()),
        "crps_original": float((crps * counted).mean()),
    }
    return figures | ({"nll_per_output": nll * rows / int(observed.sum())} if outputs > 1 else {})


def _rows_observed(y: Tensor, outputs: int) -> int:
    """Number of rows of which any output was observed."""
    return int((~y.isnan()).reshape(-1, outputs).any(-1).sum())


def _average(terms: Tensor, y: Tensor, outputs: int) -> Tensor:
    """Mean of the terms of each output over the rows in which it was observed; of the outputs that were observed in any."""
    observed = (~y.isnan()).reshape(-1, outputs)
    means = terms.reshape(-1, outputs).where(observed, 0.0).sum(0) / observed.sum(0)
    return means[observed.any(0)]


def _scores_of_classes(prediction: Prediction, y: Tensor) -> dict[str, float]:
    observed = ~y.isnan()
    with torch.no_grad():
        probs, nll = prediction.probs[observed], -float(prediction.log_prob(y).sum() / observed.sum())
    truth = torch.nn.functional.one_hot(y[observed].long(), probs.shape[-1])
    confidence, right = confidences(prediction, y)
    return {
        "nll": nll,
        "accuracy": float(right.double().mean()),
        "brier": float((probs - truth).square().sum(-1).mean()),
        "ece": binned(confidence, right).error,
    }


@of_standardised
def pit(prediction: Prediction, y: Tensor) -> Tensor:
    """Return the probability integral transform ``F(y_n)``, elementwise; uniform on (0, 1) if predictions are calibrated.

    For classes and counts it is randomised, a uniform draw between ``F(y_n - 1)`` and ``F(y_n)`` (Czado, Gneiting and Held
    2009, Eq. 1), with the seed of the prediction. So it is for real numbers that have a probability of their own, as the end of a censored distribution
    has: between F just below the number and at it.

    >>> import pyro.distributions as dist, torch
    >>> from pyro_dgp import Mixture, Prediction, pit
    >>> def standard_normal(rows):
    ...     return Mixture(dist.Normal(torch.zeros(1, 2), torch.ones(1, 2)), torch.zeros(1))
    >>> pit(Prediction(standard_normal, rows=2), torch.tensor([0.0, 10.0])).tolist()
    [0.5, 1.0]
    """
    require_tensor(y, "targets are", "y")
    if not y.is_floating_point():  # whole numbers without a sign have nothing below 0
        y = y.double()
    with torch.no_grad():
        lower, upper = _cdf_around(prediction, y)
        if torch.equal(lower, upper):
            return upper
        generator = torch.Generator(y.device).manual_seed(prediction.seed)
        drawn = torch.rand(y.shape, generator=generator, dtype=upper.dtype, device=y.device)
        return lower + drawn * (upper - lower)


def _cdf_around(prediction: Prediction, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities of less than each target, and of as much or less."""
    groups = prediction.batch_shape[:-1]
    parts = [torch.stack(mixture.cdf_around(part), -1) for mixture, part in prediction.mixtures(y)]
    both = torch.cat([part.unflatten(0, (*groups, -1)) for part in parts], len(groups))
    return both[..., 0], both[..., 1]


@of_standardised
def coverage(prediction: Prediction, y: Tensor, levels: float | Sequence[float] | Tensor) -> Tensor:
    """Return the share of targets inside the central interval: ``()`` for one level, ``(levels,)`` for several.

    The shares equal the levels if predictions are calibrated. NaN among the targets is left out. An interval of classes or counts ends inside
    a value, by a random draw as in :func:`pit`: whole values, such as :meth:`Prediction.quantile` gives, hold more than the level.

    :param levels: probabilities of the intervals, from 0 to 1.

    >>> import pyro.distributions as dist, torch
    >>> from pyro_dgp import Mixture, Prediction, coverage
    >>> def standard_normal(rows):
    ...     return Mixture(dist.Normal(torch.zeros(1, 2), torch.ones(1, 2)), torch.zeros(1))
    >>> coverage(Prediction(standard_normal, rows=2), torch.tensor([0.1, 3.0]), [0.5, 0.9]).tolist()
    [0.5, 0.5]
    """
    require_tensor(y, "targets are", "y")
    levels = torch.as_tensor(levels, device=y.device)
    require_levels(levels)
    distance = (2 * (pit(prediction, y) - 0.5).abs())[~y.isnan()]
    return (distance <= levels[..., None]).double().mean(-1)
