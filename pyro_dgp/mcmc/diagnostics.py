"""Convergence of chains: R-hat, effective draws, divergences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from pyro_dgp.diagnosis.symptoms import Finding, found

#: Largest R-hat of chains that agree.
LARGEST_R_HAT = 1.05


def convergence(draws: dict[str, Tensor], divergences: np.ndarray | None = None) -> dict[str, float | int | None]:
    """Number of divergent transitions, largest rank-normalised split R-hat and smallest bulk ESS over all quantities.

    The halves of a single chain are compared with each other. A figure that cannot be had is ``None``: with fewer than 8 draws, or where all draws of a
    quantity are equal or one is NaN. Entries of a square matrix that are 0 or 1 in every draw, as those of the Cholesky factor of correlations, are no quantities.

    :param draws: quantities by name, ``(chains, draws, ...)``.
    :param divergences: whether each draw ended in a divergence, ``(chains, draws)``; not given for a sampler that has none.
    :raises ValueError: for draws that are not named, or that have no axis of chains.
    """
    from pyro_dgp.export.arviz_groups import from_groups, import_arviz

    if not isinstance(draws, Mapping):
        raise ValueError(f"convergence takes draws by name, as {{'f': draws}}, and got a {type(draws).__name__}")
    for name, values in draws.items():
        if values.dim() < 2:
            raise ValueError(
                f"the draws of {name!r} have shape {tuple(values.shape)} where (chains, draws, ...) is needed: pass draws.unsqueeze(0) of one chain"
            )

    def halves(values: Tensor) -> Tensor:
        half = values.shape[1] // 2
        return values[0, : 2 * half].reshape(2, half, *values.shape[2:]) if len(values) == 1 else values

    diverged = None if divergences is None else int(divergences.sum())
    figures: dict[str, float | int | None] = {"divergences": diverged, "r_hat_max": None, "ess_min": None}
    arrays = {name: _without_fixed_entries(halves(values).double().cpu().numpy()) for name, values in draws.items()}
    moved = all(np.ptp(array, axis=(0, 1)).all() for array in arrays.values())
    has_gaps = any(bool(values.isnan().any()) for values in draws.values())
    if has_gaps or not moved or min(array.shape[1] for array in arrays.values()) < 4:
        return figures
    with np.errstate(invalid="ignore", divide="ignore"):  # of chains that hardly moved
        summary = import_arviz().summary(from_groups({"posterior": arrays}), kind="diagnostics", round_to="none")
    for key, value in (("r_hat_max", float(summary["r_hat"].max())), ("ess_min", float(summary["ess_bulk"].min()))):
        figures[key] = value if np.isfinite(value) else None
    return figures


def _without_fixed_entries(array: np.ndarray) -> np.ndarray:
    """Return draws of square matrices without the entries that are 0 or 1 in all of them, where there are others."""
    if array.ndim < 4 or array.shape[-1] != array.shape[-2] or array.shape[-1] == 1:
        return array
    entries = array.reshape(*array.shape[:2], -1)
    is_fixed = (entries == 0).all((0, 1)) | (entries == 1).all((0, 1))
    return array if is_fixed.all() or not is_fixed.any() else entries[..., ~is_fixed]


def doubts(figures: Mapping[str, Any], transitions: int) -> list[Finding]:
    """Return findings on chains that have not converged.

    :param figures: ``r_hat_max`` and ``divergences`` of :func:`convergence`, where there are any.
    :param transitions: number of transitions of all chains.
    """
    said = []
    r_hat, divergences = figures.get("r_hat_max"), figures.get("divergences")
    if isinstance(r_hat, float) and not r_hat <= LARGEST_R_HAT:
        said.append(found("not converged", r_hat=r_hat))
    if "r_hat_max" in figures and r_hat is None:
        said.append(found("no R-hat"))
    if isinstance(divergences, int) and divergences:
        said.append(found("divergences", divergences=divergences, transitions=transitions))
    return said
