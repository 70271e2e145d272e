"""Functions drawn jointly at all points that are asked for, which are kept: for kernels without random features."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.functions.paths import Path, PathRequest
from pyro_dgp.internal import linalg
from pyro_dgp.kernels.covariance import Covariance
from pyro_dgp.kernels.white import WhiteCovariance

#: Points of one draw at most, the inducing points or training rows among them: the cost of a point grows with their square.
MOST_POINTS = 2000
#: Numbers in the factors of all draws at most: half a gigabyte in float64.
_MOST_NUMBERS = 2**26
#: Share of its variance by which the covariance of a point with an equal one is less under white noise, at least.
_WHITE = 1e-3
#: A point whose variance given the others is below this share of its own variance takes its conditional mean, without noise.
_DETERMINED = {torch.float64: 1e-10, torch.float32: 1e-5}


class JointPath(Path):
    """Values drawn at each point given all earlier ones, ``f(x) | f(X) ~ N(K_xX K_XX^-1 f(X), k(x, x) - K_xX K_XX^-1 K_Xx)``.

    The draws are exact. A point that comes again has its value again, to some 1e-5 of the prior's standard deviation. The values at new
    points depend on the order in which points are asked for, and their distribution does not. There are no gradients: the slope of a
    function at a point is not fixed by its value there.
    """

    def __init__(self, covariance: Covariance, request: PathRequest) -> None:
        require_functions(covariance, request.name)
        self.covariance, self.request = covariance, request
        batch, like = (request.num_draws, request.num_outputs), request.like
        self.points = like.new_zeros(*batch, 0, like.shape[-1])
        self.factor = like.new_zeros(*batch, 0, 0)
        self.white = like.new_zeros(*batch, 0)
        self.free = like.new_zeros(*batch, 0)
        self.generator = torch.Generator(like.device).manual_seed(int(torch.randint(2**31 - 1, ())))

    def __call__(self, x: Float[Tensor, "c e n d"]) -> Float[Tensor, "k o n"]:
        """See :class:`Path`.

        :raises ValueError: for more points than :data:`MOST_POINTS`, or where a gradient is wanted.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            raise ValueError(
                f"functions of {self.request.name!r}, whose kernel has no random features, have no gradient: pass inputs that need "
                "none, or take a kernel such as Matern52"
            )
        known, total = self.points.shape[-2], self.points.shape[-2] + x.shape[-2]
        if total > MOST_POINTS or total**2 * self.points.shape[:2].numel() > _MOST_NUMBERS:
            raise ValueError(
                f"the kernel of {self.request.name!r} has no random features, so that functions are drawn jointly at all points, and "
                f"{total} points for {self.request.num_draws} draws are too many (at most {MOST_POINTS} points, and fewer for many "
                "draws): ask for fewer points, or take a kernel such as Matern52"
            )
        x = x.detach().expand(*self.points.shape[:2], *x.shape[-2:])
        if not known:
            _require_same_value_again(self.covariance, x[..., :1, :], self.request.name)
        cross = self.covariance.matrix(self.points, x) * self.free.unsqueeze(-1)
        projected = linalg.solve_triangular(self.factor, cross, upper=False)
        within = self.covariance.matrix(x)
        factor, free = _pivoted(within - projected.mT @ projected, within.diagonal(dim1=-2, dim2=-1))
        noise = torch.randn(free.shape, dtype=x.dtype, device=x.device, generator=self.generator)
        values = (projected.mT @ self.white.unsqueeze(-1) + factor @ noise.unsqueeze(-1)).squeeze(-1)
        rows = torch.cat([projected.mT, factor], -1) * free.unsqueeze(-1)
        rows[..., known:].diagonal(dim1=-2, dim2=-1).add_(1 - free)
        above = rows.new_zeros(*rows.shape[:2], known, x.shape[-2])
        self.factor = torch.cat([torch.cat([self.factor, above], -1), rows], -2)
        self.points = torch.cat([self.points, x], -2)
        self.white = torch.cat([self.white, noise * free], -1)
        self.free = torch.cat([self.free, free], -1)
        return values


def _require_same_value_again(covariance: Covariance, point: Tensor, name: str) -> None:
    """Raise where a point is not fully correlated with an equal one, as under white noise of a kernel of another library."""
    variance = covariance.matrix(point)
    if bool(((variance - covariance.matrix(point, point.clone())).abs() > _WHITE * variance.abs()).any()):
        _refuse_white(name)


def _refuse_white(name: str) -> NoReturn:
    raise ValueError(
        f"the kernel of {name!r} holds White, whose draws have unrelated values at neighbouring points and are no functions: "
        "leave White out of the kernel and let the likelihood have this variance as noise"
    )


def require_functions(covariance: Any, name: str) -> None:
    """Raise for a covariance function that holds White, whose draws have a value of its own each time a point is asked for."""
    if isinstance(covariance, WhiteCovariance):
        _refuse_white(name)
    for part in (*getattr(covariance, "parts", ()), getattr(covariance, "part", None)):
        if part is not None:
            require_functions(part, name)


def _pivoted(matrix: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Return a Cholesky factor whose columns are zero at points that the others determine, and 1 for each point that they do not."""
    size, rest = matrix.shape[-1], matrix.clone()
    factor, free = torch.zeros_like(matrix), torch.zeros_like(level)
    smallest = _DETERMINED[matrix.dtype] * level
    for point in range(size):
        pivot = rest[..., point, point]
        varies = pivot > smallest[..., point]
        root = torch.where(varies, pivot, 1.0).sqrt()
        column = torch.where(varies.unsqueeze(-1), rest[..., point:, point] / root.unsqueeze(-1), 0.0)
        factor[..., point:, point], free[..., point] = column, varies.to(matrix)
        rest[..., point:, point:] -= column.unsqueeze(-1) * column.unsqueeze(-2)
    return factor, free
