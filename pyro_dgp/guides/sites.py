"""Predicates and checks of the sites of a trace."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pyro.distributions import Unit
from pyro.nn import PyroModule
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import constraints

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


def require_finite(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if a tensor argument of ``guide.initialize`` holds NaN or infinity."""
    forward = model.forward if isinstance(model, nn.Module) else model
    try:
        named = inspect.signature(forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        named = {str(number): value for number, value in enumerate(args, 1)} | kwargs
    for name, value in named.items():
        if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"argument {name!r} of guide.initialize holds NaN or infinity: drop or fill such rows before training"
            )


def real_observations(trace: Trace) -> dict[str, Tensor]:
    """Return the observed values of a trace that a Gaussian or another real distribution explains, by site."""
    sites = [site for site in trace.nodes.values() if is_random(site) and site["is_observed"]]
    return {site["name"]: site["value"] for site in sites if is_real(site["fn"])}


def is_real(fn: Any) -> bool:
    """Tell whether a distribution is over all real numbers; one that does not say is taken for real."""
    try:
        support = fn.support
    except (AttributeError, NotImplementedError):
        return True
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real


#: Ratio of the scale of inputs or targets to 1 beyond which a warning is given: kernels and likelihoods start near 1.
_FAR = 10.0


def warn_of_scales(x: Tensor, observed: Mapping[str, Tensor]) -> None:
    """Warn of inputs and targets in raw units.

    :param x: inputs ``(..., N, D)`` of the first GP.
    :param observed: real values by the name of the observed site.
    """
    spread = x.detach().reshape(-1, x.shape[-1]).std(0, correction=0)
    far = torch.nonzero((spread > _FAR) | ((spread < 1 / _FAR**2) & (spread > 0)))
    if len(far):
        column = int(far[0])
        warnings.warn(
            f"input column {column} has a standard deviation of {float(spread[column]):.3g}, and lengthscales start near 1: standardise "
            "inputs, x = (x - x.mean(0)) / x.std(0), or start the lengthscales at the scale of the inputs",
            stacklevel=4,
        )
    for name, value in observed.items():
        value = value.detach()
        if not value.numel():
            continue
        mean, scale = float(value.mean()), float(value.std(correction=0))
        if max(abs(mean), scale) > _FAR:
            warnings.warn(
                f"the target of the site {name!r} has mean {mean:.3g} and standard deviation {scale:.3g}, and the prior starts near mean 0 "
                "and variance 1: standardise targets, y = (y - y.mean()) / y.std()",
                stacklevel=4,
            )


def warn_of_unread_priors(model: nn.Module, trace: Trace) -> None:
    """Warn of priors on attributes that no forward reads, as a misspelt name leaves them."""
    for module in model.modules():
        if not isinstance(module, PyroModule):
            continue
        for attribute in module._pyro_samples:
            name = f"{module._pyro_name}.{attribute}" if module._pyro_name else attribute
            if name not in trace.nodes:
                warnings.warn(
                    f"the prior on {name!r} is read by no forward of the model, so it changes nothing: look at the spelling of the attribute",
                    stacklevel=4,
                )


def require_kernel_fits(key: str, prior: FunctionPrior) -> None:
    """Raise, with the name of the GP, if the kernel does not fit the number of dimensions of the inputs."""
    try:
        prior.covariance.matrix(prior.x[..., :1, :].unsqueeze(-3))
    except ValueError as error:
        raise ValueError(f"at the Gaussian process {key!r}, {error}") from error


def require_served(sites: Iterable[Message]) -> None:
    """Raise for a ``pyro.factor``, whose rows nobody knows, and for a discrete latent site."""
    for site in sites:
        name, fn = site["name"], site["fn"]
        if isinstance(fn, Unit):
            raise ValueError(
                f"the factor {name!r} is a number without rows, so that no loss can weight it and no prediction knows its target: write "
                f"pyro.sample({name!r}, distribution, obs=y) in its place"
            )
        if not site["is_observed"] and is_discrete(fn):
            raise ValueError(
                f"the latent site {name!r} is discrete, which no normal approximates: sum it out in the model, as in MixtureSameFamily"
            )


def is_discrete(fn: Any) -> bool:
    """Tell whether a distribution is over classes or counts; one that does not say is not."""
    try:
        return bool(fn.has_enumerate_support or fn.support.is_discrete)
    except (AttributeError, NotImplementedError):
        return False


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
