"""The sites that a model meets in one run, with its Gaussian processes at their means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import nn

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.guides.sites import is_random
from pyro_dgp.internal.parameters import evaluating, module_local_parameters
from pyro_dgp.internal.site_names import is_inside_observation, process_key
from pyro_dgp.likelihoods import Observation


class ModelSites(SiteHandler, Messenger):
    """Sites that a model met, in order.

    :ivar functions: prior of each Gaussian process by name: of a site ``"h"``, or of one under a likelihood ``"y/f"``.
    :ivar sampled: sites of Gaussian processes whose values are latent.
    :ivar exact: Gaussian processes whose function values are observed.
    :ivar latents: distributions of the latent sites besides Gaussian processes.
    :ivar observed: value and distribution of the sites that hold data.
    """

    def __init__(self) -> None:
        super().__init__()
        self.functions: dict[str, FunctionPrior] = {}
        self.sampled: list[str] = []
        self.exact: list[str] = []
        self.latents: dict[str, Any] = {}
        self.observed: dict[str, tuple[Any, Any]] = {}

    @property
    def hidden(self) -> list[str]:
        """Gaussian processes below those of the likelihoods, or below the last one where no likelihood has any."""
        names = list(self.functions)
        top = [name for name in names if is_inside_observation(name)] or names[-1:]
        return [name for name in names if name not in top]

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Keep the process; where its values are latent, set them to their mean."""
        self.functions[msg["name"]] = prior
        if msg["is_observed"]:
            self.exact.append(msg["name"])
        else:
            self.sampled.append(msg["name"])
            msg["value"] = prior.mean

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Keep the processes under the likelihood, and the data if there are any."""
        name = msg["name"]
        self.functions |= {process_key(name, key): prior for key, prior in observation.priors.items()}
        if msg["is_observed"]:
            self.observed[name] = (msg["value"], observation)
        elif msg["value"] is None:
            first = next(iter(observation.priors.values()))
            msg["value"] = first.mean.new_zeros(observation.batch_shape + observation.event_shape)

    def at_other(self, msg: Message) -> None:
        """Keep the data, or the latent site."""
        if not is_random(msg):
            return
        if msg["is_observed"]:
            self.observed[msg["name"]] = (msg["value"], msg["fn"])
        else:
            self.latents[msg["name"]] = msg["fn"]


@torch.no_grad()
def sites_of(model: Any, modules: Sequence[nn.Module], args: Sequence[Any], arguments: Mapping[str, Any]) -> ModelSites:
    """Run ``model(*args, **arguments)`` once in evaluation mode. It, Pyro's stores and the state of the random numbers stay as they were.

    :param modules: the modules that the model runs.
    """
    with (
        module_local_parameters(*modules),
        evaluating(*modules),
        torch.random.fork_rng(devices=[]),
        ModelSites() as sites,
    ):
        model(*args, **arguments)
    return sites
