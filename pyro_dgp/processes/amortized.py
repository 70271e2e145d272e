"""Amortised inducing points: inducing inputs, means and scales that are functions of the inputs."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.internal import linalg
from pyro_dgp.kernels.factor_faults import explained
from pyro_dgp.processes.base import Process, require_dtype
from pyro_dgp.processes.basis import SMALLEST_VARIANCE
from pyro_dgp.processes.families import ProcessFamily, require_scales, saved
from pyro_dgp.processes.inference_functions import (
    SMALLEST_SCALE,
    AffineMaps,
    AmortizationRecipe,
    InferenceFunctions,
    Sizes,
)
from pyro_dgp.processes.marginal import FunctionMarginal
from pyro_dgp.processes.row_moments import row_moments


class AmortizedProcess(Process):
    """Process in which each row n has M inducing points of its own ([AVDGP] 3.2, 4.1).

    The inducing inputs ``Z_n``, means ``m_n`` and covariances ``S_n`` are functions of the row. In whitened coordinates,
    ``u_n = m(Z_n) + L_n v_n`` and ``q(v_nd) = N(m_nd, S_nd)``, the marginal at x has mean ``m(x) + a' m_nd`` and variance
    ``k(x,x) - a'a + a' S_nd a`` with ``a = L_n^-1 k(Z_n, x)`` ([AVDGP] 4.4). Where the functions are constant these are
    the numbers of ordinary inducing points. The regulariser is the mean over the rows of the batch of
    ``sum_d KL(N(m_nd, S_nd) || N(0, I))`` in nats ([AVDGP] 4.6, Appendix A): that of one row, whatever the number of rows.

    **The objective is no lower bound on log p(y).** The regulariser is not a KL between processes. With ``Z_n = x_n`` and
    a narrow q every row is fitted by itself at the price of one row, and the objective exceeds the evidence. For the same
    reason q has no joint covariance over rows.

    :ivar functions: map from inputs to the variational parameters of each row.
    :ivar sizes: M, D, D_out, and 1 if scales are full, else 0.
    :ivar initial_scale: initial standard deviation with which the functions were made.
    """

    sizes: Tensor
    initial_scale: Tensor

    def __init__(self, functions: InferenceFunctions, initial_scale: float) -> None:
        super().__init__()
        if not isinstance(functions, InferenceFunctions):
            raise TypeError(
                f"a recipe's create returns InferenceFunctions, not {type(functions).__name__}: derive your network from "
                "pyro_dgp.InferenceFunctions and call super().__init__(sizes)"
            )
        self.functions = functions
        sizes = functions.sizes
        described = [sizes.num_inducing, sizes.num_inputs, sizes.num_outputs, int(sizes.is_full)]
        self.register_buffer("sizes", torch.tensor(described))
        self.register_buffer("initial_scale", torch.tensor(initial_scale, dtype=torch.float64))

    def forward(self, prior: FunctionPrior, at: Tensor | None = None) -> FunctionMarginal:
        """Return the marginal at ``prior.x``.

        :param at: inputs that the functions look at, in the shape of ``prior.x`` or with 1 in the place of the
            components; ``prior.x`` if not given.
        """
        at = prior.x if at is None else at
        for weights in self.functions.parameters():
            require_dtype(weights.dtype, prior)
        if at.shape[-1] != self.functions.sizes.num_inputs:
            raise ValueError(
                f"the inference functions of {prior.name!r} take {self.functions.sizes.num_inputs} dimensions and its "
                f"inputs have {at.shape[-1]}: pass inputs of as many columns as guide.initialize got"
            )
        if prior.num_outputs != self.functions.sizes.num_outputs:
            raise ValueError(
                f"the inference functions of {prior.name!r} have {self.functions.sizes.num_outputs} outputs and the GP has "
                f"{prior.num_outputs}: initialise the guide on this model"
            )
        z, mean, scale = self._parameters_of(at, prior.name)
        shared = at.shape != prior.x.shape
        if shared:  # all components share one set of inducing points, and become its columns
            if at.dim() != prior.x.dim() or len(at) != 1:
                raise ValueError(
                    f"the inference functions of {prior.name!r} look at inputs of shape {tuple(at.shape)} and the GP has inputs of "
                    f"shape {tuple(prior.x.shape)}: let the propagation's reference have that shape, or 1 in the place of S"
                )
            columns = prior.x.movedim(0, -2).unsqueeze(0)
        else:
            columns = prior.x.unsqueeze(-2)
        loc, variance = _moments(prior, z, columns, mean, scale)
        if shared:
            loc, variance = loc.squeeze(0).movedim(-1, 0), variance.squeeze(0).movedim(-1, 0)
        else:
            loc, variance = loc.squeeze(-1), variance.squeeze(-1)
        return FunctionMarginal(prior.mean + loc, variance, _regularizer(mean, scale).mean(-1), _no_joint)

    def require_functions(self, key: str) -> None:
        """Raise, since each row has inducing points of its own."""
        raise ValueError(
            f"the process of {key!r} has amortised inducing points, a set for each row, so that there is no one distribution of functions "
            f'to draw from: fit a guide with {{"{key}": InducingPoints(...)}}'
        )

    def _parameters_of(self, at: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return points, means and scales of each row; raise for shapes other than those of :class:`InferenceFunctions`."""
        sizes, found = self.functions.sizes, self.functions(at)
        points, outputs = sizes.num_inducing, sizes.num_outputs
        triangle = (points, points) if sizes.is_full else (points,)
        ends = {"points": (points, at.shape[-1]), "means": (outputs, points), "scales": (outputs, *triangle)}
        if not isinstance(found, tuple) or len(found) != len(ends):
            raise ValueError(
                f"the inference functions of {name!r} gave a {type(found).__name__}: return a tuple of three tensors, points, means and scales"
            )
        for (what, end), value in zip(ends.items(), found, strict=True):
            if value.shape != at.shape[:-1] + end:
                raise ValueError(
                    f"the inference functions of {name!r} gave {what} of shape {tuple(value.shape)} at inputs of shape "
                    f"{tuple(at.shape)}: return {(*at.shape[:-1], *end)}, as InferenceFunctions says"
                )
        return found


def _moments(
    prior: FunctionPrior,
    z: Float[Tensor, "*b n m d"],
    columns: Float[Tensor, "*b n s d"],
    mean: Float[Tensor, "*b n k m"],
    scale: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return mean, without that of the prior, and variance at the columns of each row, both ``(..., N, D_out, S)``."""
    k_zz, columns = _within(prior, z), columns.unsqueeze(-3)
    k_zx = prior.covariance.matrix(z.unsqueeze(-3), columns)
    try:
        loc, change = row_moments(k_zz, k_zx, mean, scale, prior.jitter, prior.name)
    except linalg.NotPositiveDefiniteError as error:
        raise explained(error, prior.covariance, z.unsqueeze(-3), "inducing points") from error
    return loc, (prior.covariance.diagonal(columns) + change).clamp_min(SMALLEST_VARIANCE)


def _within(prior: FunctionPrior, z: Float[Tensor, "*b n m d"]) -> Float[Tensor, "*b n e m m"]:
    """Return the kernel matrices of the points of each row.

    The inputs get extra axes of size 1. A kernel with batched parameters enlarges these, and is refused.
    """
    k_zz = prior.covariance.matrix(z.reshape(-1, *_FREE, 1, *z.shape[-2:]))
    if k_zz.shape[1:-3] != _FREE:
        raise ValueError(
            f"the kernel of {prior.name!r} has batched parameters: amortised inducing points take one set at a time, "
            "as with vectorize_particles=False"
        )
    return k_zz.reshape(*z.shape[:-2], *k_zz.shape[-3:])


_FREE = (1,) * 8


def _regularizer(mean: Float[Tensor, "*b n k m"], scale: Tensor) -> Float[Tensor, "*b n"]:
    """Return ``sum_d KL(N(m_nd, S_nd) || N(0, I))`` of each row."""
    diagonal = scale if scale.dim() == mean.dim() else scale.diagonal(dim1=-2, dim2=-1)
    squares = scale.square().flatten(mean.dim() - 2).sum(-1)
    size = mean.shape[-2] * mean.shape[-1]
    return 0.5 * (mean.square().sum((-2, -1)) + squares - size) - diagonal.log().sum((-2, -1))


def _no_joint() -> NoReturn:
    raise ValueError(
        "amortised inducing points have no joint covariance over rows, since each row has points of its own: use the variance"
    )


@dataclass(frozen=True)
class AmortizedInducingPoints(ProcessFamily):
    """Inducing points that inference functions make for each row ([AVDGP]; Jafrasteh et al. 2022).

    **The objective is no lower bound on log p(y)**: see :class:`~pyro_dgp.processes.AmortizedProcess`. **Far from the data
    q does not return to the prior**, unlike that of ordinary inducing points. The points of a row travel with it and the
    networks go on linearly, so that predictions far out are wrong by more than their variance says.

    Few points are enough, since they need to be good for one row only. The propagation decides what the functions look
    at: the inputs of each component ([AVDGP] rule AR1), or with :class:`~pyro_dgp.WithMean` the mean of the layer below
    (AR2, AR2P).

    :param num_inducing: M, the number of points of a row.
    :param recipe: maker of the functions: :class:`AffineMaps`, :class:`OneNetwork`, or an
        :class:`~pyro_dgp.AmortizationRecipe` of your own.
    :param covariance: form of the covariance of q(v) for each row and output: ``diagonal``, or ``full``.
    :param hidden_scale: initial standard deviation of v in layers below the top.
    :param scale: initial standard deviation of v in the top layer.

    >>> import torch
    >>> from pyro_dgp import AmortizedInducingPoints, DeepGP, MonteCarlo, Variational
    >>> x, y = torch.randn(20, 3), torch.randn(20)
    >>> guide = Variational(DeepGP(x, layers=1), AmortizedInducingPoints(4), MonteCarlo(1))
    >>> guide.initialize(x, y)
    >>> points, means, scales = getattr(guide.processes, "y/f").functions(x)
    >>> points.shape, means.shape
    (torch.Size([20, 4, 3]), torch.Size([20, 1, 4]))
    """

    num_inducing: int = 8
    recipe: AmortizationRecipe = AffineMaps()
    covariance: str = "diagonal"
    _: KW_ONLY
    hidden_scale: float = 1e-2
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.covariance not in ("full", "diagonal"):
            raise ValueError(
                f"covariance of amortised inducing points is 'full' or 'diagonal', not {self.covariance!r}"
            )
        if not isinstance(self.num_inducing, Integral) or self.num_inducing < 1:
            raise ValueError(f"num_inducing must be a whole number, at least 1, got {self.num_inducing!r}")
        if not isinstance(self.recipe, AmortizationRecipe):
            raise TypeError(f"recipe is an object such as AffineMaps(), not {self.recipe!r}")
        require_scales(self.scale, self.hidden_scale)
        if not min(self.scale, self.hidden_scale) > SMALLEST_SCALE:
            raise ValueError(
                f"initial scales are above {SMALLEST_SCALE:.0e}, got scale={self.scale} and hidden_scale={self.hidden_scale}"
            )

    def create(self, prior: FunctionPrior, hidden: bool) -> AmortizedProcess:
        """Make the functions at the prior's inputs, and a process of them."""
        x = prior.x.detach().reshape(-1, prior.x.shape[-1])
        sizes = Sizes(self.num_inducing, x.shape[-1], prior.num_outputs, self.covariance == "full")
        scale = self.hidden_scale if hidden else self.scale
        return AmortizedProcess(self.recipe.create(sizes, x, scale), scale)

    def restore(self, state: dict[str, Tensor]) -> AmortizedProcess:
        """Make a process by the ``sizes`` and ``initial_scale`` of the state, at inputs of zero."""
        described, initial_scale = saved(state, "sizes", "initial_scale")
        points, inputs, outputs, full = described.tolist()
        like = next(v for k, v in state.items() if v.is_floating_point() and k != "initial_scale")
        sizes, scale = Sizes(points, inputs, outputs, bool(full)), float(initial_scale)
        return AmortizedProcess(self.recipe.create(sizes, like.new_zeros(1, inputs), scale), scale)
