"""How a guide carries uncertainty from one layer to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyro.distributions import TorchDistribution
from pyro.nn import PyroModule
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.processes import FunctionMarginal


class Propagation(PyroModule):
    """A strategy of S weighted components. Their axis leads all others and takes no plate's place.

    A guide works on its own copy of the object it is given, so that one recipe serves any number of guides.

    :ivar num_components: S.
    :ivar looks_at_mean: whether ``reference`` needs the weighted pass over all components.
    """

    num_components: int
    looks_at_mean: bool = False

    def initialize(self, latent: Mapping[str, FunctionPrior]) -> None:
        """Create the parameters, if there are any, for the latent GP sites of a model."""

    def for_prediction(self, num_samples: int) -> Propagation:
        """What predicts: a strategy that draws at random takes ``num_samples`` draws, any other is itself."""
        return self

    def log_weights(self, like: Tensor) -> Tensor:
        """Log weights of the components, ``(S,)``, of the dtype and device of ``like``; they sum to one."""
        raise NotImplementedError

    def propagate(self, site: str, marginal: FunctionMarginal, carried: bool) -> TorchDistribution:
        """The distribution whose one draw is the value of a hidden layer in all S components, ``(S, ..., N, D_out)``.

        :param site: name of the layer's site.
        :param marginal: q of the layer; its leading axis is S already if ``carried``, else it has no such axis.
        """
        raise NotImplementedError

    def reference(self, x: Tensor, carried: bool) -> Tensor:
        """What the inference functions of amortised processes look at: each component at its own inputs ([AVDGP] AR1).

        :param x: inputs of a GP, with the axis of components in front if ``carried``.
        :returns: the same shape, or 1 in the place of S.
        """
        return x

    def draw(self, site: str, marginal: FunctionMarginal, memory: dict[str, Any]) -> FunctionMarginal:
        """The distribution of one ancestral draw, in the prior's shapes.

        :param memory: what the layers of one pass tell each other; empty at the first.
        """
        return marginal
