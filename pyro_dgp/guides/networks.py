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
    """Collect networks by site name, each made a Pyro module in place."""
    result = PyroModule()
    for name, network in networks.items():
        if not isinstance(network, nn.Module):
            raise TypeError(
                f"networks[{name!r}] is a torch.nn.Module, whose weights are trained, not {network!r}: wrap it in one"
            )
        if not isinstance(network, PyroModule):
            to_pyro_module_(network)
        if cast(Any, network)._pyro_context.used:
            raise ValueError(
                f"the network of {name!r} has run in another guide already: build a new network for this guide, and load the "
                "state_dict of the first to start from its weights"
            )
        setattr(result, name, network)
    return result


def from_network(name: str, network: nn.Module, prior: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the posterior that the network of a latent site gives: a distribution, or ``None`` for the prior."""
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
            f"the network of {name!r} returned {type(posterior).__name__}: return a distribution of pyro.distributions, a "
            "tensor (a point estimate), or None (the prior)"
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
    """Raise unless a network runs on training inputs, and on the same inputs without the observed values.

    On training inputs it must give a posterior of the prior's shape, or ``None``.
    """

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
                f"the network of {name!r} fails without y, as predictions call it: give y a default of None, and return None "
                f"(the prior) or a posterior from x alone where y is None ({error})"
            ) from error
