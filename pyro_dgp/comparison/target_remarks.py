"""Sentences on what the columns of a data set are taken for."""

from __future__ import annotations

import numpy as np

from pyro_dgp.data.categories import words_of_columns
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.tasks import look_like_classes, look_like_counts
from pyro_dgp.training.held_out import FEW_VALUES

#: Words of a column, and columns, that a sentence shows.
_SHOWN = 5


def on_words(dataset: Dataset) -> list[str]:
    """Return a sentence on columns of words among the inputs, and one on a target of words."""
    said = []
    if words := words_of_columns(dataset.columns, dataset.x):
        shown = [
            f"{name} ({len(each)} words: {', '.join(each[:_SHOWN])}{', ...' * (len(each) > _SHOWN)})"
            for name, each in words.items()
        ]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        said.append(f"columns of words are inputs of 0 and 1, one for each word: {'; '.join(shown[:_SHOWN])}{more}")
    if dataset.labels:
        said.append(f"the target {dataset.target!r} holds words, which are {dataset.task}: {', '.join(dataset.labels)}")
    return said


def on_classes_and_counts(dataset: Dataset) -> list[str]:
    """Return a sentence on a target of classes or counts that are numbers."""
    if dataset.task.is_standardized:
        return []
    if dataset.task.is_guessed:
        return [
            f"the target {dataset.target!r} is taken for {dataset.task}, by its values: say --task counts if they are counts, and --task regression if "
            "they are real numbers"
        ]
    return [] if dataset.labels else [f"the target {dataset.target!r} holds {dataset.task}, and is left as it is"]


def on_real_numbers(dataset: Dataset) -> list[str]:
    """Return sentences on a target that is taken for real numbers, and may be something else."""
    if not dataset.task.is_standardized:
        return []
    return [*on_two_values(dataset), *on_whole_numbers(dataset), *on_few_values(dataset)]


def on_two_values(dataset: Dataset) -> list[str]:
    """Return a sentence on a real target that has two values."""
    if len(np.unique(dataset.y)) != 2:
        return []
    return [
        "the target has two values and is treated as a number: for classes write words or 0 and 1 for them, and say --task binary, Settings(task='binary'), or give "
        "a model the likelihood Bernoulli()"
    ]


def on_whole_numbers(dataset: Dataset) -> list[str]:
    """Return a sentence on a real target whose values look like classes or counts, where nobody said that they are real numbers."""
    y, task = dataset.y, dataset.task
    if not task.is_guessed or not task.is_standardized or y.ndim != 1:
        return []
    meant = []
    if look_like_classes(y):
        numbered = "" if y.min() == 0 else "number classes 0, 1, ... and "
        meant.append(f"{numbered}say --task multiclass, Settings(task='multiclass'), if they are classes")
    if look_like_counts(y) or (meant and y.min() > 0):
        meant.append("say --task counts, Settings(task='counts'), if they are counts")
    if not meant:
        return []
    return [
        f"the target {dataset.target!r} is taken for real numbers, and holds whole numbers from {y.min():g} to {y.max():g}: {'; '.join(meant)}"
    ]


def on_few_values(dataset: Dataset) -> list[str]:
    """Return a sentence on a real target that has few values."""
    distinct, rows = len(np.unique(dataset.y)), len(dataset.y)
    if dataset.y.ndim != 1 or not 2 < distinct < FEW_VALUES * rows:
        return []
    return [
        f"the target has {distinct} values in {rows} rows: a density can put a spike on each of them, so that NLL says little: look at CRPS "
        "and RMSE"
    ]
