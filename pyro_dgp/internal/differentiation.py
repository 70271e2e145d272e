"""Functions whose first derivatives are written out by hand, and whose second derivatives come from their plain formula."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

#: Gradients of the arguments of ``forward``; nothing for an argument that has none.
Cotangents = tuple[Tensor | None, ...]


class FusedFunction(torch.autograd.Function):
    """Base of functions with derivatives written by hand. A subclass writes ``forward``, :meth:`cotangents` and :meth:`plain`.

    With ``create_graph=True``, where the gradient must be differentiable again, autograd differentiates the plain formula instead.
    """

    @staticmethod
    @abstractmethod
    def cotangents(ctx: Any, *args: Any, **kwargs: Any) -> Cotangents:
        """The first derivatives: what ``backward`` of a ``torch.autograd.Function`` gives."""

    @staticmethod
    @abstractmethod
    def plain(ctx: Any, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, ...]:
        """The formula, of the same tensors as ``forward``; arguments of other kinds come as ``None`` and are read from ``ctx``."""

    @staticmethod
    @abstractmethod
    def inputs(ctx: Any) -> tuple[Tensor | None, ...]:
        """The arguments of ``forward``, with ``None`` for those that are no tensors."""

    @classmethod
    def backward(cls, ctx: Any, *grads: Tensor) -> Cotangents:
        """See ``torch.autograd.Function``."""
        if torch.is_grad_enabled():
            return differentiated(partial(cls.plain, ctx), cls.inputs(ctx), *grads)
        return cls.cotangents(ctx, *grads)


def differentiated(
    formula: Callable[..., Tensor | tuple[Tensor, ...]], inputs: tuple[Tensor | None, ...], *grads: Tensor
) -> Cotangents:
    """Gradients of a formula that can be differentiated again; nothing for inputs that need none.

    :param formula: from the inputs to one tensor or several.
    :param grads: cotangents of its results.
    """
    # Views: an input that another one was computed from is differentiated in its own place alone.
    inputs = tuple(None if tensor is None else tensor.view_as(tensor) for tensor in inputs)
    outputs = formula(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    pairs = [(o, grad.expand_as(o)) for grad, o in zip(grads, outputs, strict=True) if o.requires_grad]
    results = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=True))
    return tuple(next(results) if tensor is not None and tensor.requires_grad else None for tensor in inputs)


def clamped(value: Tensor, low: float, high: float | None = None) -> Tensor:
    """Return ``value.clamp(low, high)`` with the derivatives of ``value`` itself.

    It is for values that only rounding puts outside: a squared distance of -1e-16 has the derivatives of one of zero.
    """
    inside = value.clamp(low, high)
    return torch.where(value == inside, value, inside.detach() + (value - value.detach()))


#: Random halves of the rows that are looked at: an element of two rows lies on one side of all of them once in a million.
_HALVES = 20
#: Elements that are looked at one by one, where their derivatives cannot be differentiated again.
_LOOKED_AT = 32


@torch.enable_grad()
def join_rows(elements: Tensor, means: list[Tensor]) -> bool:
    """Tell whether one of many numbers has a gradient with respect to two rows or more of one of ``means``, ``(..., N, D)``.

    The derivatives of all numbers along a random direction, and along the part of it that lies in a random half of the rows, are equal for a number that
    depends on a row of this half, and the second is zero for one that depends on a row of the other half. A number of several rows has something between.
    """
    if not elements.requires_grad:
        return False
    weights = torch.ones_like(elements, requires_grad=True)
    slopes = torch.autograd.grad(elements, means, weights, create_graph=True, allow_unused=True)
    try:
        return any(
            slope is not None and slope.requires_grad and _is_between(slope, weights, mean)
            for slope, mean in zip(slopes, means, strict=True)
        )
    except RuntimeError:  # a function of the model that is differentiable once
        some = elements.flatten()
        return any(_touches_rows(some[number], means) for number in torch.randperm(len(some))[:_LOOKED_AT].tolist())


def _touches_rows(element: Tensor, means: list[Tensor]) -> bool:
    """Tell whether one number has a gradient with respect to two rows or more of one of ``means``."""
    slopes = torch.autograd.grad(element, means, retain_graph=True, allow_unused=True)
    return any(
        int((slope.nan_to_num() != 0).any(-1).reshape(-1, slope.shape[-2]).any(0).sum()) > 1
        for slope in slopes
        if slope is not None
    )


def _is_between(slope: Tensor, weights: Tensor, mean: Tensor) -> bool:
    """Tell whether a derivative along a part of a direction is neither zero nor that along the whole.

    :param slope: gradient of the weighted sum of the numbers, which is linear in the weights.
    """
    along = slope * torch.randn_like(mean)
    (whole,) = torch.autograd.grad(along.nan_to_num().sum(), weights, retain_graph=True)
    least = 1e3 * torch.finfo(whole.dtype).eps
    for _ in range(_HALVES):
        half = torch.randint(2, (mean.shape[-2], 1), device=mean.device).to(mean)
        (part,) = torch.autograd.grad((along.nan_to_num() * half).sum(), weights, retain_graph=True)
        size = least * torch.maximum(part.abs(), whole.abs())
        if bool(((part.abs() > size) & ((whole - part).abs() > size)).any()):
            return True
    return False
