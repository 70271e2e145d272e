"""Mean functions, and the concatenation of inputs between layers.

A mean is a Pyro module that, called, reads its parameters and returns a function ``(..., N, D) -> (..., N, D_out)``
(or ``(..., N, 1)``, the same for every output).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from pyro.nn import PyroModule, PyroParam
from torch import Tensor

MeanFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Affine:
    """``x W + b``; either may be missing."""

    weight: Tensor | None
    bias: Tensor | None
    name: str = "the mean"

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight is not None and x.shape[-1] != self.weight.shape[0]:
            raise ValueError(
                f"{self.name} was made for inputs of {self.weight.shape[0]} dimensions and got {x.shape[-1]}: "
                "call the model on as many, or make the mean anew"
            )
        result = x.new_zeros(*x.shape[:-1], 1) if self.weight is None else x @ self.weight
        return result if self.bias is None else result + self.bias


class Mean(PyroModule):
    """Base of all mean functions."""

    def forward(self) -> MeanFunction:
        """Read the parameters and return the function."""
        raise NotImplementedError


class Zero(Mean):
    """``m(x) = 0``."""

    def forward(self) -> MeanFunction:
        """Nothing to read."""
        return _Affine(None, None)


class ConstantMean(Mean):
    """``m(x) = constant``, one for each output: shape ``(outputs,)``."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.constant = PyroParam(torch.zeros(outputs), event_dim=1)

    def forward(self) -> MeanFunction:
        """Read ``constant``."""
        return _Affine(None, self.constant)


class LinearMean(Mean):
    """Learned linear mean, ``m(x) = x weight + bias``: ``weight`` ``(inputs, outputs)``, ``bias`` ``(outputs,)``."""

    def __init__(self, inputs: int, outputs: int = 1) -> None:
        super().__init__()
        self.weight = PyroParam(torch.randn(inputs, outputs) / inputs**0.5, event_dim=2)
        self.bias = PyroParam(torch.zeros(outputs), event_dim=1)

    def forward(self) -> MeanFunction:
        """Read ``weight`` and ``bias``."""
        return _Affine(self.weight, self.bias, type(self).__name__)


class Projection(Mean):
    """Fixed linear mean ``m(x) = x W`` of hidden layers ([DSVI] 3.12).

    W is the identity where the layer has as many outputs as inputs, the leading principal directions where it has
    fewer, and the identity padded with zeros where it has more. Without it all hidden values collapse with depth.
    """

    weight: Tensor

    def __init__(self, weight: Float[Tensor, "d_in d_out"]) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    @classmethod
    def fit(cls, x: Tensor, width: int) -> Projection:
        """W for inputs ``x`` ``(N, D_in)`` and ``width`` outputs; ``x`` matters only if ``width < D_in``."""
        if x.dim() != 2:
            raise ValueError(f"Projection.fit takes inputs (N, D), got {tuple(x.shape)}: use x[:, None] for one input")
        x, inputs = x.detach(), x.shape[-1]
        if width >= inputs:
            return cls(torch.eye(inputs, width, dtype=x.dtype, device=x.device))
        _, _, directions = torch.linalg.svd(x - x.mean(0), full_matrices=False)
        signs = directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
        return cls((directions * signs)[:width].mT.contiguous())

    def forward(self) -> MeanFunction:
        """W is no parameter: nothing to read."""
        return _Affine(self.weight, None, type(self).__name__)


def concatenate_inputs(h: Float[Tensor, "*s n w"], x: Float[Tensor, "*b m d"]) -> Float[Tensor, "*s n k"]:
    """``[h, x]`` along the last axis, inputs repeated over the leading (particle) axes of ``h``.

    For layers that see the data as well as the layer below, as in ``self.top(concatenate_inputs(h, x))``.
    """
    if h.shape[-2] != x.shape[-2]:
        raise ValueError(
            f"{h.shape[-2]} rows of function values and {x.shape[-2]} rows of inputs: pass those of one batch"
        )
    return torch.cat([h, x.expand(*h.shape[:-1], x.shape[-1])], -1)
