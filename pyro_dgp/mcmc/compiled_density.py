"""The posterior density of a whitened model as one compiled program: for chains long enough to pay for the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_dgp.internal.compiled_batch import CompiledBatch
from pyro_dgp.internal.compiled_function import CompiledFunction, Function, with_gradients
from pyro_dgp.mcmc.density import WhitenedDensity
from pyro_dgp.mcmc.evaluation import IMPOSSIBLE, Evaluation

#: Name of the function that HMC needs, in the log.
_GRADIENT = "the gradient"


class CompiledDensity(WhitenedDensity):
    """:class:`WhitenedDensity` whose runs of the model are recorded once, with their gradients, and compiled by ``torch.compile``.

    ``WhitenedNUTS(model, density=CompiledDensity)``, ``EllipticalSlice(model, density=CompiledDensity)``. A step then needs
    no Python, no handlers of Pyro and no autograd. Compiling takes 10 to 40 seconds at the start of a chain, once for each process (the
    compiler keeps its results on disk), and needs a C++ compiler. The model must do the same tensor operations for all values: one that
    reads numbers (``if h.mean() > 0``, ``h.tolist()``, ``h[h > 0]``) has no program. The first :data:`~pyro_dgp.internal.compiled_function.CHECKS` results are compared with the model's.
    Where there is no program, and where a matrix has no Cholesky factor at the first jitter, the model runs as it is.
    While a run is recorded, distributions of the whole process are not validated. A program does not validate either: a value that a distribution would
    refuse, such as a probability above one, has the density that its formula gives.

    :cvar backend: backend of ``torch.compile``.
    """

    backend = "inductor"
    takes_several: ClassVar[bool] = True

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(model, args, kwargs)
        self._programs: dict[str, CompiledFunction] = {}
        self._batches: dict[int, CompiledBatch] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without programs: they belong to a process."""
        return {**vars(self), "_programs": {}, "_batches": {}}

    def potential(self, params: Mapping[str, Tensor]) -> Tensor:
        """See :meth:`WhitenedDensity.potential`."""
        vector = self.vector(params)
        results = self.compiled(_GRADIENT, self.energy_and_gradient, [vector.detach()])
        if results is None:
            return super().potential(params)
        energy, gradient = results
        return with_gradients(energy, [gradient], [vector])

    def slopes(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`WhitenedDensity.slopes`: several points are one program, and fewer than it was made for are filled up."""
        count, most = len(vectors), max((len(vectors), *self._batches))
        if most == 1:
            results = self.compiled(_GRADIENT, self.energy_and_gradient, [vectors[0]])
            return super().slopes(vectors) if results is None else (-results[0][None], -results[1][None])
        if most not in self._batches:
            self._batches[most] = CompiledBatch(f"{_GRADIENT} of {most} chains", self._density_and_slope, self.backend)
        if count < most:
            vectors = torch.cat([vectors, vectors[-1:].expand(most - count, -1)])
        try:
            found = self._batches[most].at(vectors)
        except IMPOSSIBLE:  # of the model that the program is compared with
            found = None
        if found is None:
            return super().slopes(vectors[:count])
        (densities, gradients), serves = found
        if False in (right := serves.tolist()):
            for number in (number for number in range(count) if not right[number]):
                densities[number], gradients[number] = self._slope(vectors[number])
        return densities[:count], gradients[:count]

    def _density_and_slope(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        energy, gradient = self.energy_and_gradient(vector)
        return -energy, -gradient

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
        try:
            return self._programs[what](*points)
        except IMPOSSIBLE:  # of the model that the program is compared with
            return None
