"""Figures that have first derivatives alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class OnceDifferentiable(torch.autograd.Function):
    """The identity on quantiles whose second derivatives would be wrong: it has first derivatives, and refuses to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, name: str) -> Tensor:
        """The values as they are.

        :param name: the distribution, for the message.
        """
        ctx.save_for_backward(value)
        ctx.name = name
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The gradient as it is, which cannot be differentiated."""
        return (_Refused.apply(grad, *ctx.saved_tensors, ctx.name) if torch.is_grad_enabled() else grad), None


class _Refused(torch.autograd.Function):
    """A gradient that depends on the values, so that each way from it to what they were made of comes by here."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, value: Tensor, name: str) -> Tensor:
        ctx.name = name
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise NotImplementedError(
            f"quantiles have no second derivatives where the cdf of {ctx.name} has no slope in y: give it a cdf that autograd differentiates in y, or "
            "take differences of first derivatives"
        )
