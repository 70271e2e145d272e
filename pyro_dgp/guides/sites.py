"""What a guide asks of the sites that it meets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from pyro.distributions import Delta
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from pyro.nn.module import to_pyro_module_
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal.parameters import evaluating
from pyro_dgp.likelihoods import Observation, RowObservation

Message = dict[str, Any]


def is_observation(site: Message) -> bool:
    """Whether the model has an observation of this library there."""
    return isinstance(site["infer"].get("prior", site["fn"]), Observation | RowObservation)


def require_rows_unmasked(site: Message) -> None:
    """Raise for a mask over the rows of a site whose rows are one event: it would multiply the one term that they have."""
    mask = site["mask"]
    if isinstance(mask, Tensor) and mask.dim():
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} stands around the site {site['name']!r}, whose rows are one event: leave the rows out "
            "that are not to count, or write pyro.plate over the data and one normal (or other) distribution for each row"
        )


def is_random(site: Message) -> bool:
    """Whether it is a sample site that stands for a draw or an observation: no subsample, no ``pyro.deterministic``."""
    return site["type"] == "sample" and not site_is_subsample(site) and not site["infer"].get("_deterministic")


def is_shared(site: Message) -> bool:
    """Whether it is a draw that all components share: a subsample, or a latent site that no hidden layer stands below."""
    if site["type"] != "sample" or site["is_observed"]:
        return False
    prior = site["infer"].get("prior")
    foreign = prior is not None and not isinstance(prior, FunctionPrior | Observation)
    return site_is_subsample(site) or (foreign and not site["infer"]["carried"])


def counted(regularizer: Tensor, prior: FunctionPrior, carried: bool) -> Tensor:
    """The regulariser of a marginal, nats in total over the batches of inputs: ``()``, or one for each component.

    :param carried: whether the prior's inputs lead with the axis of components.
    """
    if regularizer.dim() == 0:
        return regularizer * prior.batch_shape[int(carried) :].numel()
    return regularizer.reshape(*regularizer.shape[: int(carried)], -1).sum(-1)


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


def require_finite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if a tensor argument of ``guide.initialize`` holds NaN or infinity."""
    for name, value in (*enumerate(args, 1), *kwargs.items()):
        if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"argument {name!r} of guide.initialize holds NaN or infinity: drop or fill such rows before training"
            )


def expanded(name: str, posterior: Any, prior: Any) -> Any:
    """The posterior of a latent site in the prior's batch shape."""
    try:
        return posterior.expand(prior.batch_shape)
    except RuntimeError as error:
        raise ValueError(
            f"the posterior of the latent site {name!r} has batch shape {tuple(posterior.batch_shape)}, which does not expand "
            f"to the prior's {tuple(prior.batch_shape)} (a network gets the model's arguments, not a plate's subsample)"
        ) from error
