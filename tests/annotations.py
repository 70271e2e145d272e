"""Checks of annotations during the tests, at less cost than by jaxtyping's own decorator.

The import hook of jaxtyping puts :func:`jaxtyping.jaxtyped` before every function of the package. Its calls bind their
arguments by :mod:`inspect` and check them twice, also where no annotation is an array. That took more than half of the
time of tests that train. Here the type checker stands before the function itself, in a scope of jaxtyping's in which
arrays are compared by the names of their axes. The first calls of a function in each test are checked, for the same as before, and later ones
more and more seldom.
"""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, jaxtyped

Decorator = Callable[..., Any]

#: Checks that raise a ``TypeError``, as those of jaxtyping do.
WITH_TYPE_ERRORS: Decorator = beartype(conf=BeartypeConf(violation_type=TypeError))
#: First calls of each function that are checked in each test, and after them those whose numbers are powers of two. Hundreds of steps of
#: training call it alike.
CHECKED = 8
#: Calls of each function so far, in the test that runs.
calls: dict[types.FunctionType, int] = {}
#: Functions within functions that were defined so far, in the test that runs. A step of training defines them anew, and to make their checks
#: takes a millisecond or two: the first definition has them.
defined: set[tuple[str, types.CodeType]] = set()
#: Whether a test runs. What is imported before is defined once, and checked wherever it is defined.
in_test = False


def hints_of(function: types.FunctionType) -> dict[str, Any]:
    """Resolves annotations one by one; one that names what is not there is ``Any``, as it is to jaxtyping."""
    hints: dict[str, Any] = {}
    for name, annotation in function.__annotations__.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= get_type_hints(alone, function.__globals__, include_extras=True)
        except Exception:
            hints[name] = Any
    return hints


def holds_array(hint: Any) -> bool:
    """Whether an annotation is an array with a shape, or holds one."""
    if isinstance(hint, list | tuple):
        return any(map(holds_array, hint))
    return (inspect.isclass(hint) and issubclass(hint, AbstractArray)) or holds_array(get_args(hint))


def checked(function: types.FunctionType, hints: dict[str, Any]) -> Decorator:
    """A function whose arguments and result are checked."""
    same = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    same.__kwdefaults__, same.__qualname__ = function.__kwdefaults__, function.__qualname__
    same.__module__, same.__annotations__ = function.__module__, hints
    with_checks = WITH_TYPE_ERRORS(same)
    scope = jaxtyped if holds_array(list(hints.values())) else None

    if scope is None:
        return sometimes(function, with_checks)

    def in_scope(*args: Any, **kwargs: Any) -> Any:
        with scope("context"):
            return with_checks(*args, **kwargs)

    return sometimes(function, in_scope)


def sometimes(function: types.FunctionType, with_checks: Decorator) -> Decorator:
    """A function of which :data:`CHECKED` first calls in each test, and some later ones, are checked, unless jaxtyping is switched off."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[function] = number = calls.get(function, 0) + 1
        if (number > CHECKED and number & (number - 1)) or jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        return with_checks(*args, **kwargs)

    return call


def decorator_of(typechecker: Decorator) -> Decorator:
    """A decorator of functions and data classes."""

    def decorate(decorated: Any) -> Any:
        if dataclasses.is_dataclass(decorated):
            made: Any = decorated
            if made.__init__.__globals__["__name__"] not in (__name__, jaxtyped.__module__):
                made.__init__ = decorate(made.__init__)
            return made
        if not isinstance(decorated, types.FunctionType) or inspect.iscoroutinefunction(decorated):
            return jaxtyped(decorated, typechecker=typechecker)
        if inspect.isgeneratorfunction(decorated):
            return sometimes(decorated, jaxtyped(decorated, typechecker=typechecker))
        if in_test and "<locals>" in decorated.__qualname__:
            place = decorated.__code__.co_filename, decorated.__code__
            if place in defined:
                return decorated
            defined.add(place)
        hints = hints_of(decorated)
        return checked(decorated, hints) if hints else decorated

    return decorate


def check_at_less_cost() -> None:
    """Puts :func:`decorator_of` in the place of the decorator that the import hook of jaxtyping writes."""
    jaxtyping.jaxtyped = decorator_of  # type: ignore[assignment]
