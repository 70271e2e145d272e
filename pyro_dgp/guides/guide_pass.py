"""State, records and result of one pass of a guide through its model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pyro.poutine.trace_struct import Trace
from torch import Size, Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes import FunctionMarginal
from pyro_dgp.processes.reading import POSTERIOR, Reading
from pyro_dgp.propagation import Propagation

Site = dict[str, Any]

_RECORD = "pyro_dgp"


class EndOfPass(BaseException):
    """Ends a pass once all wanted sites are drawn. It is no ``Exception``, so that ``except Exception`` in a model does not catch it."""


@dataclass
class GuidePass:
    """State of one pass of a guide through its model; none of it outlives the pass.

    :ivar propagation: carries components on a leading axis; ``None`` for one ancestral draw.
    :ivar reading: what the pass takes from the processes: the posterior, or a cavity.
    :ivar initializing: whether the pass only looks at the sites.
    :ivar new_rows: whether sites that are local to data come from their prior, as in predictions.
    :ivar fixed: values of global latent sites that an earlier pass drew.
    :ivar wanted: names of the sites after which the pass ends; the whole model runs if there are none.
    :ivar extra_axes: batch axes of this call's inputs beyond those at ``initialize``; known from the first GP on.
    :ivar components: size of the leading axis, known once a value has this axis.
    :ivar gps: names of the processes with their priors, in the order of the model, met while initialising.
    :ivar reads: by process name, the GP sites that the GP's inputs are made from, met while initialising.
    :ivar whole: by process name, the prior at the inputs of all groups, met while initialising.
    :ivar memory: values that the layers of one ancestral draw share.
    :ivar means: by name of the GP sites, their values while initialising.
    :ivar spread: how many standard deviations these are random around the mean: none, or some where the pass looks for parts of the model that join rows.
    :ivar mixed: a random mixture of the inputs of each row of the GPs above others, met while initialising.
    :ivar references: by process name, the inputs that the inference functions of a GP look at.
    """

    propagation: Propagation | None = None
    reading: Reading = POSTERIOR
    initializing: bool = False
    new_rows: bool = False
    fixed: Mapping[str, Tensor] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset()
    extra_axes: int | None = None
    components: int | None = None
    gps: list[tuple[str, FunctionPrior]] = field(default_factory=list)
    reads: dict[str, list[str]] = field(default_factory=dict)
    whole: dict[str, FunctionPrior] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    references: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    spread: float = 0.0
    mixed: list[Tensor] = field(default_factory=list)

    def meet(self, key: str, prior: FunctionPrior, *, whole: FunctionPrior) -> None:
        """Note a GP while initialising, and the layers below it: those of which its inputs have a gradient.

        :param whole: the prior at the inputs of all groups.
        """
        self.gps.append((key, prior))
        self.whole[key] = whole
        if self.means and prior.x.requires_grad:
            if self.spread:
                self.mixed.append(prior.x @ torch.randn_like(prior.x[..., 0, :].reshape(-1, prior.x.shape[-1])[0]))
            slopes = torch.autograd.grad(prior.x.sum(), list(self.means.values()), retain_graph=True, allow_unused=True)
            self.reads[key] = [name for name, slope in zip(self.means, slopes, strict=True) if slope is not None]

    @property
    def below(self) -> set[str]:
        """Names of the hidden layers: GP sites that the inputs of another GP are made from."""
        return {name for names in self.reads.values() for name in names}

    def mean_of(self, key: str, prior: FunctionPrior) -> Tensor:
        """Return the mean of a GP site as its value while initialising, followed by autograd."""
        value = prior.mean.detach()
        if self.spread:
            value = value + self.spread * prior.variance.detach().sqrt() * torch.randn_like(value)
        self.means[key] = value.requires_grad_()
        return self.means[key] * 1.0

    def inputs_are_carried(self, prior: FunctionPrior, axes: int) -> bool:
        """Tell whether the inputs of a GP have the axis of components already.

        :param axes: number of axes of the GP's inputs at ``initialize``.
        """
        extra = prior.x.dim() - axes
        if self.extra_axes is None:
            self.extra_axes = extra  # the first GP of a pass sees the caller's inputs
        return extra > self.extra_axes

    def leads_with_components(self, shape: Size, axes: int) -> bool:
        """Tell whether the batch shape of a site that is no GP leads with the axis of components.

        Such a shape has more axes than the site at ``initialize`` and the caller's inputs account for.

        :param axes: number of batch axes of the site at ``initialize``.
        """
        return len(shape) > max(0, axes + (self.extra_axes or 0)) and shape[0] == self.components


@dataclass(frozen=True)
class SiteRecord:
    """Notes of a pass on one site, beside those of Pyro's trace.

    :ivar prior: the model's distribution at the site.
    :ivar carried: whether the guide's distribution leads with the axis of components.
    :ivar regularizer: for a Gaussian process, nats in total: ``()``, or one number for each component.
    :ivar marginal: for a latent site of function values in a pass with components, q(f) before it is carried. It leads with
        the components where the inputs do.
    """

    prior: Any
    carried: bool = False
    regularizer: Tensor | None = None
    marginal: FunctionMarginal | None = None

    def write(self, msg: Site) -> None:
        """Keep the record in a message of Pyro. Pyro's stock losses read the prior from the same place."""
        msg["infer"][_RECORD], msg["infer"]["prior"] = self, self.prior

    @staticmethod
    def of(site: Site) -> SiteRecord | None:
        """Return the record of a site in a trace; ``None`` for a site that the guide leaves alone."""
        record: SiteRecord | None = site["infer"].get(_RECORD)
        return record


@dataclass(frozen=True)
class WeightedTrace:
    """Result of a pass with components: the trace, and the log weights of the S components.

    A site that is carried leads with the S components. Components that the propagation adds, as ``WithMean`` adds the
    mean, come after these and have no weight.

    :ivar data_plates: names of the plates that hold the rows of the data; ``None`` where the model could not be asked.
    :ivar group_plates: names of the plates around Gaussian processes, each index of which has a function of its own.
    :ivar groups: axes in front of the inputs of the Gaussian processes, each index of which has a function of its own.
    :ivar row_axes: by name of the sites that follow the rows of the data, the axis that does, counted from the end.
    """

    trace: Trace
    log_weights: Tensor
    data_plates: Collection[str] | None = None
    group_plates: Collection[str] = ()
    groups: Size = Size()
    row_axes: Mapping[str, int] = field(default_factory=dict)

    def counted(self, values: Tensor) -> Tensor:
        """Return the S weighted components of values that lead with all components, added ones among them."""
        return values[: len(self.log_weights)]

    def average(self, terms: Tensor) -> Tensor:
        """Return the weighted sum over components of terms that lead with their axis, summed over all other axes.

        A leading axis of size 1 holds one term for all components, which is counted once.
        """
        if len(terms) == 1:
            return terms.sum()
        return (self.log_weights.exp() @ self.counted(terms).reshape(len(self.log_weights), -1)).sum()

    def record(self, site: Site) -> SiteRecord:
        """Return the record of a site that the guide has met; raise for any other."""
        record = SiteRecord.of(site)
        if record is None:
            raise ValueError(
                f"the site {site['name']!r} was not met by guide.initialize: call it with what a training step passes, initialize(x, y)"
            )
        return record
