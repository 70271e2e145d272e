"""Scores of a prediction against held-out targets."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_dgp.prediction import Prediction


def scores(prediction: Prediction, y: Tensor, target_scale: float = 1.0) -> dict[str, float]:
    """``nll`` (mean negative log density of the mixture, nats), ``rmse``, ``crps``, each also in the target's own units.

    :param y: targets in the units that the model was trained on, ``(N,)``.
    :param target_scale: the standard deviation by which they were divided.
    """
    with torch.no_grad():
        nll = -float(prediction.log_prob(y).mean())
        rmse = float((prediction.mean - y).square().mean().sqrt())
        crps = float(prediction.crps(y).mean())
    return {
        "nll": nll,
        "rmse": rmse,
        "crps": crps,
        "nll_original": nll + math.log(target_scale),
        "rmse_original": rmse * target_scale,
        "crps_original": crps * target_scale,
    }


def coverage(prediction: Prediction, y: Tensor, levels: Tensor) -> Tensor:
    """Share of targets inside the central interval of each level, shape of ``levels``: equal to them if calibrated."""
    with torch.no_grad():
        distance = 2 * (prediction.cdf(y) - 0.5).abs()
    return (distance[None] <= levels[:, None]).double().mean(-1)
