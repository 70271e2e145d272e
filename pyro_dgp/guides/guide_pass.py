"""What one pass of a guide through its model needs to know, and what a weighted pass gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyro.poutine.trace_struct import Trace
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.propagation import Propagation


@dataclass
class Run:
    """What one pass through the model needs to know; nothing of it outlives the pass."""

    propagation: Propagation | None = None  # components on a leading axis, or one ancestral draw
    initializing: bool = False
    new_rows: bool = False  # predicting: sites local to data come from the prior
    fixed: Mapping[str, Tensor] = field(default_factory=dict)  # values of global sites drawn before
    extra_axes: int | None = None  # batch axes that this call's inputs have beyond those of ``initialize``
    components: int | None = None  # how many there are, once any value has their axis
    gps: list[tuple[str, FunctionPrior]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)  # of an ancestral draw
    references: dict[str, Tensor] = field(default_factory=dict)  # by GP, what its inference functions look at

    def leads_with_components(self, shape: Size, axes: int) -> bool:
        """Whether the batch shape of a site that is no GP leads with the axis of components: it has more axes than the ``axes`` that
        ``initialize`` met and the caller's inputs bring.
        """
        return len(shape) > max(0, axes + (self.extra_axes or 0)) and shape[0] == self.components


@dataclass(frozen=True)
class Components:
    """A weighted pass through model and guide: the trace, and the log weights of its S components."""

    trace: Trace
    log_weights: Tensor
