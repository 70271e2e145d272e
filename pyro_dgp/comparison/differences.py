"""Differences between methods on the same test rows, and the rows of the table that show them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyro_dgp.comparison.files import ROW_NLL, Row

#: What the table says in the place of beta where a predictive method has fallen back on its other loss.
FALLBACK = "fallback"


def shown(rows: Sequence[Row], curves: Mapping[str, Mapping[str, np.ndarray]]) -> list[Row]:
    """Return the rows as the table shows them: with the difference in NLL from the lowest, its standard error, and words for a beta that there is none of."""
    found = behind(rows, curves)
    lowest = {_lowest(rows): (0.0,)} if found else {}
    return [
        row
        | ({"beta": FALLBACK} if row.get("beta", 0.0) is None else {})
        | dict(zip(("behind", "behind_error"), (lowest | found).get(row["method"], ()), strict=False))
        for row in rows
    ]


def behind(
    rows: Sequence[Mapping[str, Any]], curves: Mapping[str, Mapping[str, np.ndarray]], reference: str | None = None
) -> dict[str, tuple[float, float]]:
    """Return, by method, by how much its NLL is above that of another one, nats a row, and the standard error of that over the test rows.

    Each test row is scored by both methods, so that what makes a row hard for both does not count. Left out are the other one, methods without scores of
    each row or of other rows, and those that are not finite.

    :param reference: the other one; the method of the lowest NLL if not given.
    """
    reference = _lowest(rows) if reference is None else reference
    best = curves.get(reference or "", {}).get(ROW_NLL)
    if best is None or len(best) < 2 or not np.isfinite(best).all():
        return {}
    scores = {row["method"]: curves.get(row["method"], {}).get(ROW_NLL) for row in rows}
    differences = {
        name: values - best
        for name, values in scores.items()
        if name != reference and values is not None and len(values) == len(best) and np.isfinite(values).all()
    }
    return {
        name: (float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)))
        for name, values in differences.items()
    }


def _lowest(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the method of the lowest finite NLL."""
    finite = {row["method"]: float(row["nll"]) for row in rows if math.isfinite(row["nll"])}
    return min(finite, key=finite.__getitem__, default=None)
