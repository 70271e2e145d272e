"""Convergence of chains: R-hat, effective draws, divergences."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def convergence(draws: dict[str, Tensor], divergences: np.ndarray | None) -> dict[str, float | int | None]:
    """Number of divergent transitions, largest rank-normalised split R-hat and smallest bulk ESS over all quantities.

    Nothing for divergences where the sampler has none. One chain counts as two halves. Nothing where a figure cannot be had: fewer than 8 draws, or a quantity of which all draws are equal.
    """
    from pyro_dgp.export.arviz_groups import from_groups, import_arviz

    def halves(values: Tensor) -> Tensor:
        half = values.shape[1] // 2
        return values[0, : 2 * half].reshape(2, half, *values.shape[2:]) if len(values) == 1 else values

    diverged = None if divergences is None else int(divergences.sum())
    figures: dict[str, float | int | None] = {"divergences": diverged, "r_hat_max": None, "ess_min": None}
    arrays = {name: halves(values).cpu().numpy() for name, values in draws.items()}
    moved = all(np.ptp(array, axis=(0, 1)).all() for array in arrays.values())
    if not moved or min(array.shape[1] for array in arrays.values()) < 4:
        return figures
    summary = import_arviz().summary(from_groups({"posterior": arrays}), kind="diagnostics", round_to="none")
    for key, value in (("r_hat_max", float(summary["r_hat"].max())), ("ess_min", float(summary["ess_bulk"].min()))):
        figures[key] = value if np.isfinite(value) else None
    return figures
