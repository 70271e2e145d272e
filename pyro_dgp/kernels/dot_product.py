"""Kernels that depend on weighted inner products of the inputs: linear, and arc-cosine of order 0, 1 and 2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal.differentiation import clamped
from pyro_dgp.kernels.base import Kernel
from pyro_dgp.kernels.covariance import Covariance
from pyro_dgp.kernels.hyperparameters import per_dimension, per_output, positive, require_dimensions
from pyro_dgp.kernels.zonal import ZonalCovariance


@dataclass(frozen=True)
class LinearCovariance(Covariance):
    """Covariance function ``sum_d variance_d x_d z_d``."""

    scale: Tensor

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        require_dimensions(x, self.scale)
        x = x * self.scale
        return x @ (x if z is None else z * self.scale).mT

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """``sum_d variance_d x_d^2``."""
        return (x * self.scale).square().sum(-1)


class Linear(Kernel):
    """Linear kernel, ``k(x, z) = sum_d variance_d x_d z_d``: functions through the origin.

    :param ard: number of inputs with a variance each; ``None`` for one variance shared by all inputs.
    :param outputs: number of outputs with parameters of their own; ``None`` for parameters shared by all.
    :param variance: initial prior variance of the slopes, shape ``(outputs?, ard?)``.

    >>> import torch
    >>> from pyro_dgp import Linear
    >>> Linear()().matrix(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 4.0]]])).round().tolist()
    [[[11.0]]]
    """

    def __init__(self, ard: int | None = None, outputs: int | None = None, variance: float = 1.0) -> None:
        super().__init__()
        self.ard, self.outputs = ard, outputs
        self.variance = positive(variance, outputs, ard)

    def forward(self) -> Covariance:
        """Read ``variance``."""
        return LinearCovariance(per_dimension(self, "variance").sqrt())


def _backward_of(order: int, cosine: Tensor) -> Tensor:
    """Return the derivative of J_order by the cosine: 1 / sin for order 0, J_0 for 1, 4 J_1 for 2."""
    if order == 0:
        return (1 - cosine.square()).clamp_min(1e-12).rsqrt()
    return angular(cosine, order - 1) * (1.0 if order == 1 else 4.0)


class _Angular(torch.autograd.Function):
    """J_n with its derivative written out: autograd would pass through acos, whose slope is infinite where that of J_n is not."""

    @staticmethod
    def forward(ctx: Any, cosine: Tensor, order: int) -> Tensor:
        ctx.save_for_backward(cosine)
        ctx.order = order
        sine = (1 - cosine.square()).clamp_min(0.0).sqrt()
        rest = math.pi - torch.atan2(sine, cosine)
        if order == 0:
            return rest
        if order == 1:
            return sine + rest * cosine
        return 3 * sine * cosine + rest * (1 + 2 * cosine.square())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (cosine,) = ctx.saved_tensors
        return grad * _backward_of(ctx.order, cosine), None


class _Step(torch.autograd.Function):
    """J_0 of small angles, which a rounded cosine does not tell: of 1e-8 in double precision, where the cosine is 1 already.

    The value and the sine in the derivative are those at the distance of two points on the sphere; derivatives are by their cosine.
    """

    @staticmethod
    def forward(ctx: Any, cosine: Tensor, distance: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, distance)
        return math.pi - 2 * torch.atan2(distance, (4 - distance.square()).clamp_min(0.0).sqrt())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        cosine, distance = ctx.saved_tensors
        square, rounded = distance.square(), 1 - cosine.square()
        sine_square = square * (1 - square / 4) + (rounded - rounded.detach())
        slope = sine_square.clamp_min(1e-12).rsqrt()
        return grad * torch.where(
            distance == 0, 0.0, slope
        ), None  # of points that coincide no step tells the direction


def angular(cosine: Tensor, order: int) -> Tensor:
    """Return the angular part J_n of the arc-cosine kernels (Cho and Saul 2009, Eq. 4) as a function of the cosine."""
    result: Tensor = _Angular.apply(cosine, order)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True)
class ArcCosineCovariance(ZonalCovariance):
    """Covariance function ``variance / pi * |x|^n |z|^n J_n(angle)`` with weighted norms that include the bias."""

    variance: Tensor
    order: int

    @property
    def degree(self) -> int:
        """The order n."""
        return self.order

    def shape(self, cosine: Tensor) -> Tensor:
        """Return ``variance / pi * J_n``."""
        return self.variance.unsqueeze(-1) / math.pi * angular(cosine, self.order)

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        x = self.lift(x)
        other = x if z is None else self.lift(z)
        x_norm, z_norm = x.norm(dim=-1, keepdim=True), other.norm(dim=-1, keepdim=True)
        x, other = x / x_norm, other / z_norm
        cosine = clamped(x @ other.mT, -1.0, 1.0)
        if self.order == 0:
            distance = torch.cdist(x.detach(), other.detach(), compute_mode="donot_use_mm_for_euclid_dist")
            return self.variance[..., None, None] / math.pi * _Step.apply(cosine, distance)  # type: ignore[no-untyped-call]
        if z is None:
            eye = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
            cosine = cosine * (1 - eye) + eye
        norms = (x_norm @ z_norm.mT) ** self.order
        return self.variance[..., None, None] / math.pi * norms * angular(cosine, self.order)

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """``variance * |x|^2n J_n(0) / pi``, with J_n(0) / pi = 1, 1, 3."""
        squared = self.lift(x).square().sum(-1)
        return self.variance[..., None] * squared**self.order * (3.0 if self.order == 2 else 1.0)


class ArcCosine(Kernel):
    """Arc-cosine kernel of order 0, 1 or 2 (Cho and Saul 2009, Eqs. 3 and 4): an infinitely wide hidden layer.

    ``k = variance / pi * (|x| |z|)^n J_n(theta)`` in the norm ``x' diag(weight_variance) x + bias_variance``.
    The activations of the hidden layer are steps (n = 0), rectifiers (1) or squared rectifiers (2).

    :param order: the order n.
    :param ard: number of inputs with a weight variance each; ``None`` for one weight variance shared by all inputs.
    :param outputs: number of outputs with parameters of their own; ``None`` for parameters shared by all.

    >>> import torch
    >>> from pyro_dgp import ArcCosine
    >>> ArcCosine(order=1)().diagonal(torch.tensor([[[1.0, 2.0]]])).round().tolist()  # 1 + 4, and a bias of 1
    [[6.0]]
    """

    def __init__(
        self, order: int = 1, ard: int | None = None, outputs: int | None = None, *, variance: float = 1.0
    ) -> None:
        super().__init__()
        self.order, self.ard, self.outputs = order, ard, outputs
        self.variance = positive(variance, outputs)
        self.weight_variance = positive(1.0, outputs, ard)
        self.bias_variance = positive(1.0, outputs)

    def admit(self, name: str, value: Any) -> Any:
        """Take 0, 1 or 2 as ``order``."""
        if name == "order" and value not in (0, 1, 2):
            raise ValueError(f"the arc-cosine kernel has orders 0, 1 and 2, not {value}: choose one of these")
        return value

    def forward(self) -> Covariance:
        """Read ``variance``, ``weight_variance`` and ``bias_variance``."""
        scale = per_dimension(self, "weight_variance").sqrt()
        bias = per_output(self, "bias_variance")
        return ArcCosineCovariance(scale, bias, per_output(self, "variance"), self.order)
