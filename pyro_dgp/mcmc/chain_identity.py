"""What makes a chain the same chain: a hash of its data, model, kernel and warm-up, so that files of another one are refused."""

from __future__ import annotations

import copy
from dataclasses import is_dataclass
from types import FunctionType
from typing import Any

import torch
from pyro import poutine
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_dgp.guides.sites import is_random
from pyro_dgp.internal.linalg import NotPositiveDefiniteError
from pyro_dgp.internal.parameters import module_local_parameters, modules_of
from pyro_dgp.mcmc.sparse import Inputs, tensors_of
from pyro_dgp.mcmc.whitening import without_whitening


def identity(kernel: MCMCKernel, args: tuple[Any, ...], warmup_steps: int) -> str:
    """A hash that is equal for equal data, parameters, priors, options and warm-up, in whatever process."""
    import joblib

    model = without_whitening(kernel.model)
    state = {
        f"{i}.{name}": value
        for i, module in enumerate(modules_of(model))
        for name, value in module.state_dict().items()
    }
    inducing: Inputs = getattr(kernel.model, "inducing", {})
    held = [tensor for each in inducing.values() for tensor in tensors_of(each)]
    # Initial values are in a dictionary of the kernel.
    given = [value for part in vars(kernel).values() if isinstance(part, dict) for value in part.values()]
    values = (*args, *state.values(), *held, *given)
    tensors = [value.detach().cpu().numpy() for value in values if isinstance(value, Tensor)]
    kinds = [getattr(kind, "__qualname__", type(kind).__qualname__) for kind in (type(kernel), model)]
    others = [value for value in args if isinstance(value, int | float | str | None)]
    prior = _prior(kernel.model, args)
    return str(
        joblib.hash((kinds, _options(kernel), list(state), list(inducing), tensors, others, prior, warmup_steps))
    )


def _options(kernel: MCMCKernel) -> dict[str, Any]:
    """The options of a kernel and of its adaptation that can be compared: numbers, words, dataclasses and functions."""
    options = [*vars(kernel).items(), *vars(getattr(kernel, "_adapter", object)).items()]
    plain = {name: value for name, value in options if isinstance(value, int | float | str | None)}
    plain |= {name: repr(value) for name, value in options if is_dataclass(value)}
    return plain | {name: value.__qualname__ for name, value in options if isinstance(value, FunctionType)}


def _prior(model: Any, args: tuple[Any, ...]) -> list[tuple[str, str, str, str]]:
    """One draw of the prior by a fixed seed and its log density, site by site: they tell priors apart, as names and parameters do not."""
    if model is None:
        return []
    model = copy.deepcopy(model)  # a whitened one remembers the inputs that it was run at
    with (
        module_local_parameters(*modules_of(without_whitening(model))),
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
    ):
        torch.manual_seed(0)
        try:
            trace = poutine.trace(model).get_trace(*args)
            trace.compute_log_prob()
        except NotPositiveDefiniteError:
            return []
    sites = [(name, site) for name, site in trace.nodes.items() if is_random(site)]
    # In float32 the last digits hang on the number of threads.
    digits = [6 if site["value"].dtype == torch.float64 else 2 for _, site in sites]
    return [
        (
            name,
            type(site["fn"]).__qualname__,
            f"{float(site['value'].double().sum()):.{count}g}",
            f"{float(site['log_prob_sum']):.{count}g}",
        )
        for (name, site), count in zip(sites, digits, strict=True)
    ]
