"""What a guide asks of the sites that it meets."""

from __future__ import annotations

from typing import Any, cast

import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.likelihoods import Observation, RowObservation

Message = dict[str, Any]


def is_observation(site: Message) -> bool:
    """Whether the model has an observation of this library there."""
    return isinstance(site["infer"].get("prior", site["fn"]), Observation | RowObservation)


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


def has_parameter(module: nn.Module, name: str) -> bool:
    """Whether a tree of Pyro modules holds a parameter under a name with dots."""
    for part in name.split("."):
        if part in getattr(module, "_pyro_params", {}):
            return True
        if part not in module._modules:
            return False
        module = cast(nn.Module, module._modules[part])
    return False


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
