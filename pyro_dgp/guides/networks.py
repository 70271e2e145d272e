"""Networks as amortised guides of latent sites that are no Gaussian process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from pyro.distributions import Delta
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn

from pyro_dgp.internal.parameters import evaluating


def pyro_networks(networks: Mapping[str, nn.Module]) -> PyroModule:
    """Networks by site, made Pyro modules in place."""
    result = PyroModule()
    for name, network in networks.items():
        if not isinstance(network, nn.Module):
            raise TypeError(f"networks[{name!r}] is a torch.nn.Module, whose weights are trained, not {network!r}")
        if not isinstance(network, PyroModule):
            to_pyro_module_(network)
        if cast(Any, network)._pyro_context.used:
            raise ValueError(
                f"the network of {name!r} has run in another guide already: build a new one for this guide, and load the other's "
                "state_dict if it is to start there"
            )
        setattr(result, name, network)
    return result


def from_network(name: str, network: nn.Module, prior: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The posterior that the network of a latent site gives: a distribution, or nothing for the prior."""
    try:
        posterior = network(*args, **kwargs)
    except RecursionError as error:
        raise ValueError(
            f"the network of {name!r} calls pyro.sample({name!r}, ...) itself: let it return the distribution"
        ) from error
    if isinstance(posterior, Tensor):
        posterior = Delta(posterior, event_dim=prior.event_dim)
    if posterior is None:
        return None
    if not isinstance(posterior, TorchDistributionMixin):
        raise TypeError(
            f"the network of {name!r} returned {type(posterior).__name__}, no distribution of pyro.distributions, a tensor "
            "(a point estimate), or None (the prior)"
        )
    if posterior.event_shape != prior.event_shape:
        raise ValueError(
            f"the network of {name!r} gave a posterior of event shape {tuple(posterior.event_shape)} and the prior has "
            f"{tuple(prior.event_shape)}: use .to_event() as the model does"
        )
    return posterior


def try_network(
    name: str,
    network: nn.Module,
    prior: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    observed: Collection[Tensor],
) -> None:
    """Raise unless a network gives a posterior of the prior's shape on training inputs, and anything without the observed values."""

    def is_seen(value: Any) -> bool:
        return any(value is other for other in observed)

    with evaluating(network), torch.random.fork_rng():
        posterior = from_network(name, network, prior, args, kwargs)
        if posterior is not None and posterior.batch_shape != prior.batch_shape:
            raise ValueError(
                f"the network of {name!r} gave a posterior of batch shape {tuple(posterior.batch_shape)} and the prior has "
                f"{tuple(prior.batch_shape)}: return one of the prior's shape (a network gets the model's arguments, not a "
                "plate's subsample)"
            )
        given = [None if is_seen(value) else value for value in args]
        while given and given[-1] is None:
            given.pop()
        try:
            from_network(name, network, prior, tuple(given), {key: v for key, v in kwargs.items() if not is_seen(v)})
        except Exception as error:
            raise ValueError(
                f"the network of {name!r} fails where it is called as predictions call the model, without y: give y a default of "
                f"None, and return None (the prior) for it or a posterior without y ({error})"
            ) from error
