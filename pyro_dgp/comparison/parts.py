"""The training and test rows of a comparison: one split, or the folds of a cross-validation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dgp.data.dataset import Array, Dataset
from pyro_dgp.data.splitting import Scaler, held_out_rows, identity, split
from pyro_dgp.data.tasks import Task

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """One training and test part, in the units that models are fitted in.

    :ivar inputs: the map from inputs in their own units to those of ``x_train`` and ``x_test``.
    :ivar target: the same for the targets.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    inputs: Scaler
    target: Scaler

    @property
    def target_scale(self) -> Tensor:
        """Units of the target in one unit of ``y_train``: ``()``, or one for each output."""
        return torch.as_tensor(self.target.scale)


def fold_masks(dataset: Dataset, folds: int, seed: int) -> list[Mask]:
    """Test rows of each fold: those of the data where these bring as many splits, each row in one of them, else a random partition of the rows by that seed.

    :raises ValueError: for fewer than 2 folds, or more than rows.
    """
    own = dataset.splits
    if own is not None and own.shape[1] == folds and (np.sum(own, 1) == 1).all():
        return list(own.T)
    rows = len(dataset.x)
    if not 2 <= folds <= rows:
        raise ValueError(f"folds must be at least 2 and at most the {rows} rows of {dataset.name!r}, got {folds}")
    masks = []
    for chosen in np.array_split(np.random.RandomState(seed).permutation(rows), folds):
        mask = np.zeros(rows, dtype=bool)
        mask[chosen] = True
        masks.append(mask)
    return masks


def masks_of(dataset: Dataset, folds: int | None, number: int) -> list[Mask]:
    """Test rows of each part: one for each fold, or those of one split."""
    return [held_out_rows(dataset, number)] if folds is None else fold_masks(dataset, folds, number)


def part_of(
    dataset: Dataset,
    mask: Mask,
    like: Tensor,
    *,
    standardize: bool = True,
    standardize_target: bool = True,
) -> Part:
    """The part whose test rows are given, standardised by the statistics of the other rows.

    :param like: a tensor of the dtype and on the device that are wanted.
    :param standardize: whether anything is standardised.
    :param standardize_target: whether the target is, too; not if it is a class or a count.
    """
    ready = split(replace(dataset, splits=mask[:, None], task=Task()), 0, dtype=like.dtype, device=str(like.device))
    if standardize and standardize_target:
        scalers = Scaler.fit(dataset.x[~mask]), Scaler.fit(dataset.y[~mask])
        return Part(ready.x_train, ready.y_train, ready.x_test, ready.y_test, *scalers)
    inputs = Scaler.fit(dataset.x[~mask]) if standardize else identity(dataset.x.shape[1])

    def tensor(values: Array) -> Tensor:
        return torch.as_tensor(values, dtype=like.dtype, device=like.device)

    x_train, x_test = tensor(inputs(dataset.x[~mask])), tensor(inputs(dataset.x[mask]))
    return Part(x_train, tensor(dataset.y[~mask]), x_test, tensor(dataset.y[mask]), inputs, identity())


def with_test_rows(train: Dataset, x: Array, y: Array) -> Dataset:
    """All rows of a data set as training rows, and others as test rows."""
    mask = np.zeros((len(train.x) + len(x), 1), dtype=bool)
    mask[len(train.x) :] = True
    return replace(train, x=np.concatenate([train.x, x]), y=np.concatenate([train.y, y]), splits=mask)
