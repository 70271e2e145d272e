"""Calls of a model without targets, which a prediction makes, and what a model that needs them raises there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from pyro_dgp.internal.user_warning import is_passed_over

#: What a prediction does, which the sentences begin with.
_CALLED = "a prediction calls the model first with one row of test inputs and without y, and there"


@contextmanager
def without_targets() -> Iterator[None]:
    """A scope of the first call of a model at new rows.

    :raises ValueError: in the place of Python's own errors of a model about a ``None`` or about an argument of its own that is missing, and of an assertion
        without a word.
    """
    try:
        yield
    except AssertionError as error:
        if str(error):
            raise
        raise ValueError(
            f"{_CALLED} an assertion fails, as in a distribution of rows whose number only y tells (DiscreteHMM): let the model take any number of rows, and "
            "make each row an observation of its own"
        ) from error
    except (TypeError, AttributeError) as error:
        is_of_model = _is_own(error.__traceback__)
        lacks_argument = "required positional argument" in str(error) and not is_of_model
        if not lacks_argument and not ("'NoneType'" in str(error) and is_of_model):
            raise
        raise ValueError(
            f"{_CALLED} it raises {type(error).__name__}: {error}: write forward(self, x, y=None), and read y only where it is given; hand other arguments of "
            "the training on, as in predict(fit, x, name=value)"
        ) from error


def _is_own(traceback: TracebackType | None) -> bool:
    """Tell whether an error comes from a line of the model, or of torch or Pyro where the model called these, rather than from the library's own."""
    is_own = False
    while traceback is not None:
        module = traceback.tb_frame.f_globals.get("__name__", "")
        if not is_passed_over(module):
            is_own = True
        elif module.split(".")[0] == "pyro_dgp":
            is_own = False
        traceback = traceback.tb_next
    return is_own
