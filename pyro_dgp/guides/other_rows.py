"""Search for Gaussian processes whose inputs at a row are computed from other rows of the data, such as ``x - x.mean(0)``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.site_handler import Message, SiteHandler
from pyro_dgp.internal.parameters import evaluating
from pyro_dgp.internal.rows import Call, RowArguments, num_rows
from pyro_dgp.internal.site_names import process_key
from pyro_dgp.likelihoods import Observation

#: Rows at most that are looked at.
_ROWS = 64
#: Rounding of sums in another order, as a share of the largest input; of float32, whose products are rounded as their number of rows decides, more.
_ROUNDING, _ROUNDING_OF_FLOAT32 = 1e-8, 1e-3


class _Inputs(SiteHandler, Messenger):
    """Handler that runs a model with function values of zero, and keeps the inputs of its Gaussian processes.

    Rows that are joined by function values, as in ``h - h.mean(0)``, are drawn jointly elsewhere. They are not seen here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Tensor] = {}

    def at_function(self, msg: Message, prior: FunctionPrior) -> None:
        """Set function values to zero where they are not observed."""
        msg["value"] = torch.zeros_like(prior.mean) if msg["value"] is None else msg["value"]
        self.found[msg["name"]] = prior.x

    def at_observation(self, msg: Message, observation: Observation) -> None:
        """Set an observation to zeros."""
        for gp, prior in observation.priors.items():
            self.found[process_key(msg["name"], gp)] = prior.x
        first = next(iter(observation.priors.values()))
        msg["value"] = first.mean.new_zeros(observation.batch_shape + observation.event_shape)


@torch.no_grad()
def sees_other_rows(model: Callable[..., Any], call: Call, modules: Iterable[nn.Module]) -> str | None:
    """Return the name of a Gaussian process whose inputs at a row change with the other rows of a call; ``None`` if there is none.

    The model is run on some rows and on the first half of them, in evaluation mode. Inputs that are random, by latent sites or by noise of the
    model's own, differ between two runs on the same rows, and are not looked at. Nothing is found in a model that cannot be run on fewer rows.

    :param call: arguments of the model, the first a tensor ``(..., N, D)``.
    :param modules: those of the model.
    """
    (args, kwargs), modules = call, list(modules)
    if not args or not isinstance(args[0], Tensor) or args[0].dim() < 2 or num_rows(args[0]) < 2:
        return None
    rows = RowArguments(args, kwargs)
    count = min(len(rows), _ROWS)
    with torch.random.fork_rng(), evaluating(*modules):
        single = any(
            each.is_floating_point() and each.dtype != torch.float64 for root in modules for each in root.parameters()
        )
        try:
            half, some, again = (_on(model, rows, end) for end in (count // 2, count, count))
        except (
            Exception
        ):  # whatever a model raises that cannot be run on fewer rows; what is wrong with it, other passes say
            return None
    for name, x in some.items():
        part = half.get(name)
        is_of_rows = part is not None and x.shape[-2:-1] == (count,) and part.shape[-2:-1] == (count // 2,)
        rounding = _ROUNDING_OF_FLOAT32 if single or x.dtype != torch.float64 else _ROUNDING
        if (
            is_of_rows
            and _are_same(x, again[name], rounding)
            and not _are_same(x[..., : count // 2, :], part, rounding)
        ):
            return name
    return None


def warn_of_other_rows(model: Callable[..., Any], call: Call, modules: Iterable[nn.Module]) -> None:
    """Warn of a Gaussian process whose inputs at a row change with the other rows of a call."""
    name = sees_other_rows(model, call, modules)
    if name is not None:
        warnings.warn(f"{other_rows_message(name)}, pass all of them in every call", stacklevel=4)


def other_rows_message(name: str) -> str:
    """Say that inputs of a Gaussian process are computed from several rows."""
    return (
        f"the inputs of the Gaussian process {name!r} at a row depend on the other rows of the call, as in x - x.mean(0), so that they are others in a batch or at new rows: "
        "compute such numbers once from the training rows, as buffers of the model or by Standardizer.fit(x, y). If rows belong together, as nodes of a graph do"
    )


def _on(model: Callable[..., Any], rows: RowArguments, count: int) -> dict[str, Tensor]:
    """Return the inputs of the Gaussian processes at the first rows, by name."""
    args, kwargs = rows[slice(0, count)]
    with _Inputs() as inputs:
        model(*args, **kwargs)
    return inputs.found


def _are_same(one: Tensor, other: Tensor | None, rounding: float) -> bool:
    """Tell whether inputs are the same up to rounding; numbers that are NaN differ from others."""
    if other is None or one.shape != other.shape:
        return False
    return bool((one - other).abs().max() <= rounding * one.abs().max())
