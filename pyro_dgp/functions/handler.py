"""Handler that runs the model itself with functions in the place of its Gaussian processes, up to the site that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.sites import is_observation
from pyro_dgp.internal.rows import Call
from pyro_dgp.internal.site_names import is_inside_observation, process_key, site_of
from pyro_dgp.likelihoods import Conditional, Observation

#: Function values of a GP, by its process key and its prior at the inputs that the model gives it.
Values = Callable[[str, FunctionPrior], Tensor]


@dataclass(frozen=True)
class ReachedSite:
    """The wanted site, as the model came to it.

    :ivar priors: by process key, the priors whose values are wanted, at the inputs that the model gave them.
    :ivar conditional: the likelihood around them, if there is one.
    """

    priors: Mapping[str, FunctionPrior]
    conditional: Conditional | None


class _ReachedError(Exception):
    """Ends a run of the model at the wanted site."""

    def __init__(self, site: ReachedSite) -> None:
        super().__init__()
        self.site = site


class _AtFunctions(SiteHandler, Messenger):
    def __init__(
        self, wanted: str, values: Values, latents: Mapping[str, Tensor], observed: Callable[[str], bool]
    ) -> None:
        super().__init__()
        self.wanted, self.values, self.latents, self.observed = wanted, values, latents, observed

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set function values to those of the functions; end the run at the wanted site."""
        name = msg["name"]
        if name == self.wanted:
            raise _ReachedError(ReachedSite({name: prior}, None))
        if not msg["is_observed"]:
            msg["value"] = self.values(name, prior)

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """End the run at the wanted site. The value of another observation is NaN, so that nothing depends on it without a word."""
        name = msg["name"]
        keyed = {process_key(name, gp): prior for gp, prior in observation.priors.items()}
        if self.wanted in (name, *keyed):
            chosen = keyed if name == self.wanted else {self.wanted: keyed[self.wanted]}
            raise _ReachedError(ReachedSite(chosen, observation.conditional))
        if msg["value"] is None:
            like = next(iter(keyed.values())).x
            msg["value"] = like.new_full(observation.batch_shape + observation.event_shape, torch.nan)

    def at_other(self, msg: Message) -> None:
        """Set a latent value that all rows share, and NaN at a site that training observed."""
        name, fn = msg["name"], msg["fn"]
        if name in self.latents:
            msg["value"] = self.latents[name].reshape(fn.batch_shape + fn.event_shape)
        elif not msg["is_observed"] and not msg["infer"].get("_deterministic"):
            if not (is_observation(msg) or self.observed(name)):
                raise ValueError(
                    f"the latent site {name!r} has a value for each row, or none that the fit knows: functions can be drawn where all "
                    "latent sites beside the Gaussian processes have one value for all rows"
                )
            msg["value"] = torch.full(fn.batch_shape + fn.event_shape, torch.nan)


def run_to(
    wanted: str,
    model: Callable[..., Any],
    call: Call,
    *,
    values: Values,
    latents: Mapping[str, Tensor],
    observed: Callable[[str], bool],
) -> ReachedSite:
    """Run the model with functions in the place of its GPs, up to the wanted site.

    :param wanted: a site, ``h`` or ``y``, or the process key of one GP of an observation, ``y/f``.
    :param call: arguments of the model, without targets.
    :param values: the functions.
    :param latents: values of the other latent sites.
    :param observed: tells whether a site was observed in training. Its value is NaN, so that nothing depends on it without a word.
    :raises ValueError: if the model has no such site.
    """
    args, kwargs = call
    try:
        with _AtFunctions(wanted, values, latents, observed):
            model(*args, **kwargs)
    except _ReachedError as reached:
        return reached.site
    raise ValueError(f"the model ran to its end without the site {wanted!r}: name a Gaussian process that it has")


def wanted_site(keys: list[str], site: str | None) -> str:
    """Return the site whose functions are wanted: the one named, or the observation around a GP, or the last GP.

    :param keys: process keys of the model's GPs, in its order.
    """
    observations = list(dict.fromkeys(site_of(key) for key in keys if is_inside_observation(key)))
    if site is None:
        if len(observations) > 1:
            raise ValueError(f"the model has observation sites {observations}: name one with site=")
        return observations[0] if observations else keys[-1]
    if site not in (*keys, *observations):
        raise ValueError(f"there is no Gaussian process at {site!r}: choose site= from {[*keys, *observations]}")
    return site
