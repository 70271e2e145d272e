"""Scores of a prediction against held-out targets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_dgp.prediction.prediction import Prediction


def scores(prediction: Prediction, y: Tensor, target_scale: float | Tensor = 1.0) -> dict[str, float]:
    """``nll`` (mean negative log density of the mixture, nats), ``rmse``, ``crps``, each also in the target's own units.

    For several outputs ``nll`` is that of all outputs of a row together, ``rmse`` and ``crps`` are averages over the outputs
    (``rmse`` is then the MRMSE of [DSPP] 5.3), and ``nll_per_output`` is ``nll`` over their number.

    :param y: targets in the units that the model was trained on, ``(N,)`` or ``(N, D_out)``.
    :param target_scale: the standard deviation by which they were divided, one for each output.
    """
    outputs = y.shape[-1] if y.dim() == 2 else 1
    scale = torch.as_tensor(target_scale, dtype=y.dtype, device=y.device).expand(outputs)
    with torch.no_grad():
        nll = -float(prediction.log_prob(y).mean())
        rmse = (prediction.mean - y).square().reshape(len(y), outputs).mean(0).sqrt()
        crps = prediction.crps(y).reshape(len(y), outputs).mean(0)
    figures = {
        "nll": nll,
        "rmse": float(rmse.mean()),
        "crps": float(crps.mean()),
        "nll_original": nll + float(scale.log().sum()),
        "rmse_original": float((rmse * scale).mean()),
        "crps_original": float((crps * scale).mean()),
    }
    return figures | ({"nll_per_output": nll / outputs} if outputs > 1 else {})


def pit(prediction: Prediction, y: Tensor) -> Tensor:
    """Probability integral transform ``F(y_n)``, elementwise: uniform on (0, 1) if predictions of a continuous target are calibrated."""
    with torch.no_grad():
        return prediction.cdf(y)


def coverage(prediction: Prediction, y: Tensor, levels: Tensor | Sequence[float]) -> Tensor:
    """Share of targets inside the central interval of each level, ``(levels,)``: equal to them if calibrated."""
    levels = torch.as_tensor(levels)
    distance = (2 * (pit(prediction, y) - 0.5).abs()).reshape(-1)
    return (distance[None] <= levels[:, None]).double().mean(-1)
