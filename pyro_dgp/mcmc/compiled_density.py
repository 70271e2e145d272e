"""The posterior density of a whitened model as one compiled program: for chains long enough to pay for the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal.compiled_function import CompiledFunction, Function, with_gradients
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.evaluation import Evaluation


class CompiledDensity(WhitenedDensity):
    """:class:`WhitenedDensity` whose runs of the model are recorded once, with their gradients, and compiled by ``torch.compile``.

    ``WhitenedNUTS(model, density=CompiledDensity)``, ``EllipticalSlice(model, density=CompiledDensity)``. A step then needs
    no Python, no handlers of Pyro and no autograd. Compiling takes 10 to 40 seconds at the start of a chain, once for each process (the
    compiler keeps its results on disk), and needs a C++ compiler. The model must do the same tensor operations for all values: one that
    reads numbers (``if h.mean() > 0``, ``h.tolist()``) has no program. The first :data:`~pyro_dgp.internal.compiled_function.CHECKS` results are compared with the model's.
    Where there is no program, and where a matrix has no Cholesky factor at the first jitter, the model runs as it is.
    While a run is recorded, distributions of the whole process are not validated.

    :cvar backend: backend of ``torch.compile``.
    """

    backend = "inductor"

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(model, args, kwargs)
        self._programs: dict[str, CompiledFunction] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without programs: they belong to a process."""
        return {**vars(self), "_programs": {}}

    def potential(self, params: Mapping[str, Tensor]) -> Tensor:
        """See :meth:`WhitenedDensity.potential`."""
        given = [params[name] for name in self.start]
        results = self.compiled("the gradient", self._energy_and_gradients, [value.detach() for value in given])
        if results is None:
            return super().potential(params)
        energy, *gradients = results
        return with_gradients(energy, gradients, given)

    def _energy_and_gradients(self, *values: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = [value.detach().requires_grad_() for value in values]
            energy = WhitenedDensity.potential(self, dict(zip(self.start, leaves, strict=True)))
            return energy.detach(), *torch.autograd.grad(energy, leaves)

    def evaluate(
        self, values: Mapping[str, Tensor], known: Evaluation | None = None, changed: str | None = None
    ) -> Evaluation:
        """See :meth:`WhitenedDensity.evaluate`; a program uses nothing of ``known``."""
        results = self.compiled("the density", self._parts, [values[name] for name in self.start])
        if results is None:
            return super().evaluate(values, known, changed)
        log_likelihood, *log_priors = results[0].tolist()
        return Evaluation.of_numbers(log_likelihood, self.transforms, log_priors)

    def _parts(self, *points: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            run = self.run(dict(zip(self.start, points, strict=True)), Evaluation(0.0))
        return (run.numbers(self.transforms),)

    def compiled(self, what: str, function: Function, points: list[Tensor]) -> list[Tensor] | None:
        """See :meth:`WhitenedDensity.compiled`. The program is made at its first use; there is no result where a matrix could not be
        factorised.
        """
        if what not in self._programs:
            self._programs[what] = CompiledFunction(what, function, self.backend)
        return self._programs[what](*points)
