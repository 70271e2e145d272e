"""Tasks: what the targets of a data set are, and what may be done to them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

import numpy as np
from numpy.typing import NDArray

#: Kinds of targets by name: real numbers, classes 0 and 1, classes 0, ..., C - 1, and counts 0, 1, 2, ...
TASKS = ("regression", "binary", "multiclass", "counts")
#: Most classes that whole numbers are taken for where nothing says what they are.
_MOST_GUESSED = 10


@dataclass(frozen=True)
class Task:
    """The kind of the targets of a data set.

    :ivar kind: one of :data:`TASKS`.
    :ivar classes: C; 2 for a binary target, 0 for targets that are no classes.
    :ivar outputs: number of targets of a row; several are real numbers.
    :ivar is_guessed: whether the values of the targets alone say so, and nobody named it.

    >>> from pyro_dgp import Task
    >>> Task().is_standardized, Task("multiclass", 3).is_standardized
    (True, False)
    """

    kind: str = "regression"
    classes: int = 0
    outputs: int = 1
    _: KW_ONLY
    is_guessed: bool = field(default=False, compare=False)

    @property
    def is_standardized(self) -> bool:
        """Whether targets may be standardised: real numbers alone."""
        return self.kind == "regression"

    def __str__(self) -> str:
        words = {
            "regression": "real numbers" if self.outputs == 1 else f"{self.outputs} real numbers a row",
            "binary": "two classes",
            "multiclass": f"{self.classes} classes",
            "counts": "counts",
        }
        return words[self.kind]


def task_of(kind: str, y: NDArray[np.float64], name: str) -> Task:
    """Return the task of that kind, with the number of classes of the targets.

    :param name: the data set, for messages.
    :raises ValueError: for targets that are of another kind.
    """
    if kind not in TASKS:
        raise ValueError(f"there is no task {kind!r}: choose from {', '.join(TASKS)}")
    if kind == "regression":
        return Task(outputs=_outputs(y))
    if y.ndim == 2:
        raise ValueError(
            f"{name!r} has {y.shape[1]} targets, which are real numbers: leave --task out, or name one target"
        )
    whole = bool(np.all(y == np.round(y))) and bool(np.all(y >= 0))
    if kind == "counts":
        if not whole:
            raise ValueError(f"the targets of {name!r} are no counts: counts are whole numbers, 0 or more")
        return Task("counts")
    found = np.unique(y)
    if kind == "binary":
        if not np.isin(found, (0.0, 1.0)).all():
            raise ValueError(
                f"the targets of {name!r} are not 0 and 1, as those of two classes are: they have {len(found)} values from {found[0]:g} to {found[-1]:g}: "
                + (
                    f"write 0 for {found[0]:g} and 1 for {found[-1]:g}"
                    if len(found) == 2
                    else "name another task, or the target"
                )
            )
        return Task("binary", 2)
    if not whole:
        raise ValueError(
            f"the targets of {name!r} are no classes: classes are whole numbers 0, 1, ..., C - 1, or words"
        )
    if found[0] > 0:
        raise ValueError(f"the classes of {name!r} begin at {found[0]:g}: number them 0, 1, ..., C - 1")
    if len(found) < 2:
        raise ValueError(f"the targets of {name!r} are all of one class: there is nothing to learn")
    if found[-1] >= 10 * len(found):
        raise ValueError(
            f"the targets of {name!r} are no classes: they have {len(found)} values up to {found[-1]:g}; number the classes 0, 1, ..., C - 1"
        )
    return Task("multiclass", int(found[-1]) + 1)


def guessed_task(y: NDArray[np.float64]) -> Task:
    """Return the task that targets look like: two classes for 0 and 1, classes for 0, ..., C - 1 with C at most 10, else regression."""
    if y.ndim == 2:
        return Task(outputs=_outputs(y))
    found = np.unique(y)
    if np.array_equal(found, (0.0, 1.0)):
        return Task("binary", 2, is_guessed=True)
    if 3 <= len(found) <= _MOST_GUESSED and np.array_equal(found, np.arange(len(found))):
        return Task("multiclass", len(found), is_guessed=True)
    return Task(is_guessed=True)


def look_like_classes(y: NDArray[np.float64]) -> bool:
    """Tell whether targets ``(N,)`` are a few whole numbers, from 3 to 10 of them, with none left out between the least and the largest."""
    found = np.unique(y)
    numbers = np.round(found[0]) + np.arange(len(found))
    return 3 <= len(found) <= _MOST_GUESSED and np.array_equal(found, numbers)


def look_like_counts(y: NDArray[np.float64]) -> bool:
    """Tell whether targets ``(N,)`` are whole numbers, 0 among them and none below, with more values than one and zero."""
    return bool(np.all(y == np.round(y))) and float(y.min()) == 0 and float(y.max()) > 1


def _outputs(y: NDArray[np.float64]) -> int:
    return y.shape[1] if y.ndim == 2 else 1
