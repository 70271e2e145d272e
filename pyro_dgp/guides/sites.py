"""Predicates and checks of the sites of a trace."""

from __future__ import annotations

from typing import Any

import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.likelihoods import Observation, RowObservation
from pyro_dgp.processes import Process

Message = dict[str, Any]


def is_observation(site: Message) -> bool:
    """Tell whether the model's distribution at a site is an observation of this library."""
    return isinstance(site["infer"].get("prior", site["fn"]), Observation | RowObservation)


def require_rows_unmasked(site: Message) -> None:
    """Raise for a mask over the rows of a site whose rows are one event.

    Such a site has one term for all rows, which the mask would multiply.
    """
    mask = site["mask"]
    if isinstance(mask, Tensor) and mask.dim():
        raise ValueError(
            f"the site {site['name']!r}, whose rows are one event, has a mask of shape {tuple(mask.shape)}: leave the masked "
            "rows out, or write pyro.plate over the data and one normal (or other) distribution for each row"
        )


def is_random(site: Message) -> bool:
    """Tell whether a site is a draw or an observation: a sample site that is no subsample and no ``pyro.deterministic``."""
    return site["type"] == "sample" and not site_is_subsample(site) and not site["infer"].get("_deterministic")


def total_regularizer(regularizer: Tensor, prior: FunctionPrior, carried: bool) -> Tensor:
    """Return the regulariser of a marginal, nats in total over the batches of inputs: ``()``, or one for each component.

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
    """Raise, with the name of the GP, if the kernel does not fit the number of dimensions of the inputs."""
    try:
        prior.covariance.matrix(prior.x[..., :1, :].unsqueeze(-3))
    except ValueError as error:
        raise ValueError(f"at the Gaussian process {key!r}, {error}") from error


def require_groups(key: str, process: Process, prior: FunctionPrior) -> None:
    """Raise if a GP in a plate, or over a batch of data sets, gets a process that holds one function."""
    if process.groups != prior.batch_shape:
        raise ValueError(
            f"the Gaussian process {key!r} is one function for each of {tuple(prior.batch_shape)} groups, and {type(process).__name__} "
            "holds one function in all: use InducingPoints for it"
        )


def require_all_groups(site: Message) -> None:
    """Raise for a GP in a plate that takes a part of its groups."""
    for frame in site["cond_indep_stack"]:
        if frame.vectorized and frame.full_size not in (None, frame.size):
            raise ValueError(
                f"the Gaussian process site {site['name']!r} stands in the plate {frame.name!r}, which takes {frame.size} of its "
                f"{frame.full_size} groups, and the guide holds a function for each: let the plate take all groups"
            )
