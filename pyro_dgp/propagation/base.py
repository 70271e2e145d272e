"""How a guide carries uncertainty from one layer to the next."""

from __future__ import annotations

from pyro.distributions import TorchDistribution
from pyro.nn import PyroModule
from torch import Tensor

from pyro_dgp.processes import FunctionMarginal


class Propagation(PyroModule):
    """A strategy of S weighted components. Their axis leads all others and takes no plate's place.

    :ivar num_components: S.
    """

    num_components: int

    def log_weights(self, like: Tensor) -> Tensor:
        """Log weights of the components, ``(S,)``, of the dtype and device of ``like``; they sum to one."""
        raise NotImplementedError

    def propagate(self, marginal: FunctionMarginal, carried: bool) -> TorchDistribution:
        """The distribution whose one draw is the value of a hidden layer in all S components, ``(S, ..., N, D_out)``.

        :param marginal: q of the layer; its leading axis is S already if ``carried``, else it has no such axis.
        """
        raise NotImplementedError
