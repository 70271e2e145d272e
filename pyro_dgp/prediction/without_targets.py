"""Calls of a model without targets, which a prediction makes, and what a model that needs them raises there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_targets() -> Iterator[None]:
    """A scope of the first call of a model at new rows.

    :raises ValueError: in the place of Python's own errors about a ``None`` or an argument that is missing, and of an assertion without a word.

    >>> from pyro_dgp.prediction.without_targets import without_targets
    >>> try:
    ...     with without_targets():
    ...         None.shape
    ... except ValueError as error:
    ...     print(str(error).split(":")[0])
    a prediction calls the model with test inputs and without y, and there it raises AttributeError
    """
    try:
        yield
    except AssertionError as error:
        if str(error):
            raise
        raise ValueError(
            "a prediction calls the model with test inputs and without y, and there an assertion fails, as in a distribution of rows whose number only y tells "
            "(DiscreteHMM): make each row an observation of its own, or predict the functions by a model that has no such observation"
        ) from error
    except (TypeError, AttributeError) as error:
        if "'NoneType'" not in str(error) and "required positional argument" not in str(error):
            raise
        raise ValueError(
            f"a prediction calls the model with test inputs and without y, and there it raises {type(error).__name__}: {error}. Give y the default None, and read it "
            "only where it is given; hand other arguments of the training on, as in predict(fit, x, name=value)"
        ) from error
