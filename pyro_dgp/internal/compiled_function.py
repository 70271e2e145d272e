"""Functions of tensors as compiled programs: recorded once, compared with the function, and set aside where they do not serve."""

from __future__ import annotations

import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution
from torch.fx import GraphModule

from pyro_dgp.internal import compiler
from pyro_dgp.internal.captured_graph import CapturedGraph, stays_on
from pyro_dgp.internal.recording import reports
from pyro_dgp.internal.unread_values import values_unread

logger = logging.getLogger("pyro_dgp")

#: One thread at a time makes a program: what it sets aside meanwhile, such as validation, belongs to the process.
_MAKING = threading.RLock()

#: Results of a new program that are compared with those of its function.
CHECKS = 3

#: Tensors to tensors, the first of them a number or numbers that are finite where all is well.
Function = Callable[..., tuple[Tensor, ...]]


class CompiledFunction:
    """A function of tensors, recorded by ``make_fx`` and compiled by ``torch.compile`` at its first call.

    The function must do the same operations at whatever values. What it draws at random is drawn as torch draws it: results are those of the
    function from the same state of the generators. While it is recorded, distributions of the whole process are not validated.

    :param what: name of the function in the log, which says why where there is no program.
    :param function: the function.
    :param backend: backend of ``torch.compile``.
    :param closed: whether a function that uses tensors with gradients besides its arguments is refused.
    :param prepare: called with the first arguments before the function is recorded.
    """

    def __init__(
        self,
        what: str,
        function: Function,
        backend: Any,
        closed: bool = False,
        prepare: Callable[[Sequence[Tensor]], None] | None = None,
    ) -> None:
        self.what, self.function, self.backend, self.closed, self.prepare = what, function, backend, closed, prepare
        self._checks = CHECKS
        self._is_made = False
        self._compiled: Callable[..., Any] | None = None
        self._layouts: list[_Layout] = []

    def __call__(self, *points: Tensor) -> list[Tensor] | None:
        """The function's results without gradients; nothing where there is no program, where something that it reports
        (:func:`pyro_dgp.internal.recording.reports`) failed, or where the first result is not finite: then the generators are as they were.
        """
        before = generators(points)
        found = self.run(points, before)
        if found is None:
            return None
        results, failed = found
        serves = not int(failed) and bool(torch.isfinite(results[0]).all()) and self.passes(results, points, before)
        if not serves:
            _set_generators(before, points)
        return results if serves else None

    def run(self, points: Sequence[Tensor], before: list[Tensor]) -> tuple[list[Tensor], Tensor] | None:
        """Results of the program and the number of failures that it reports; nothing where there is no program, with the generators as ``before``.

        A program reads memory in the arrangement of the first arguments: others are copied into it, and those of other shapes or types have no program.

        :param before: states of the generators (:func:`generators`); none where nothing is drawn at random.
        """
        if not self._is_made:
            self._is_made, self._compiled, self._layouts = True, self._make(points), [*map(_Layout.of, points)]
            _set_generators(before, points)
        arranged = None if self._compiled is None else _arranged(points, self._layouts)
        if self._compiled is None or arranged is None:
            return None
        try:
            with torch.no_grad():
                *results, failed = self._compiled(*arranged)
        except (RuntimeError, ValueError, TypeError) as problem:  # for example, sizes that depend on values
            self._compiled = None
            _set_generators(before, points)
            self._say(_first_words(problem))
            return None
        return results, failed

    @property
    def is_checked(self) -> bool:
        """Whether all comparisons are done, so that the function itself is called no more."""
        return self._is_made and (self._compiled is None or not self._checks)

    def passes(self, results: list[Tensor], points: Sequence[Tensor], before: list[Tensor]) -> bool:
        """Compare the first :data:`CHECKS` results with the function's, and set a program that gives other numbers aside."""
        if not self._checks:
            return True
        self._checks -= 1
        after = generators(points)
        _set_generators(before, points)
        expected = self.expected(points)
        same_draws = all(torch.equal(a, b) for a, b in zip(after, generators(points), strict=True))
        right = same_draws and all(self.is_close(a, b) for a, b in zip(results, expected, strict=True))
        if not right:
            self._compiled = None
            self._say("the program gives other numbers")
        return right

    def _make(self, points: Sequence[Tensor]) -> Callable[..., Any] | None:
        try:
            if self.prepare is not None:
                self.prepare(points)
            with _MAKING, warnings.catch_warnings(), _validation_kept():
                warnings.simplefilter("ignore")  # of the compiler, about itself
                with _without_validation():
                    graph = self.recorded(points)
                if self.closed:
                    _require_no_gradients(graph)
                graph.graph.eliminate_dead_code()
                graph.recompile()
                program = compiler.compiled(graph, points, self.backend)
                with torch.no_grad():
                    program(*points)
                    if all(point.is_cuda for point in points) and stays_on(graph, points, points[0].device):
                        program = self._captured(program, points)
        except Exception as problem:
            self._say(_first_words(problem))
            return None
        return program

    def _captured(self, program: Callable[..., Any], points: Sequence[Tensor]) -> Callable[..., Any]:
        """Return the program as one graph of the GPU's work, or as it is where it has none."""
        captured = CapturedGraph(program)
        try:
            captured(*points)
        except RuntimeError as problem:
            logger.info("%s is compiled, and started kernel by kernel: %s", self.what, _first_words(problem))
            return program
        return captured

    def recorded(self, points: Sequence[Tensor]) -> GraphModule:
        """Record the function at some arguments; its graph has one more result, the number of failures that it reports."""
        from torch.fx.experimental.proxy_tensor import make_fx

        def reported(*values: Tensor) -> tuple[Tensor, ...]:
            with reports() as failures, values_unread():
                results = self.function(*values)
            return *results, sum(failures, torch.zeros((), dtype=torch.int32))

        return make_fx(reported)(*points)

    def is_close(self, found: Tensor, expected: Tensor) -> bool:
        """Whether a result of the program is that of the function up to rounding."""
        return close(found, expected)

    def expected(self, points: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute the results of the function, which the program should give."""
        return self.function(*points)

    def _say(self, why: str) -> None:
        say_not_compiled(self.what, why)


class _Layout(NamedTuple):
    """Arrangement of an argument in memory, with its shape and type, which a program takes for granted."""

    stride: tuple[int, ...]
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, value: Tensor) -> _Layout:
        """Read it from an argument."""
        return cls(value.stride(), value.shape, value.dtype, value.device)


def _arranged(points: Sequence[Tensor], layouts: Sequence[_Layout]) -> Sequence[Tensor] | None:
    """Return arguments with the strides of these layouts; nothing for other shapes, types or devices."""
    found = [_Layout.of(point) for point in points]
    if found == layouts:
        return points
    if [each[1:] for each in found] != [each[1:] for each in layouts]:
        return None
    with torch.no_grad():
        return [
            point if own.stride == wanted.stride else point.new_empty_strided(wanted.shape, wanted.stride).copy_(point)
            for point, own, wanted in zip(points, found, layouts, strict=True)
        ]


class FasterFunction(CompiledFunction):
    """A compiled function that is set aside too where the comparisons show that its program takes longer than the function.

    The first evaluation of each is left out, since it has work to do that later ones have not. On a GPU nothing is timed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._times: dict[str, list[float]] = {"program": [], "function": []}

    def run(self, points: Sequence[Tensor], before: list[Tensor]) -> tuple[list[Tensor], Tensor] | None:
        """See :class:`CompiledFunction`."""
        return super().run(points, before) if self.is_checked else self._timed("program", super().run, points, before)

    def expected(self, points: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """See :class:`CompiledFunction`."""
        return self._timed("function", super().expected, points)

    def passes(self, results: list[Tensor], points: Sequence[Tensor], before: list[Tensor]) -> bool:
        """See :class:`CompiledFunction`. After the last comparison a program that takes longer than the function is set aside."""
        was_checked = self.is_checked
        right = super().passes(results, points, before)
        if right and self.is_checked and not was_checked and _gpu(points) is None:
            program, function = (min(times[1:], default=0.0) for times in self._times.values())
            if program > function:
                self._compiled = None
                self._say(f"the program takes {1000 * program:.1f} ms, and the model as it is {1000 * function:.1f}")
        return right

    def _timed(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        result = work(*args)
        self._times[name].append(time.perf_counter() - start)
        return result


def _first_words(problem: Exception) -> str:
    """The first line of a message, and the second where the first announces it."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def say_not_compiled(what: str, why: str) -> None:
    """Say in the log that a function is not compiled, and why."""
    if "_local_scalar_dense" in why:
        why = "a part of it looks at the value of a number on the way, as integrals of RobustMax do, and a program cannot (get value out of a tracing tensor)"
    logger.warning("%s is not compiled, the model runs as it is: %s", what, why)


def with_gradients(value: Tensor, gradients: Sequence[Tensor], points: Sequence[Tensor]) -> Tensor:
    """Attach known gradients at ``points`` to a number, which ``backward`` then returns."""
    result: Tensor = _Known.apply(value, len(gradients), *gradients, *points)  # type: ignore[no-untyped-call]
    return result


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int, *rest: Tensor) -> Tensor:
        ctx.save_for_backward(*rest[:count])
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradients = ctx.saved_tensors
        return None, None, *(None for _ in gradients), *(grad * gradient for gradient in gradients)


def _require_no_gradients(graph: GraphModule) -> None:
    """Raise for constants of a graph that want gradients."""
    if any(value.requires_grad for value in (*graph.parameters(), *graph.buffers())):
        raise ValueError("it uses parameters that are none of its own modules'")


@contextmanager
def _validation_kept() -> Iterator[None]:
    """A scope after which distributions validate their arguments as before: the compiler of torch ends that for the whole process."""
    before = Distribution._validate_args
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _without_validation() -> Iterator[None]:
    """A scope in which no distribution validates its values, not even one made with ``validate_args=True``."""
    before = Distribution._validate_sample
    Distribution._validate_sample = lambda self, value: None  # type: ignore[method-assign]
    try:
        with pyro.validation_enabled(False):
            yield
    finally:
        Distribution._validate_sample = before  # type: ignore[method-assign]


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two results are equal up to rounding, or the expected one is not finite."""
    if found.shape != expected.shape or not expected.numel():
        return found.shape == expected.shape
    tolerance = 1e-3 if expected.dtype == torch.float32 else 1e-5
    scale = 1 + float(expected.double().abs().max())
    return not math.isfinite(scale) or float((found.double() - expected.double()).abs().max()) <= tolerance * scale


def generators(points: Sequence[Tensor]) -> list[Tensor]:
    """States of the processor's generator and, where a tensor is on a GPU, of that GPU's."""
    device = _gpu(points)
    return [torch.get_rng_state(), *([] if device is None else [torch.cuda.get_rng_state(device)])]


def _set_generators(states: Sequence[Tensor], points: Sequence[Tensor]) -> None:
    if not states:
        return
    torch.set_rng_state(states[0])
    device = _gpu(points)
    if device is not None:
        torch.cuda.set_rng_state(states[1], device)


def _gpu(points: Sequence[Tensor]) -> torch.device | None:
    """The device of the first tensor on a GPU."""
    return next((point.device for point in points if point.is_cuda), None)
