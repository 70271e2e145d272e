"""Posteriors of latent sites that are no Gaussian process, such as hyperparameters with priors and latent inputs."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, cast

import torch
from pyro.distributions import Delta
from pyro.infer.autoguide.effect import AutoMessenger, AutoNormalMessenger
from pyro.nn import PyroModule
from pyro.poutine.trace_struct import Trace
from torch import Size, Tensor, nn
from torch.distributions import biject_to

from pyro_dgp.guides.coupled_normal import CoupledNormal
from pyro_dgp.guides.networks import from_network
from pyro_dgp.internal.errors import first_line
from pyro_dgp.internal.plates import plates_that_take_some

Call = tuple[tuple[Any, ...], dict[str, Any]]
Site = dict[str, Any]
#: Parts of Pyro's messenger guides that hold parameters by name of the sites.
_OF_SITES = ("locs", "scales", "weights")


class LatentGuides:
    """Chooser of the posterior of a latent site: that of the site's network, or that of a messenger guide of Pyro.

    :ivar messenger: the messenger guide, whose ``get_posterior`` serves the sites without a network.
    :ivar networks: the networks by site name.
    """

    def __init__(self, messenger: AutoMessenger, networks: PyroModule) -> None:
        self.messenger, self.networks = messenger, networks

    def network(self, name: str) -> nn.Module | None:
        """Return the network of a site; ``None`` if it has none."""
        return cast("nn.Module | None", self.networks._modules.get(name))

    def holds_rows(self, name: str) -> bool:
        """Tell whether the guide holds a value for each training row at a site that is local to data."""
        return self.network(name) is None and isinstance(self.messenger, AutoNormalMessenger)

    def create(self, site: Site, *, call: Call, trace: Trace, by_row: bool) -> None:
        """Let the messenger guide make the parameters of a latent site; values for each row of other training rows are dropped first.

        :param by_row: whether the site has a value for each row.
        """
        name, prior, frames = site["name"], site["fn"], site["cond_indep_stack"]
        if by_row and self.holds_rows(name):
            self._forget_other_rows(name, prior, frames)
        try:
            with plates_that_take_some(frames):
                self.from_messenger(name, prior, plates=(), call=call, trace=trace)
        except RuntimeError as error:
            if all(frame.full_size in (None, frame.size) for frame in frames):
                raise
            raise ValueError(
                f"the guide of the latent site {name!r} cannot be made in a plate that takes some of its elements ({first_line(error)}): take all of them in "
                "guide.initialize, or use AutoNormalMessenger(model)"
            ) from error

    def _forget_other_rows(self, name: str, prior: Any, frames: Iterable[Any]) -> None:
        """Drop the values that the guide holds at a site, where the site has another shape now."""
        *path, last = name.split(".")
        holders = []
        for part in _OF_SITES:
            with suppress(AttributeError):
                holder = self.messenger.get_submodule(".".join([part, *path]))
                holders += [holder] if hasattr(holder, last) else []
        batch = list(prior.batch_shape)
        for frame in frames:
            if frame.vectorized and -len(batch) <= frame.dim:
                shares = frame.name in self.messenger.amortized_plates
                batch[frame.dim] = 1 if shares else frame.full_size or frame.size
        wanted = biject_to(prior.support).inverse_shape(torch.Size(batch) + prior.event_shape)
        if holders and _from_first_above_one(getattr(holders[0], last).shape) != _from_first_above_one(wanted):
            for holder in holders:
                delattr(holder, last)

    def keep_apart(self, names: Collection[str]) -> None:
        """Leave sites that are local to rows out of a joint posterior of hyperparameters."""
        if isinstance(self.messenger, CoupledNormal):
            self.messenger.apart = frozenset(names)

    def posterior(self, name: str, prior: Any, *, plates: tuple[Any, ...], call: Call, trace: Trace) -> Any:
        """Return the posterior of a site; ``None`` stands for the prior.

        :param plates: plates around the guide's call.
        :param call: arguments of the model.
        :param trace: the sites before this one, which a messenger guide may look at.
        """
        network = self.network(name)
        if network is not None:
            return from_network(name, network, prior, *call)
        return self.from_messenger(name, prior, plates=plates, call=call, trace=trace)

    def num_deviations(self, names: Collection[str]) -> int:
        """Return the number of deviations of some sites; 0 for a messenger guide of the user's."""
        return self.messenger.total_of(names) if isinstance(self.messenger, CoupledNormal) else 0

    def deviations(self, trace: Trace) -> Tensor | None:
        """Return the standardised deviations of the hyperparameters in a trace, ``(*lead, P)``."""
        return self.messenger.deviations(trace) if isinstance(self.messenger, CoupledNormal) else None

    def from_messenger(self, name: str, prior: Any, *, plates: tuple[Any, ...], call: Call, trace: Trace) -> Any:
        """Return the posterior that the messenger guide gives a site.

        It may look at plates, arguments and values of earlier sites, as any messenger guide of Pyro.
        """
        guide = self.messenger
        guide._outer_plates, guide.trace, guide.args_kwargs = plates, trace, call
        try:
            return guide.get_posterior(name, prior)
        finally:
            del guide.args_kwargs


def _from_first_above_one(shape: Size) -> tuple[int, ...]:
    """Return a shape without its leading ones, which Pyro takes from the shapes of its parameters."""
    return tuple(itertools.dropwhile(lambda size: size == 1, shape))


def shaped_posterior(name: str, posterior: Any, prior: Any) -> Any:
    """Return a posterior as a distribution of the prior's batch shape; a tensor becomes a point mass."""
    if isinstance(posterior, Tensor):
        posterior = Delta(posterior, event_dim=prior.event_dim)
    try:
        if torch.broadcast_shapes(posterior.batch_shape, prior.batch_shape) == posterior.batch_shape:
            return posterior
    except RuntimeError:
        pass
    try:
        return posterior.expand(prior.batch_shape)
    except RuntimeError as error:
        raise ValueError(
            f"the posterior of the latent site {name!r} has batch shape {tuple(posterior.batch_shape)}, which does not expand "
            f"to the prior's {tuple(prior.batch_shape)}: return one of the prior's shape (a network gets the model's "
            "arguments, not a plate's subsample)"
        ) from error
