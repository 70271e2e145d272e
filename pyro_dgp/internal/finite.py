"""Checks of a step of training: its loss and its gradients are finite before the optimiser moves a parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn


def require_finite_loss(
    value: float, modules: Sequence[nn.Module], terms: Callable[[], Mapping[str, Tensor]], *, at: str = ""
) -> None:
    """Raise for a loss that is NaN or infinite, with the parameter or the term that is.

    :param value: the loss.
    :param modules: what is trained.
    :param terms: evaluates the terms of the loss once more, by name; called where all parameters are finite.
    :param at: the step, in words that begin with a space, for the message.
    """
    if math.isfinite(value):
        return
    parameter = _first_not_finite(_parameters(modules).items())
    if parameter is not None:
        raise ValueError(
            f"the loss is {value}{at}, since the parameter {parameter!r} holds NaN or infinity: build the model and the guide anew and train at a "
            "lower learning rate"
        )
    with torch.no_grad(), torch.random.fork_rng():
        term = _first_not_finite(terms().items())
    since = "" if term is None else f"since {term} is NaN or infinite, "
    raise ValueError(f"the loss is {value}{at}, {since}while all parameters are finite: {_remedy(modules)}")


def require_finite_gradients(modules: Sequence[nn.Module], *, at: str = "") -> None:
    """Raise for gradients that hold NaN or infinity, with the parameter; all gradients are dropped then.

    :param modules: what is trained.
    :param at: the step, in words that begin with a space, for the message.
    """
    gradients = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    if all_finite(gradients):
        return
    parameters = _parameters(modules)
    name = _first_not_finite((name, p.grad) for name, p in parameters.items() if p.grad is not None)
    for parameter in parameters.values():
        parameter.grad = None
    raise ValueError(
        f"the gradient of {name!r} holds NaN or infinity{at}, while the loss is finite: {_remedy(modules)}"
    )


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Tell whether no number is NaN or infinite, by one pass over all tensors."""
    if not tensors:
        return True
    largest = torch.stack([norm.to(tensors[0]) for norm in torch._foreach_norm(list(tensors), math.inf)]).amax()
    return math.isfinite(largest.item())


def _first_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    return next((name for name, value in named if not bool(torch.isfinite(value).all())), None)


def _parameters(modules: Sequence[nn.Module]) -> dict[str, nn.Parameter]:
    return {name: parameter for module in modules for name, parameter in module.named_parameters()}


def _remedy(modules: Sequence[nn.Module]) -> str:
    is_double = all(p.dtype == torch.float64 for p in _parameters(modules).values() if p.is_floating_point())
    precision = "" if is_double else ", or use float64"
    return (
        "build the model and the guide anew and train at a lower learning rate, or standardise x and y if this is the first step"
        f"{precision}"
    )
