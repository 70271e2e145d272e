"""A sentence on test rows that are copies of training rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pyro_dgp.data.dataset import Dataset

#: Share of the test rows from which copies are mentioned.
_WORTH_A_WORD = 0.05


def on_copies(dataset: Dataset, masks: Iterable[NDArray[np.bool_]]) -> list[str]:
    """Return a sentence where a twentieth of the test rows, or more, have the inputs and the target of a training row.

    :param masks: test rows ``(N,)`` of each part.
    """
    table = np.ascontiguousarray(np.column_stack([dataset.x, dataset.y]))
    rows = [row.tobytes() for row in table]
    tested, copies = 0, 0
    for mask in masks:
        seen = {rows[number] for number in np.flatnonzero(~mask)}
        test = np.flatnonzero(mask)
        tested += len(test)
        copies += sum(rows[number] in seen for number in test)
    if copies < max(1.0, _WORTH_A_WORD * tested):
        return []
    return [
        f"{copies} of {tested} test rows are copies of training rows, in inputs and target: their scores say little of new rows. Drop copies "
        "(drop_duplicates in pandas) unless such rows are several observations"
    ]
