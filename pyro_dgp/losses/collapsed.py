"""The bound on the evidence of sparse regression with the best q(v) put in."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Size, Tensor
from torch.utils.checkpoint import checkpoint

from pyro_dgp.gp import FunctionPrior
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal import linalg
from pyro_dgp.internal.one_thread import one_thread
from pyro_dgp.internal.parameters import evaluating, module_local_parameters, modules_of, require_own_parameters
from pyro_dgp.internal.rows import num_rows
from pyro_dgp.losses.single_regression import SingleRegression, minus_bound, process_of, regression_of, set_best
from pyro_dgp.processes.basis import Basis

#: Rows whose columns are in memory at a time: where there are more, those of each block are made a second time for its gradient.
ROWS = 10_000


class _Solved(NamedTuple):
    """Parts of the bound.

    :ivar regression: the Gaussian process, its noise and its targets.
    :ivar factor: factor of B, ``(..., D_out or E, M, M)``.
    :ivar products: ``A r / s``, ``(..., D_out, M)``.
    :ivar rest: ``sum_n r_n^2 + k(x_n, x_n) - a_n' a_n``, ``(..., D_out)``.
    """

    regression: SingleRegression
    factor: Tensor
    products: Tensor
    rest: Tensor


class CollapsedELBO(torch.nn.Module):
    """Minus the evidence lower bound of sparse GP regression with the best q(v), nats in total (Titsias 2009, Eq. 9).

    With whitened columns A ``(M, N)`` of all rows, residuals ``r = y - m(x)``, noise variance s and ``B = I + A A' / s`` the bound is

    ``log N(r | 0, A'A + s I) - (sum_n k(x_n, x_n) - tr A'A) / (2 s)``

    summed over outputs, and the best q(v) is ``N(B^-1 A r / s, B^-1)``. A call costs O(N M^2) and has no random numbers, so that
    :func:`~pyro_dgp.fit_lbfgs` minimises it; :func:`~pyro_dgp.fit_collapsed` does that and sets q(v). GPflow's and Pyro's name for such a fit is SGPR.

    It takes any family whose q(v) has a full covariance: :class:`~pyro_dgp.InducingPoints`, whose inputs are trained too, or features. Features that
    hyperparameters do not change need one pass over the data alone: :class:`~pyro_dgp.CollapsedELBOFromSums`.

    :cvar needs_all_rows: tells :func:`~pyro_dgp.fit` that a step has all rows.
    :param guide: an initialised guide; its q(v) is not read.

    >>> import torch
    >>> from pyro_dgp import CollapsedELBO, DeepGP, InducingPoints, Variational, fit_lbfgs, predict
    >>> x = torch.linspace(0, 1, 100)[:, None]
    >>> y = torch.sin(9 * x[:, 0]) + 0.1 * torch.randn(100)
    >>> guide = Variational(DeepGP(x, layers=1), InducingPoints(10))
    >>> guide.initialize(x, y)
    >>> objective = CollapsedELBO(guide)
    >>> result = fit_lbfgs(objective, x, y)
    >>> objective.settle(x, y)
    >>> bool((predict(guide, x).mean - torch.sin(9 * x[:, 0])).abs().mean() < 0.05)
    True
    """

    needs_all_rows: ClassVar[bool] = True

    def __init__(self, guide: Variational) -> None:
        super().__init__()
        guide.require_initialized()
        self.guide, self.model = guide, guide.model
        self.model_modules = torch.nn.ModuleList(guide.model_modules)

    def forward(self, x: Tensor, y: Tensor, **arguments: Any) -> Tensor:
        """Return minus the bound.

        :param x: inputs of all rows.
        :param y: their targets.
        :param arguments: further arguments of the model.
        :raises ValueError: for a model that has more than one Gaussian process under Gaussian noise.
        """
        require_own_parameters(*modules_of(self.model))
        found, factor, products, rest = self._solved(x, y, arguments)
        rows = found.values.shape[-1]
        return minus_bound(rows, found.noise.double(), rest, factor=factor, products=products)

    @torch.no_grad()
    def settle(self, x: Tensor, y: Tensor, **arguments: Any) -> None:
        """Set q(v) of the guide to the best one at these hyperparameters, for all rows and the arguments of a call.

        Networks are in evaluation mode for that, as they are where predictions are made. :func:`~pyro_dgp.fit` and :func:`~pyro_dgp.fit_lbfgs` call it
        at their end.
        """
        modules = modules_of(self.model)
        with module_local_parameters(*modules), evaluating(*modules):
            found, factor, products, _ = self._solved(x, y, arguments)
        set_best(process_of(self.guide, found.key), factor, products)

    def _solved(self, x: Tensor, y: Tensor, arguments: dict[str, Any]) -> _Solved:
        with one_thread:
            found = regression_of(self.guide, x, y, arguments)
        prior = found.prior
        process = process_of(self.guide, found.key)
        _require_all_rows(found, num_rows(x), process.present_groups)
        basis: Basis = process.basis
        residuals = found.values - prior.mean.mT
        gram, products = _sums(basis, prior, residuals)
        noise = found.noise.double()
        whole = gram / noise[..., None, None]
        factor = linalg.cholesky(linalg.identity(whole) + whole, 0.0, prior.name)
        of_prior = residuals.double().square().sum(-1) + prior.variance.double().sum(-2)
        rest = of_prior - gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        return _Solved(found, factor, products / noise[..., None], rest)


def _sums(basis: Basis, prior: FunctionPrior, residuals: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``A A'`` ``(..., E, M, M)`` and ``A r`` ``(..., D_out, M)``, in double precision."""

    def of_block(x: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        columns = basis.columns(prior.at(x)).double()
        return columns @ columns.mT, (columns @ values.double().unsqueeze(-1)).squeeze(-1)

    blocks = list(zip(prior.x.split(ROWS, -2), residuals.split(ROWS, -1), strict=True))
    if len(blocks) == 1:
        return of_block(*blocks[0])
    made = [checkpoint(of_block, *block, use_reentrant=False) for block in blocks]
    return torch.stack([gram for gram, _ in made]).sum(0), torch.stack([products for _, products in made]).sum(0)


def _require_all_rows(found: SingleRegression, rows: int, groups: Size) -> None:
    """Raise where the Gaussian process sees other rows than those of the data, or other groups than those of the guide."""
    prior, values = found.prior, found.values
    if not prior.batch_shape == groups == values.shape[:-2]:
        raise ValueError(
            f"the guide holds functions of {prior.name!r} for groups of shape {tuple(groups)}, the model has them of shape {tuple(prior.batch_shape)}, and the "
            f"targets of shape {tuple(values.shape[:-2])}: pass the inputs and targets of the groups of guide.initialize"
        )
    if not prior.x.shape[-2] == values.shape[-1] == rows:
        raise ValueError(
            f"the collapsed bound is that of all rows, and {prior.name!r} sees {prior.x.shape[-2]} of {rows}: take a plate that takes some at "
            "random out of the model, or train by ELBO"
        )
