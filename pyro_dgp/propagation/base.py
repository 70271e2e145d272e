"""Base class of propagations: how a guide carries uncertainty from one layer to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.assignment import CheckedModule
from pyro_dgp.processes import FunctionMarginal
from pyro_dgp.processes.process_in_pass import ProcessInPass


class Propagation(CheckedModule):
    """A strategy that carries a hidden layer in S weighted components.

    The axis of components leads all others and takes the place of no plate. A guide works on its own copy of the object
    that it is given, so that one object serves any number of guides.

    :ivar num_components: number of components, S.
    :ivar looks_at_mean: whether an ancestral draw needs the weighted pass over all components first.
    :ivar carries_values: whether components are values of a hidden layer; moments stand for them otherwise.

    >>> from pyro_dgp import MonteCarlo, Propagation, SigmaPoints, WithMean
    >>> [isinstance(each, Propagation) for each in (MonteCarlo(10), SigmaPoints("qr3", 10), WithMean(MonteCarlo(10)))]
    [True, True, True]
    """

    num_components: int
    looks_at_mean: bool = False
    carries_values: bool = True

    def initialize(self, latent: Mapping[str, FunctionPrior], reads: Mapping[str, Collection[str]]) -> None:
        """Create the parameters, if the strategy has any, for the latent GP sites of a model.

        :param reads: by name of each Gaussian process, the sites that its inputs are made from: these are hidden layers. The other latent sites
            are functions that a plain observation is made from.
        """

    def for_prediction(self, num_samples: int) -> Propagation:
        """Return the strategy for predictions: with ``num_samples`` draws if it draws at random, else itself."""
        return self

    def log_weights(self, like: Tensor) -> Tensor:
        """Return the log weights of the components, ``(S,)``, in the dtype and device of ``like``.

        The weights sum to one.
        """
        raise NotImplementedError

    def propagate(self, site: str, marginal: FunctionMarginal, carried: bool) -> TorchDistribution:
        """Return the distribution whose one draw is a hidden layer in all S components, ``(S, ..., N, D_out)``.

        :param site: name of the layer's site.
        :param marginal: q of the layer.
        :param carried: whether the leading axis of ``marginal`` is S already; otherwise it has no such axis.
        """
        raise NotImplementedError

    def marginal(self, process: ProcessInPass, prior: FunctionPrior, carried: bool) -> FunctionMarginal:
        """Return q(f) at the inputs of a Gaussian process: here component by component.

        Inference functions of an amortised process look at the inputs of each component by itself ([AVDGP] AR1).

        :param prior: the Gaussian process at its inputs, which lead with the axis of components if ``carried``.
        """
        return process(prior)

    def require_plain_site(self, site: str) -> None:
        """Raise if the strategy does not serve a site that is no Gaussian process and depends on a hidden layer."""

    def draw(self, site: str, marginal: FunctionMarginal, memory: dict[str, Any]) -> FunctionMarginal:
        """Return the distribution of one ancestral draw, in the prior's shapes.

        :param memory: values that the layers of one pass share; empty at the first layer.
        """
        return marginal
