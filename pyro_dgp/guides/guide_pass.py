"""One pass of a guide through its model: what it needs to know, what it notes of each site, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyro.poutine.trace_struct import Trace
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.propagation import Propagation

Site = dict[str, Any]

_RECORD = "pyro_dgp"


@dataclass
class GuidePass:
    """What one pass through the model needs to know; nothing of it outlives the pass.

    :ivar propagation: carries components on a leading axis; none for one ancestral draw.
    :ivar initializing: whether the pass only looks at the sites.
    :ivar new_rows: whether sites that are local to data come from their prior, as predictions have it.
    :ivar fixed: values of global latent sites that were drawn before.
    :ivar extra_axes: batch axes that this call's inputs have beyond those at ``initialize``; known from the first GP on.
    :ivar components: size of the leading axis, once a value has it.
    :ivar gps: priors by process name, in the order of the model, met while initialising.
    :ivar memory: what the layers of one ancestral draw tell each other.
    :ivar references: what the inference functions of each GP look at.
    """

    propagation: Propagation | None = None
    initializing: bool = False
    new_rows: bool = False
    fixed: Mapping[str, Tensor] = field(default_factory=dict)
    extra_axes: int | None = None
    components: int | None = None
    gps: list[tuple[str, FunctionPrior]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    references: dict[str, Tensor] = field(default_factory=dict)

    def inputs_are_carried(self, prior: FunctionPrior, axes: int) -> bool:
        """Whether the inputs of a GP have the axis of components already.

        :param axes: of its inputs at ``initialize``.
        """
        extra = prior.x.dim() - axes
        if self.extra_axes is None:
            self.extra_axes = extra  # the first GP of a pass sees the caller's inputs
        return extra > self.extra_axes

    def leads_with_components(self, shape: Size, axes: int) -> bool:
        """Whether the batch shape of a site that is no GP leads with the axis of components: it has more axes than at ``initialize``
        and than the caller's inputs bring.
        """
        return len(shape) > max(0, axes + (self.extra_axes or 0)) and shape[0] == self.components


@dataclass(frozen=True)
class SiteRecord:
    """What a pass notes of one site, beside what Pyro's trace has.

    :ivar prior: the model's distribution there.
    :ivar carried: whether the guide's distribution leads with the axis of components.
    :ivar regularizer: of a Gaussian process: nats in total, ``()``, or one for each component.
    """

    prior: Any
    carried: bool = False
    regularizer: Tensor | None = None

    def write(self, msg: Site) -> None:
        """Keep the record in a message of Pyro, whose stock losses read the prior there too."""
        msg["infer"][_RECORD], msg["infer"]["prior"] = self, self.prior

    @staticmethod
    def of(site: Site) -> SiteRecord | None:
        """The record of a site in a trace; none for a site that the guide leaves alone."""
        record: SiteRecord | None = site["infer"].get(_RECORD)
        return record


@dataclass(frozen=True)
class WeightedTrace:
    """A pass with components: the trace, and the log weights of its S components.

    Sites that are carried lead with S components and those that the propagation has besides (the mean of ``WithMean``), which come
    last and count nowhere.
    """

    trace: Trace
    log_weights: Tensor

    def counted(self, values: Tensor) -> Tensor:
        """The S components that count, of values that lead with all that are carried."""
        return values[: len(self.log_weights)]

    def average(self, terms: Tensor) -> Tensor:
        """The weighted sum over components of terms that lead with their axis, summed over all else; one for all counts once."""
        if len(terms) == 1:
            return terms.sum()
        return (self.log_weights.exp() @ self.counted(terms).reshape(len(self.log_weights), -1)).sum()

    def record(self, site: Site) -> SiteRecord:
        """The record of a site that the guide has met; raises for any other."""
        record = SiteRecord.of(site)
        if record is None:
            raise ValueError(
                f"the site {site['name']!r} was not met by guide.initialize: call it with what a training step passes, initialize(x, y)"
            )
        return record
