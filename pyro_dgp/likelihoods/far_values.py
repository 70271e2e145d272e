"""p(y | f) at function values far from their mean, where its parameters underflow or overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_dgp.internal.recording import recording
from pyro_dgp.likelihoods.refinement import NotResolvedError

_Given = TypeVar("_Given")

_is_far: ContextVar[bool] = ContextVar("is_far", default=False)


#: Errors that are the machine's, or have been named before.
_PASSED = (NotImplementedError, NotResolvedError, torch.OutOfMemoryError)
#: Errors that parameters and values out of range raise.
_RAISED = (ArithmeticError, RuntimeError, ValueError)


class NotFormedError(NotResolvedError):
    """Refusal of an integral over f whose p(y | f) raises far from the mean of f."""


def far(figure: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a figure of p(y | f), such as a log density, for function values far off: the parameters of :func:`formed` are not checked there.

    :raises NotFormedError: where the figure raises all the same.
    """

    def at(f: Tensor) -> Tensor:
        token = _is_far.set(True)
        try:
            with _refused(
                "p(y | f)", "let it give a number there, such as a log density of -inf for y outside its support"
            ):
                return figure(f)
        finally:
            _is_far.reset(token)

    return at


def formed(given: Callable[[Tensor], _Given], f: Tensor) -> _Given:
    """Return p(y | f); inside :func:`far` without checks of its parameters. Values of y are still checked, as those outside a support that moves with f.

    :raises NotFormedError: where it raises all the same, inside :func:`far`.
    """
    if not _is_far.get():
        return given(f)
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with _refused("given", "leave out validate_args=True, or keep the parameters in their range, as by clamp"):
            return given(f)
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _refused(what: str, remedy: str) -> Iterator[None]:
    """A scope whose errors are refusals in one sentence, but those while a program is recorded."""
    try:
        yield
    except _PASSED:
        raise
    except _RAISED as error:
        if recording():
            raise
        raise NotFormedError(
            f"{what} raises {type(error).__name__} at function values far from their mean, which the integral over f needs: {remedy}"
        ) from error
