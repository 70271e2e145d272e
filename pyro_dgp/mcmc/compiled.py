"""The posterior density of a whitened model as one compiled program: for chains long enough to pay for the compiler."""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_dgp import linalg
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.evaluation import Evaluate, Evaluation
from pyro_dgp.mcmc.surrogates import Conditional, Surrogates
from pyro_dgp.mcmc.whitening import SUFFIX

logger = logging.getLogger("pyro_dgp")

#: Results of a new program that are compared with the model's.
CHECKS = 3

Program = Callable[..., tuple[Tensor, ...]]


class _Known(torch.autograd.Function):
    """A number whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int, *rest: Tensor) -> Tensor:
        ctx.save_for_backward(*rest[:count])
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradients = ctx.saved_tensors
        return None, None, *(None for _ in gradients), *(grad * gradient for gradient in gradients)


class CompiledDensity(WhitenedDensity):
    """:class:`WhitenedDensity` whose runs of the model are recorded once, with their gradients, and compiled by ``torch.compile``.

    ``WhitenedNUTS(model, density=CompiledDensity)``, ``EllipticalSlice(model, density=CompiledDensity)``. Python, Pyro's handlers and autograd
    are gone from each step, at the price of 10 to 40 seconds at the start of a chain, once for each process (the compiler keeps what it
    made on disk). It needs a C++ compiler. The model must do the same tensor operations at whatever values: one that
    looks at numbers (``if h.mean() > 0``, ``h.tolist()``) has no program. The first :data:`CHECKS` results are compared with the model's.
    Where there is no program, and for each matrix that has no Cholesky factor at the first jitter, the model runs as it is.
    While it records, distributions of the whole process are not validated.

    :cvar backend: of ``torch.compile``.
    """

    backend = "inductor"

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(model, args, kwargs)
        self._programs: dict[str, Program | None] = {}
        self._checks: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without programs: they belong to a process."""
        return {**vars(self), "_programs": {}}

    def potential(self, params: Mapping[str, Tensor]) -> Tensor:
        """See :meth:`WhitenedDensity.potential`."""
        given = [params[name] for name in self.start]
        results = self._run("the gradient", self._energy_and_gradients, [value.detach() for value in given])
        if results is None:
            return super().potential(params)
        energy, *gradients = results
        known: Tensor = _Known.apply(energy, len(gradients), *gradients, *given)  # type: ignore[no-untyped-call]
        return known

    def _energy_and_gradients(self, *values: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = [value.detach().requires_grad_() for value in values]
            energy = WhitenedDensity.potential(self, dict(zip(self.start, leaves, strict=True)))
            return energy.detach(), *torch.autograd.grad(energy, leaves)

    def evaluate(
        self, values: Mapping[str, Tensor], known: Evaluation | None = None, changed: str | None = None
    ) -> Evaluation:
        """See :meth:`WhitenedDensity.evaluate`; a program uses nothing of ``known``."""
        results = self._run("the density", self._parts, [values[name] for name in self.start])
        if results is None:
            return super().evaluate(values, known, changed)
        log_likelihood, *log_priors = results[0].tolist()
        return Evaluation(log_likelihood, dict(zip(self.transforms, log_priors, strict=True))).or_impossible()

    def _parts(self, *points: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            run = self.run(dict(zip(self.start, points, strict=True)), Evaluation(0.0))
        return (self._numbers(run),)

    def evaluate_given(
        self, surrogates: Surrogates, values: Mapping[str, Tensor], known: Evaluation, changed: str
    ) -> Conditional:
        """See :meth:`WhitenedDensity.evaluate_given`; a program for each set of GPs."""
        sites = tuple(surrogates.data)
        if not sites:
            return Conditional(self.evaluate(values, known, changed))
        points = [surrogates.scale, *(values[name] for name in self._others(sites))]
        points += [*surrogates.data.values(), *surrogates.noise.values()]
        what = f"the density given {', '.join(sites)}"
        results = self._run(what, functools.partial(self._parts_given, sites), points)
        if results is None:
            return super().evaluate_given(surrogates, values, known, changed)
        (log_likelihood, log_surrogates, *log_priors), whitened = results[0].tolist(), results[1:]
        evaluation = Evaluation(log_likelihood, dict(zip(self.transforms, log_priors, strict=True))).or_impossible()
        names = [name + SUFFIX for name in sites]
        return Conditional(evaluation, log_surrogates, dict(zip(names, whitened, strict=True)))

    def _others(self, sites: tuple[str, ...]) -> list[str]:
        return [name for name in self.start if name.removesuffix(SUFFIX) not in sites]

    def _parts_given(self, sites: tuple[str, ...], scale: Tensor, *points: Tensor) -> tuple[Tensor, ...]:
        count = len(sites)
        data, noise = points[-2 * count : -count], points[-count:]
        values = dict(zip(self._others(sites), points[: -2 * count], strict=True))
        given = Surrogates(scale, dict(zip(sites, data, strict=True)), dict(zip(sites, noise, strict=True)))
        with torch.no_grad():
            run = self.run_given(given, values, Evaluation(0.0))
        log_surrogates = torch.stack(run.log_surrogates).sum()
        return self._numbers(run, log_surrogates), *(run.whitened[name + SUFFIX] for name in sites)

    def _numbers(self, run: Evaluate, *others: Tensor) -> Tensor:
        """Log likelihood, others, and log priors in a row."""
        priors = (torch.as_tensor(run.log_priors[name]) for name in self.transforms)
        return torch.stack([torch.stack(run.observed).sum(), *others, *priors])

    def _run(self, what: str, function: Program, points: list[Tensor]) -> list[Tensor] | None:
        """Results of the program, made at its first use; nothing if there is none or a matrix could not be factorised."""
        if what not in self._programs:
            self._programs[what], self._checks[what] = self._compiled(what, function, points), CHECKS
        program = self._programs[what]
        if program is None:
            return None
        with torch.no_grad():
            *results, failed = program(*points)
        if int(failed) or not bool(torch.isfinite(results[0]).all()):
            return None
        if self._checks[what] > 0:
            self._checks[what] -= 1
            if any(not _close(a, b) for a, b in zip(results, function(*points), strict=True)):
                logger.warning("%s is not compiled, the model runs as it is: the program gives other numbers", what)
                self._programs[what] = None
                return None
        return results

    def _compiled(self, what: str, function: Program, points: list[Tensor]) -> Program | None:
        def reported(*values: Tensor) -> tuple[Tensor, ...]:
            with linalg.reports() as failures:
                results = function(*values)
            return *results, sum(failures, torch.zeros((), dtype=torch.int32))

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the compiler, about itself
                with _without_validation():
                    graph = make_fx(reported)(*points)
                graph.graph.eliminate_dead_code()
                graph.recompile()
                program: Program = torch.compile(graph, backend=self.backend, dynamic=False)
                with torch.no_grad():
                    program(*points)
        except Exception as problem:
            first = str(problem).strip().split("\n")[0]
            logger.warning("%s is not compiled, the model runs as it is: %s", what, first)
            return None
        return program


@contextmanager
def _without_validation() -> Iterator[None]:
    """Distributions do not look at what they are given, not even those that were made to."""
    before = Distribution._validate_sample
    Distribution._validate_sample = lambda self, value: None  # type: ignore[method-assign]
    try:
        with pyro.validation_enabled(False):
            yield
    finally:
        Distribution._validate_sample = before  # type: ignore[method-assign]


def _close(found: Tensor, expected: Tensor) -> bool:
    """Equal but for rounding, or neither is finite."""
    tolerance = 1e-3 if expected.dtype == torch.float32 else 1e-5
    scale = 1 + float(expected.double().abs().max())
    return not math.isfinite(scale) or float((found - expected).double().abs().max()) <= tolerance * scale
