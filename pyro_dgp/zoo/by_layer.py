"""Variational families that differ by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyro_dgp.processes import ProcessFamily


@dataclass(frozen=True)
class ByLayer:
    """Two families for a model of whatever sites: one for its first Gaussian process, one for all that come after it.

    :ivar first: family of the first Gaussian process that the model meets.
    :ivar above: family of the others.
    """

    first: ProcessFamily
    above: ProcessFamily

    def of(self, functions: Sequence[str]) -> dict[str, ProcessFamily]:
        """The family of each Gaussian process, by its name, for names in the order of the model."""
        return {name: self.above if position else self.first for position, name in enumerate(functions)}
