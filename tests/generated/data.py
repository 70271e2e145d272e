"""Inputs and targets of a program."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tests.generated.parts import CLASSES
from tests.generated.spec import Spec


@dataclass(frozen=True)
class Data:
    """Rows of training and new ones."""

    x: Tensor
    y: Tensor
    new_x: Tensor
    new_y: Tensor

    def scaled(self, factor: float) -> Data:
        """The same data with targets in other units."""
        return replace(self, y=self.y * factor, new_y=self.new_y * factor)


def data_of(spec: Spec) -> Data:
    """Draw the data of a program, in float64 before they are cast."""
    generator = torch.Generator().manual_seed(spec.seed)
    dtype = getattr(torch, spec.dtype)
    parts: list[Tensor] = []
    for rows, pattern in ((spec.rows, spec.x_pattern), (spec.new, "plain")):
        u = torch.randn(*spec.batch, rows, spec.inputs, generator=generator, dtype=torch.float64)
        u = patterned(u, pattern)
        y = targets(u, spec, generator)
        x = (spec.x_offset + spec.x_scale * u).to(dtype)
        parts += [x, y.to(dtype) if y.is_floating_point() else y]
    return Data(*parts)


def patterned(u: Tensor, pattern: str) -> Tensor:
    """Put a pattern into the rows."""
    u = u.clone()
    if pattern == "duplicates":
        u[..., u.shape[-2] // 2 :, :] = u[..., : u.shape[-2] - u.shape[-2] // 2, :].clone()
    elif pattern == "equal rows":
        u[...] = u[..., :1, :].clone()
    elif pattern == "constant column":
        u[..., -1] = 0.25
    elif pattern == "grid":
        u = u.round()
    elif pattern == "outlier":
        u[..., 0, :] = 1e3
    return u


def targets(u: Tensor, spec: Spec, generator: torch.Generator) -> Tensor:
    """Draw the targets of rows: numbers, labels of two or three classes, or counts."""
    shape = (*u.shape[:-1], spec.outputs)
    phases = torch.arange(spec.outputs, dtype=torch.float64)
    signal = torch.sin(2 * u[..., :1] + phases) + 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    if spec.y_pattern == "constant":
        signal = torch.full_like(signal, 0.5)
    elif spec.y_pattern == "outlier":
        signal[..., 0, :] = 50.0
    elif spec.y_pattern == "tied":
        signal = signal.round()
    first = signal[..., 0]
    if spec.is_real:
        y = spec.y_offset + spec.y_scale * signal
        if spec.likelihood == "missing" and spec.outputs > 1:
            y[..., ::2, 0] = torch.nan
        return first * spec.y_scale + spec.y_offset if spec.outputs == 1 or spec.likelihood == "student" else y
    if spec.likelihood in ("probit", "logit"):
        return (first > 0).double()
    if spec.likelihood in ("poisson", "negative binomial"):
        return (first.clamp(-1.0, 6.0).exp() * min(spec.y_scale, 1e3)).floor()
    return (first + 1.5).clamp(0, CLASSES - 1).floor().long()
