"""Training and test parts of a data set, standardised by the training part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_dgp.data.categories import made_of
from pyro_dgp.data.dataset import Array, Dataset
from pyro_dgp.internal.affine import standardised


@dataclass(frozen=True)
class Scaler:
    """Affine map to zero mean and unit variance, by the statistics of the training part alone."""

    mean: Array
    scale: Array

    @classmethod
    def fit(cls, values: Array) -> Scaler:
        """Statistics of the columns of ``values``, of any size that floating-point numbers have."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = np.asarray(values.mean(0)), np.asarray(values.std(0))
        if not (np.isfinite(mean).all() and np.isfinite(scale).all()):  # squares that are too large
            size = np.abs(values).max(0)
            size = np.where(size > 0, size, 1.0)
            mean = np.asarray(size * (values / size).mean(0))
            scale = np.asarray(size * (values / size).std(0))
        return cls(mean, scale)

    def __call__(self, values: Array) -> Array:
        """Standardised values."""
        scaled: Array = standardised(values, self.mean, self.scale)
        return scaled


@dataclass(frozen=True)
class Split:
    """One training and test part, standardised by the training part.

    :ivar target: the map from targets in their own units. Those that are no real numbers are left as they are.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    target: Scaler


def random_folds(rows: int, folds: int, *, seed: int = 0) -> NDArray[np.bool_]:
    """Test masks ``(rows, folds)`` of a random cross-validation: each row is tested in one fold, and sizes differ by one at most."""
    if not 2 <= folds <= rows:
        raise ValueError(f"{rows} rows are split into 2 to {rows} folds, not {folds}")
    masks = np.zeros((rows, folds), dtype=bool)
    masks[np.random.RandomState(seed).permutation(rows), np.arange(rows) % folds] = True
    return masks


def held_out_rows(dataset: Dataset, number: int) -> NDArray[np.bool_]:
    """Mask ``(N,)`` of the test rows of split ``number``: the data's own, else a random tenth drawn with that seed."""
    if dataset.splits is not None:
        count = dataset.splits.shape[1]
        if not 0 <= number < count:
            raise ValueError(f"{dataset.name!r} has splits 0 to {count - 1}, not {number}")
        mask = np.asarray(dataset.splits)[:, number]
        if not np.isin(mask, (0, 1)).all():
            raise ValueError(
                f"splits of {dataset.name!r} hold other numbers than 0 and 1: give masks (N, K), true at the rows that are tested"
            )
        return mask.astype(bool)
    if number < 0:
        raise ValueError(f"a split is numbered from 0, got {number}")
    test = np.zeros(len(dataset.x), dtype=bool)
    test[np.random.RandomState(number).permutation(len(test))[: max(1, len(test) // 10)]] = True
    return test


def split(dataset: Dataset, number: int, *, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Split:
    """Training and test part ``number``, standardised; :func:`held_out_rows` says which rows are tested.

    :raises ValueError: if there is no such split, or a column is constant in its training part.
    """
    test = held_out_rows(dataset, number)
    if test.all() or not test.any():
        raise ValueError(f"split {number} of {dataset.name!r} leaves no training or no test rows: check 'splits'")
    if dataset.x.dtype != np.float64 or dataset.y.dtype != np.float64:  # statistics of other numbers overflow or round
        dataset = replace(dataset, x=np.asarray(dataset.x, dtype=float), y=np.asarray(dataset.y, dtype=float))
    is_real = dataset.task.is_standardized
    scale_x, scale_y = Scaler.fit(dataset.x[~test]), Scaler.fit(dataset.y[~test]) if is_real else identity()
    if (constant := np.flatnonzero(is_constant(dataset.x[~test]))).size:
        _refuse_constant(dataset, int(constant[0]), ~test)
    if (flat := is_constant(dataset.y[~test].reshape(int((~test).sum()), -1))).any():
        named = f"output {dataset.outputs[int(flat.argmax())]!r}" if dataset.outputs else "the target"
        raise ValueError(f"{named} of {dataset.name!r} is constant in the training part: there is nothing to learn")

    def tensor(values: Array) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=device)

    x_train, y_train = tensor(scale_x(dataset.x[~test])), tensor(scale_y(dataset.y[~test]))
    for number, (values, scaled) in enumerate(zip(dataset.x[~test].T, x_train.T, strict=True)):
        require_apart(values, scaled, f"input column {dataset.column(number)} of {dataset.name!r}")
    for number, (values, scaled) in enumerate(zip(_columns(dataset.y[~test]).T, _columns(y_train).T, strict=True)):
        named = f"output {dataset.outputs[number]!r}" if dataset.outputs else f"the target {dataset.target!r}"
        require_apart(values, scaled, f"{named} of {dataset.name!r}")
    return Split(
        x_train=x_train,
        y_train=y_train,
        x_test=tensor(scale_x(dataset.x[test])),
        y_test=tensor(scale_y(dataset.y[test])),
        target=scale_y,
    )


def _refuse_constant(dataset: Dataset, number: int, train: NDArray[np.bool_]) -> NoReturn:
    """Raise ``ValueError`` for an input that is constant in the training part."""
    values = dataset.x[:, number]
    source, words = made_of(dataset.columns[number], values) if dataset.columns else ("", [])
    if not words or values.min() == values.max():
        raise ValueError(
            f"input column {dataset.column(number)} of {dataset.name!r} is constant in the training part: drop it"
        )
    word, other = (*words, "other words")[:2]
    rare, count = (other, int((1 - values).sum())) if values[train].any() else (word, int(values.sum()))
    raise ValueError(
        f"column {source!r} of {dataset.name!r} has {rare!r} in {count} of {len(values)} rows, and in none of the training part: drop such rows, write a more "
        "frequent word in them, or train on a split that has them"
    )


def identity(columns: int | None = None) -> Scaler:
    """Return the map that changes nothing, of so many columns or of a single number."""
    shape = () if columns is None else (columns,)
    return Scaler(np.zeros(shape), np.ones(shape))


def require_apart(values: Array, scaled: Tensor, name: str) -> None:
    """Raise ``ValueError`` where one value is so large that most of the others become equal when a column is standardised.

    :param values: one column ``(N,)``, of which the first 10,000 are looked at.
    :param scaled: the same column standardised, in the precision of the fit.
    """
    some, ready = values[:10_000], scaled[:10_000].detach().cpu().numpy()
    before, after = len(np.unique(some)), len(np.unique(ready))
    if after > 0.5 * before:
        return
    row = int(np.abs(values - np.median(values)).argmax())
    raise ValueError(
        f"{name} holds {values[row]:.3g}, so far from its other values that {after} of {before} stay apart when it is standardised to "
        f"{ready.dtype}: mend or drop such rows"
    )


def _columns(values: Any) -> Any:
    return values.reshape(len(values), -1)


def is_constant(values: Array) -> NDArray[np.bool_]:
    """Tell of each column ``(N, D)`` whether it is constant, up to rounding: ``(D,)``."""
    spread = values.max(0) - values.min(0)
    return np.asarray(spread <= 1e-12 * np.abs(values).max(0))
