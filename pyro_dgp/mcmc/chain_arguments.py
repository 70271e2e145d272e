"""Checks of what chains are given: the model and not its guide, a tuple of tensors, and something that is observed."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import torch
from pyro import poutine
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.guides.handler import PassHandler
from pyro_dgp.guides.sites import Message, is_random
from pyro_dgp.internal.global_store import require_none_loaded
from pyro_dgp.internal.parameters import module_local_parameters, modules_of
from pyro_dgp.internal.tensors import require_tensors_among
from pyro_dgp.internal.user_warning import warn_user
from pyro_dgp.mcmc.whitening import without_whitening


def require_arguments(kernel: MCMCKernel, args: Any) -> None:
    """Raise ``TypeError`` for what is no kernel, for one of a guide, and for arguments that are no tuple or hold arrays in the place of tensors."""
    if not isinstance(kernel, MCMCKernel):
        raise TypeError(
            f"run_chains takes a kernel, such as EllipticalSlice(model) or WhitenedNUTS(model), not {type(kernel).__name__}"
        )
    if isinstance(without_whitening(getattr(kernel, "model", None)), PassHandler):
        name = type(kernel).__name__
        raise TypeError(f"{name} takes the model, not its guide: write {name}(guide.model)")
    if not isinstance(args, tuple | list):
        raise TypeError(f"args is a tuple: (x, y), the arguments of the model, not {type(args).__name__}")
    require_tensors_among(args, {})
    require_none_loaded(*modules_of(without_whitening(getattr(kernel, "model", None))))


def warn_of_no_observation(kernel: MCMCKernel, args: tuple[Any, ...]) -> None:
    """Warn where the model is called without targets and observes nothing by itself, so that chains sample the prior.

    Two tensors are taken for inputs and targets. With fewer, the model is run once.
    """
    model = getattr(kernel, "model", None)
    if model is None or sum(isinstance(value, Tensor) for value in args) > 1:
        return
    model = copy.deepcopy(model)  # a whitened one remembers the inputs that it was run at
    with (
        suppress(RuntimeError, ValueError, TypeError),  # which the chains raise where they meet it
        module_local_parameters(*modules_of(without_whitening(model))),
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
    ):
        sites = poutine.trace(model).get_trace(*args).nodes.values()
        if not any(_is_observed(site) for site in sites):
            warn_user("no site is observed: pass (x, y); these chains sample the prior")


def _is_observed(site: Message) -> bool:
    """Tell whether a site counts in the likelihood: whitened function values stand as masked observations."""
    return is_random(site) and bool(site["is_observed"]) and getattr(site["fn"], "_mask", None) is not False
