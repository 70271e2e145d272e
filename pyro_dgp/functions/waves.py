"""Random frequencies of kernels: each wave of a function has a phase that is linear in the inputs, as the kernel maps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.functions.paths import Path, PathRequest, weighted
from pyro_dgp.kernels.covariance import ConstantCovariance, Covariance, ProductCovariance, ScaledCovariance
from pyro_dgp.kernels.stationary import StationaryCovariance
from pyro_dgp.kernels.wrapping import ActiveDimsCovariance

#: Numbers in a block of waves: a megabyte or two, which stays in the processor's cache.
_BLOCK = 2**17


class NoWavesError(ValueError):
    """A kernel has no random frequencies that this library knows."""


@dataclass(frozen=True)
class Waves:
    """Random frequencies of a kernel: ``k(x, z) = variance * E cos(phase(x) - phase(z))``.

    :ivar variance: ``(E,)``.
    :ivar phases: functions ``(..., N, D) -> (..., E, N, F)`` whose sum is the phase.
    """

    variance: Tensor
    phases: tuple[Callable[[Tensor], Tensor], ...]

    def phase(self, x: Tensor) -> Tensor:
        """Return the phases at inputs ``(K or 1, E or 1, N, D)``: ``(K, E, N, F)``."""
        total = self.phases[0](x) if self.phases else x.new_zeros(*x.shape[:-1], 1)
        for phase in self.phases[1:]:
            total = total + phase(x)
        return total


@dataclass(frozen=True)
class _LinearPhase:
    """Phase ``frequencies . warp(x)``, with the kernel's own map of the inputs: lengthscales, or a circle."""

    warp: Callable[[Tensor], Tensor]
    frequencies: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return self.warp(x) @ self.frequencies


@dataclass(frozen=True)
class _SelectedPhase:
    """Phase of some of the input dimensions."""

    part: Callable[[Tensor], Tensor]
    dims: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return self.part(x[..., self.dims])


@singledispatch
def draw_waves(covariance: Covariance, request: PathRequest) -> Waves:
    """Draw the frequencies of a covariance function, by its type.

    :raises NoWavesError: for a covariance function without.
    """
    raise NoWavesError(f"{type(covariance).__name__} has no random frequencies")


@draw_waves.register
def _stationary(covariance: StationaryCovariance, request: PathRequest) -> Waves:
    """Draw from the spectral density, as a scale mixture of normals (Rahimi and Recht 2007; Schoenberg 1938)."""
    precisions = getattr(covariance.correlation, "precisions", None)
    if precisions is None:
        raise NoWavesError("the correlation has no scale mixture")
    like = request.like
    shape = (request.num_draws, request.num_kernels, covariance.warp(like).shape[-1], request.num_frequencies)
    normal = torch.randn(shape, dtype=like.dtype, device=like.device)
    frequencies = normal * precisions(normal[..., :1, :]).sqrt()
    return Waves(covariance.variance, (_LinearPhase(covariance.warp, frequencies),))


@draw_waves.register
def _product(covariance: ProductCovariance, request: PathRequest) -> Waves:
    """Add the phases of independent waves: the expectation of the product is the product of the expectations."""
    parts = [draw_waves(part, request) for part in covariance.parts]
    variance = parts[0].variance
    for part in parts[1:]:
        variance = variance * part.variance
    return Waves(variance, tuple(phase for part in parts for phase in part.phases))


@draw_waves.register
def _scaled(covariance: ScaledCovariance, request: PathRequest) -> Waves:
    part = draw_waves(covariance.part, request)
    return replace(part, variance=part.variance * covariance.variance)


@draw_waves.register
def _active(covariance: ActiveDimsCovariance, request: PathRequest) -> Waves:
    part = draw_waves(covariance.part, replace(request, like=request.like[..., covariance.dims]))
    return replace(part, phases=tuple(_SelectedPhase(phase, covariance.dims) for phase in part.phases))


@draw_waves.register
def _constant(covariance: ConstantCovariance, request: PathRequest) -> Waves:
    """Return waves without phase."""
    return Waves(covariance.variance, ())


class WavePath(Path):
    """Sum of F waves with random frequencies, amplitudes and shifts: ``sqrt(variance / F) sum_f a_f cos(phase_f) + b_f sin(phase_f)``.

    Weights ``a, b ~ N(0, 1)`` make each value exactly normal with the kernel's variance, and over draws, each with frequencies of its own,
    all covariances are those of the kernel. Where no outputs share frequencies, a pair of weights is an amplitude and a shift of one
    cosine, which takes half the time.
    """

    def __init__(self, waves: Waves, request: PathRequest) -> None:
        self.waves = waves
        shape = (request.num_draws, request.num_outputs, request.num_frequencies)
        like = request.like
        cosines = torch.randn(shape, dtype=like.dtype, device=like.device)
        sines = torch.randn_like(cosines)
        scale = (waves.variance / request.num_frequencies).sqrt().unsqueeze(-1)
        self.shift: Tensor | None = None
        if request.num_kernels == request.num_outputs:
            self.shift = -torch.atan2(sines, cosines).unsqueeze(-2)
            cosines = torch.hypot(sines, cosines)
        self.cosines, self.sines = cosines * scale, sines * scale
        self._width = request.num_draws * request.num_kernels * request.num_frequencies

    def __call__(self, x: Float[Tensor, "c e n d"]) -> Float[Tensor, "k o n"]:
        """See :class:`Path`. Without gradients, rows are taken in blocks."""
        if torch.is_grad_enabled() and x.requires_grad:
            return self._values(x)
        rows = max(1, _BLOCK // (self._width * x.shape[-3]))
        return torch.cat([self._values(block) for block in x.split(rows, -2)], -1)

    def _values(self, x: Tensor) -> Tensor:
        phase = self.waves.phase(x)
        if self.shift is not None:
            return weighted(torch.cos(phase + self.shift), self.cosines)
        return weighted(torch.cos(phase), self.cosines) + weighted(torch.sin(phase), self.sines)
