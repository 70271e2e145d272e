"""Natural gradients for Gaussian q(v), beside another optimiser for all other parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pyro_dgp.internal import linalg
from pyro_dgp.processes.coefficients import GaussianCoefficients
from pyro_dgp.training.optimising import OptimizerRecipe, adam, built_optimizer, rows_of_loss

#: Halvings of a step that would leave no covariance, or one far larger than before; after these the step is left out.
HALVINGS = 20
#: The precision keeps this share of what a step of size r leaves of the old one at least, ``1 - r``.
KEPT = 0.25


@dataclass(frozen=True)
class NaturalGradients:
    """Optimiser that follows natural gradients in every Gaussian q(v), and another optimiser in all other parameters.

    A q(v) = N(m, S) has natural parameters ``S^-1 m`` and ``-S^-1 / 2``, and expectation parameters ``m`` and ``S + m m'``. A step of
    size r subtracts r times the gradient of the loss, in nats in total, in the expectation parameters from the natural ones. With G the
    derivative in S and g that in m,

        S_new^-1 = S^-1 + 2 r G,    m_new = m - r S_new g

    (Salimbeni, Eleftheriadis and Hensman 2018, Natural Gradients in Practice). With r = 1, all rows in a step, one layer and Gaussian noise, one step
    leads to the best q(v). Batches want a smaller r: the step averages over the last 1/r of them.

    It is made for Gaussian noise, and for losses that are nearly quadratic in q(v). Steps can lead away from the optimum elsewhere: with a Poisson
    likelihood and counts of fifty the loss grows without end, with smaller steps too. Take Adam there.

    A step costs O(M^3) for each output of each layer. Processes with a diagonal covariance move their variances alone in the same way;
    their means then move one by one as if the others stood still, and with a step near 1 the loss can grow instead: keep the step at 0.1 there. Point
    estimates, amortised processes, q(v) that move with sampled hyperparameters, and hyperparameters themselves are left to the other optimiser.

    The precision never falls below a quarter of ``(1 - r) S^-1``, which a loss that is no bound, or a hidden layer, can ask for: the step of that
    output is halved until it does not.

    :func:`~pyro_dgp.fit` gives it the gradient of the loss per row. A loop of your own divides as well: ``(objective(x, y) / num_data).backward()``.

    :param step: r, above 0 and at most 1. It falls along with the learning rate.
    :param others: builds the optimiser of all other parameters from the objective and the learning rate.

    >>> import torch
    >>> from pyro_dgp import DeepGP, ELBO, InducingPoints, NaturalGradients, Variational, fit
    >>> x = torch.linspace(0, 1, 200)[:, None]
    >>> y = torch.sin(9 * x[:, 0]) + 0.1 * torch.randn(200)
    >>> def last_loss(**options):
    ...     guide = Variational(DeepGP(x, layers=1), InducingPoints(15))
    ...     guide.initialize(x, y)
    ...     return fit(ELBO(num_data=200)(guide.model, guide), x, y, steps=100, **options).losses[-1]
    >>> last_loss(optimizer=NaturalGradients()) < last_loss() - 0.05
    True
    """

    step: float = 0.1
    others: OptimizerRecipe = adam

    def __post_init__(self) -> None:
        if isinstance(self.step, nn.Module):
            raise TypeError(
                "NaturalGradients takes the size of a step: NaturalGradients()(objective, learning_rate) builds the optimiser, and fit does so by itself"
            )
        if not 0 < self.step <= 1:
            raise ValueError(f"the step of natural gradients is above 0 and at most 1, got {self.step}")

    def __call__(self, objective: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        """Return the optimiser of an objective ``loss(model, guide)``.

        :raises ValueError: if no process has a q(v) that it can move, or the loss does not know the number of rows.
        """
        parts = _parts_of(objective)
        if not parts:
            raise ValueError(
                "natural gradients want a Gaussian q(v) that is trained, with a full or a diagonal covariance that does not depend on hyperparameters, "
                "and the objective has none: take optimizer=adam"
            )
        rows = rows_of_loss(objective)
        if rows is None:
            raise ValueError(
                "natural gradients are those of the loss in total, and it does not say how many rows there are: give the loss num_data=len(x)"
            )
        return _NaturalSteps(parts, built_optimizer(self.others, objective, learning_rate), self.step, rows)


class _Part(NamedTuple):
    """Parameters of one q(v).

    :ivar scale: the triangular factor T of S, or the logarithms of standard deviations.
    """

    mean: nn.Parameter
    scale: nn.Parameter
    is_full: bool


def _parts_of(objective: nn.Module) -> list[_Part]:
    """Return the parameters of every q(v) with a covariance that is learned."""
    found = (part for part in objective.modules() if isinstance(part, GaussianCoefficients))
    parts = [
        _Part(part.get_parameter("mean_unconstrained"), part.get_parameter("scale_unconstrained"), part.kind == "full")
        for part in found
        if part.kind in ("full", "diagonal") and part.num_deviations == 0
    ]
    return [part for part in parts if part.mean.requires_grad and part.scale.requires_grad]


class _NaturalSteps(torch.optim.Optimizer):
    """Natural steps of all q(v), in the first group of parameters, and the steps of another optimiser, in its own groups.

    :ivar parts: parameters of each q(v).
    :ivar others: the other optimiser.
    :ivar rows: what turns the loss per row into nats in total.
    """

    def __init__(self, parts: list[_Part], others: torch.optim.Optimizer, step: float, rows: int) -> None:
        own = [parameter for part in parts for parameter in part[:2]]
        super().__init__(own, {"lr": step})
        self.parts, self.others, self.rows = parts, others, rows
        taken = {id(parameter) for parameter in own}
        for group in others.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in taken]
        self.param_groups += others.param_groups
        self.state = others.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make a step of both."""
        size = self.param_groups[0]["lr"]
        with torch.no_grad():
            for mean, scale, is_full in self.parts:
                if mean.grad is None or scale.grad is None:
                    continue
                gradients = self.rows * mean.grad.double(), self.rows * scale.grad.double()
                move = _full_step if is_full else _diagonal_step
                new_mean, new_scale = move(mean.double(), scale.double(), *gradients, size)
                mean.copy_(new_mean)
                scale.copy_(new_scale)
        self.others.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the state of both."""
        super().load_state_dict(state_dict)
        self.others.param_groups = self.param_groups[1:]
        self.others.state = self.state


def _full_step(mean: Tensor, factor: Tensor, of_mean: Tensor, of_factor: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Return the new mean and triangular factor T of ``S = T T'``, given the derivatives in both.

    In the coordinates ``T^-1 v`` the new precision is ``B = I + 2 r T'GT``, and ``2 T'GT`` is P + P' for the lower triangle P of ``T' dL/dT``
    with half of its diagonal. With ``B = U U'`` for an upper triangle U, the new factor is ``T U^-T``.
    """
    factor = factor.tril()
    half = (factor.mT @ of_factor).tril()
    half.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    upper, sizes = _positive(half + half.mT, size)
    new = linalg.solve_triangular(upper.mT, factor, upper=False, left=False)
    return mean - sizes.squeeze(-1) * (new @ (new.mT @ of_mean.unsqueeze(-1))).squeeze(-1), new


def _positive(change: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Return U with ``U U' = I + r change``, and the sizes r ``(..., 1, 1)``: the one given, or a smaller one where too little would be left."""
    sizes = change.new_full((*change.shape[:-2], 1, 1), size)
    failed = _fails(change, sizes)
    for _ in range(HALVINGS):
        if not bool(failed.any()):
            break
        sizes = torch.where(failed, sizes / 2, sizes)
        failed = _fails(change, sizes)
    sizes = torch.where(failed, 0.0, sizes)
    return torch.linalg.cholesky(_precision(change, sizes).flip(-2, -1)).flip(-2, -1), sizes


def _fails(change: Tensor, sizes: Tensor) -> Tensor:
    """Tell where ``I + r change`` has an eigenvalue below the share that is kept of ``1 - r``, ``(..., 1, 1)``."""
    precision = _precision(change, sizes)
    precision.diagonal(dim1=-2, dim2=-1).sub_(KEPT * (1 - sizes.squeeze(-1)))
    return (torch.linalg.cholesky_ex(precision)[1] > 0)[..., None, None]


def _precision(change: Tensor, sizes: Tensor) -> Tensor:
    """Return ``I + r change``."""
    precision = sizes * change
    precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return precision


def _diagonal_step(mean: Tensor, logs: Tensor, of_mean: Tensor, of_logs: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Return the new means and logarithms of standard deviations, given the derivatives in both.

    It is the same for single numbers, whose ``2 T'GT`` is the derivative in ``log s``.
    """
    upper, sizes = _positive(of_logs[..., None, None], size)
    new = logs - upper[..., 0, 0].log()
    return mean - sizes[..., 0, 0] * (2 * new).exp() * of_mean, new
