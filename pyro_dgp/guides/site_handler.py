"""Base of handlers that treat observations, function values and all other sites differently."""

from __future__ import annotations

from typing import Any

from pyro.poutine.util import site_is_subsample

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.site_names import require_no_slash
from pyro_dgp.likelihoods import Observation

Message = dict[str, Any]


class SiteHandler:
    """Mixin of Pyro messengers that calls one method for each kind of site.

    Each of these methods does nothing unless a subclass overrides it.
    """

    # Pyro looks these up at every site. A module that has none takes long to say so.
    _pyro_param = _pyro_inspect = _pyro_post_inspect = None

    def _pyro_sample(self, msg: Message) -> None:
        fn = msg["fn"]
        if site_is_subsample(msg):
            self.at_subsample(msg)
        elif isinstance(fn, Observation):
            self.at_observation(msg, fn)
        elif isinstance(fn, FunctionPrior):
            require_no_slash(msg["name"])
            self.at_function(msg, fn)
        else:
            self.at_other(msg)

    def at_subsample(self, msg: Message) -> None:
        """Handle the rows that a plate takes of the data."""

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Handle a likelihood around Gaussian processes, ``pyro.sample("y", likelihood(gp(x)))``."""

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Handle function values of a Gaussian process, ``pyro.sample("f", gp(x))``, observed or latent."""

    def at_other(self, msg: Message) -> None:
        """Handle any other sample site, observed or latent."""
