"""Questions that are asked of the sites of a trace."""

from __future__ import annotations

from typing import Any

import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
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


def total_regularizer(regularizer: Tensor, prior: FunctionPrior, carried: bool) -> Tensor:
    """The regulariser of a marginal, nats in total over the batches of inputs: ``()``, or one for each component.

    :param carried: whether the prior's inputs lead with the axis of components.
    """
    if regularizer.dim() == 0:
        return regularizer * prior.batch_shape[int(carried) :].numel()
    return regularizer.reshape(*regularizer.shape[: int(carried)], -1).sum(-1)


def require_finite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if a tensor argument of ``guide.initialize`` holds NaN or infinity."""
    for name, value in (*enumerate(args, 1), *kwargs.items()):
        if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"argument {name!r} of guide.initialize holds NaN or infinity: drop or fill such rows before training"
            )


def require_kernel_fits(key: str, prior: FunctionPrior) -> None:
    """Raise, with the name of the GP, if its kernel does not take inputs of that many dimensions."""
    try:
        prior.covariance.matrix(prior.x[..., :1, :].unsqueeze(-3))
    except ValueError as error:
        raise ValueError(f"at the Gaussian process {key!r}, {error}") from error
