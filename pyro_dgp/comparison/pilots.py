"""Pilots: fits of methods to a part of the training rows, scored row by row on the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.comparison.files import Row
from pyro_dgp.comparison.request import for_task
from pyro_dgp.comparison.sweep import Run, planned
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.splitting import held_out_rows, is_constant, split
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.training.held_out import RowScores
from pyro_dgp.zoo.method import Method
from pyro_dgp.zoo.settings import Settings

#: Share of the training rows in a fold, at least and at most.
LEAST_SHARE, MOST_SHARE = 1 / 9, 1 / 5
#: Rows in a fold: as many as these shares allow of the first number, and of the second at most.
SCORED_ROWS, MOST_ROWS = 200, 1000
#: Rows that are scored in all folds together, at least, and folds at most.
LEAST_SCORED, MOST_FOLDS = 50, 3
#: Training rows, at least.
LEAST_ROWS = 9
#: Weight of the KL in a pilot of a predictive loss, where the settings have none.
PILOT_BETA = 0.05
#: Rows that a first short fit is trained on and scored at, at most.
PREPARED_ROWS, PREPARED_SCORED = 200, 50
#: Names of the methods that this process has fitted.
_FITTED: set[str] = set()


@dataclass(frozen=True)
class Pilot:
    """A pilot on one fold.

    :ivar name: of the method.
    """

    name: str
    run: Run

    @property
    def work(self) -> float:
        """Number of steps that it makes in all."""
        inference, settings, rows = self.run.method.inference, self.run.settings, trained_rows(self.run.dataset)
        return inference.cost(settings, rows) * settings.num_steps(rows, inference.settled(settings).rows_of_step)

    def row(self) -> Row:
        """Fit and score; a fit that fails has its error in the place of scores. Before the first fit of a method in a process there is a short one, so that
        its time is not that of what is loaded and compiled once.
        """
        _prepare(self.run)
        start = time.perf_counter()
        try:
            prediction, y = self.run.held_out()
            with torch.no_grad():
                scores = RowScores.of(prediction, y, (prediction, y))
                figures: Row = {"nll": scores.nll, "crps": scores.crps, "left": self._share_left(prediction, y)}
        except Exception as error:  # whatever it is, the other methods go on
            figures = {"error": f"{type(error).__name__}: {error}"}
        return {"name": self.name, "fold": self.run.settings.split, **figures, "seconds": time.perf_counter() - start}

    def _share_left(self, prediction: Prediction, y: Tensor) -> float | None:
        """Return the mean squared error as a share of the variance of the training targets; nothing for several classes, which have no mean."""
        data = self.run.dataset
        if data.task.kind == "multiclass":
            return None
        error = (y - prediction.mean).square().mean()
        return float(error) if data.task.is_standardized else float(error / data.y.var())

    def failed(self, error: str) -> Row:
        """Return the row of a run that had no end, with what ended it."""
        return {"name": self.name, "fold": self.run.settings.split, "error": error, "seconds": 0.0}


def _prepare(run: Run) -> None:
    """Make a fit of a few steps to a few rows, unless this process has fitted the method before."""
    if run.method.name in _FITTED:
        return
    _FITTED.add(run.method.name)
    size = run.settings.batch_size
    settings = replace(
        run.settings, epochs=1, steps=None, batch_size=None if size is None else max(size, PREPARED_ROWS)
    )
    with suppress(Exception):  # the fit that counts tells of it
        replace(run, dataset=_few_rows(run.dataset, settings.split), settings=settings).held_out()


def _few_rows(data: Dataset, fold: int) -> Dataset:
    """Return some of the rows in a fold and of the others, spread over all of them, with the inputs that differ among these."""
    assert data.splits is not None
    held = data.splits[:, fold]
    parts = [np.flatnonzero(mask) for mask in (~held, held)]
    counts = [min(len(rows), most) for rows, most in zip(parts, (PREPARED_ROWS, PREPARED_SCORED), strict=True)]
    chosen = [rows[np.linspace(0, len(rows) - 1, count).astype(int)] for rows, count in zip(parts, counts, strict=True)]
    varied, every = ~is_constant(data.x[chosen[0]]), np.sort(np.concatenate(chosen))
    columns = tuple(name for name, is_varied in zip(data.columns, varied, strict=False) if is_varied)
    return replace(data, x=data.x[every][:, varied], y=data.y[every], splits=data.splits[every], columns=columns)


def distinct_inputs(data: Dataset) -> int:
    """Return the number of distinct inputs among the rows that are in no fold."""
    assert data.splits is not None
    return len(np.unique(data.x[~data.splits.any(1)], axis=0))


def rows_of_fold(rows: int) -> int:
    """Return the number of rows in a fold of so many training rows: 200, but a ninth at least, a fifth and 1,000 at most."""
    return min(MOST_ROWS, max(1, round(LEAST_SHARE * rows), min(SCORED_ROWS, round(MOST_SHARE * rows))))


def pilot_data(dataset: Dataset, number: int, *, seed: int = 0) -> Dataset:
    """Return the training rows of a split, with folds of their own: one, or up to three where it has fewer than 50 rows. No row is in two of them.

    Inputs that are constant in the training part of a fold are left out.

    :raises ValueError: for a split with fewer than 9 training rows, or with inputs that are all constant.
    """
    split(dataset, number)  # raises for what a comparison would refuse
    train = ~held_out_rows(dataset, number)
    rows = int(train.sum())
    if rows < LEAST_ROWS:
        raise ValueError(
            f"split {number} of {dataset.name!r} has {rows} training rows: advice needs {LEAST_ROWS} at least"
        )
    count = rows_of_fold(rows)
    folds = min(MOST_FOLDS, -(-LEAST_SCORED // count))
    masks, order = np.zeros((rows, folds), dtype=bool), np.random.RandomState(seed).permutation(rows)
    for fold in range(folds):
        masks[order[fold * count : (fold + 1) * count], fold] = True
    x = dataset.x[train]
    varied = ~np.any([is_constant(x[~masks[:, fold]]) for fold in range(folds)], axis=0)
    if not varied.any():
        raise ValueError(
            f"the inputs of {dataset.name!r} are constant in parts of the training rows: give more rows or inputs"
        )
    columns = tuple(name for name, is_varied in zip(dataset.columns, varied, strict=False) if is_varied)
    data = replace(dataset, x=x[:, varied], y=dataset.y[train], splits=masks, columns=columns)
    for fold in range(folds):
        split(data, fold)  # raises for what cannot be standardised
    return data


def trained_rows(data: Dataset) -> int:
    """Return the number of rows that a pilot on the first fold is trained on."""
    assert data.splits is not None
    return len(data.x) - int(data.splits[:, 0].sum())


def pilots(data: Dataset, methods: Sequence[str], settings: Settings, *, dtype: str = "float64") -> list[Pilot]:
    """Return the pilots of methods on every fold of :func:`pilot_data`.

    Those of a predictive loss have one beta, without the search, see :meth:`~pyro_dgp.zoo.inference.Inference.for_pilot`.
    """
    assert data.splits is not None
    settings, folds = for_task(settings, data.task), range(data.splits.shape[1])
    settings = replace(settings, beta=PILOT_BETA if settings.beta is None else settings.beta)
    runs = planned([data], methods, splits=folds, seeds=[settings.seed], settings=settings, dtype=dtype)
    return [Pilot(run.method.name, replace(run, method=_for_pilot(run.method))) for run in runs]


def _for_pilot(method: Method) -> Method:
    return replace(method, inference=method.inference.for_pilot())
