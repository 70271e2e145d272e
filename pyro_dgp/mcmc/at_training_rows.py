"""What draws of MCMC hold of the training rows themselves: the values of functions and of latent sites that were sampled there."""

from __future__ import annotations

from functools import partial

from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.site_handler import Message
from pyro_dgp.internal.site_names import function_site, inducing_site, process_key, whitened_site
from pyro_dgp.likelihoods import Observation
from pyro_dgp.mcmc.conditioning import AtDraw
from pyro_dgp.mcmc.sparse import sparse_moments
from pyro_dgp.processes import ConditionedProcess
from pyro_dgp.processes.conditioned import conditioned
from pyro_dgp.processes.marginal import FunctionMarginal


class AsSampled(AtDraw, TraceMessenger):
    """Runs a model at the training rows with all values of one draw, and keeps a trace.

    A prediction at these rows takes them for new ones: it draws the part of a function that inducing variables leave open, the noise of a
    :class:`~pyro_dgp.White` kernel and latent values of rows anew, where the draws have them fitted to the targets. Functions that the sampler integrated out have
    their distribution given the targets.
    """

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Collapse the observation at the values of its functions."""
        self.set_target(msg, observation)
        marginals = {gp: self._marginal(msg, gp, observation) for gp in observation.priors}
        msg["fn"] = observation.collapse(marginals)

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set the values."""
        if not msg["is_observed"]:
            values = msg["value"] = self._values(msg["name"], msg["name"], prior)
            msg["fn"] = _independent(values, values.new_zeros(values.shape))

    def _values(self, key: str, site: str, prior: FunctionPrior) -> Tensor:
        if key in self.inducing:
            return self.sparse_values(site, prior, self.inducing[key])
        return self.function_values(site, prior)

    def _marginal(self, msg: Message, gp: str, observation: Observation) -> FunctionMarginal:
        """Distribution of function values at the training rows, given the draw and the targets."""
        prior = observation.priors[gp]
        key, site = process_key(msg["name"], gp), function_site(msg["name"], gp)
        if site in self.draw or whitened_site(site) in self.draw:
            values = self._values(key, site, prior)
            return _independent(values, values.new_zeros(values.shape))
        noise, y = observation.conditional.noise_variance(), observation.conditional.units(msg["value"])
        assert noise is not None  # others have their function values sampled
        y = y.unsqueeze(-1) if observation.outputs == 1 else y
        if key in self.inducing:
            mean, variance = sparse_moments(prior, self.inducing[key], self.draw[inducing_site(site)])
            share = variance / (variance + noise)
            return _independent(mean + share * (y - mean), share * noise)
        process = conditioned(prior, y, noise)
        return process.at_known_inputs(prior) if isinstance(process, ConditionedProcess) else process(prior)


def _independent(mean: Tensor, variance: Tensor) -> FunctionMarginal:
    return FunctionMarginal(mean, variance, mean.new_zeros(()), partial(_diagonal, variance))


def _diagonal(variance: Tensor) -> Tensor:
    return variance.mT.diag_embed()
